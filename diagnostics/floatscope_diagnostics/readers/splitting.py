"""Tells the runs of one log apart, and inside a run the parts after a resume."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from floatscope_diagnostics.readers.counting import Positions, counted
from floatscope_diagnostics.readers.falling_steps import MOST_BACK, untrusted
from floatscope_diagnostics.readers.piece import RESUME, START
from floatscope_diagnostics.readers.table import NONE, Float64, Int64, Table

DISORDER_PIECES = 16  # pieces that several writers may hold back
RECENT_PIECES = 64
MAX_NOTES = 8  # of one run
CROWDED = 0.3  # share of repeated steps from which several ranks print
BACK = 0.25  # share of a run's progress that is lost where another begins; runs may start at other levels
AROUND = 5  # losses looked at on each side of a seam
RUN, PART, EPOCH = "run", "part", "epoch"


@dataclass
class Part:
    """Pieces start..stop-1 of the table. first, last: of its leading pieces, in the table.

    kind: how it begins.  shift: added to its positions, where iterations restart with each epoch.
    """

    start: int
    stop: int
    first: int
    last: int
    kind: str
    shift: int = 0


@dataclass
class Run:
    """Parts of one run in order, each with rising steps, and remarks."""

    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)


@dataclass(frozen=True)
class _Lead:
    """The leading pieces: their places in the table, axis, the loss they carry, and who says what:
    schema (-1 for any with a loss) and rank."""

    at: Int64
    axis: Float64
    loss: Float64
    identity: Int64
    stride: float
    crowded: bool


def split(table: Table, where: Positions) -> tuple[list[Run], Positions]:
    """The runs of the log, and where its pieces stand: as given, or counted where that falls back too often
    to be believed."""
    at = np.flatnonzero(where.lead)
    if not len(at):
        return [], where
    lead = _leads(table, where, at)
    starts, resumes = np.flatnonzero(table.of(START)), np.flatnonzero(table.of(RESUME))
    seams = _Cuts(table, lead, starts, resumes, counted=where.counted)
    cuts = seams.find()
    if untrusted(len(cuts), len(at)):
        return _one_run(table, int(table.line[at[cuts[0][0]]]))
    runs = [Run()]
    bounds = [(0, RUN), *cuts, (len(at), RUN)]
    begin = 0
    for (i, kind), (j, _) in pairwise(bounds):
        if kind == RUN and i > 0:
            runs.append(Run())
        stop = len(table) if j == len(at) else _boundary(table, where, at[j - 1], at[j], starts, resumes)
        part = Part(begin, stop, int(at[i]), int(at[j - 1]), kind)
        if kind == PART:
            runs[-1].note(_resumed(table, where, runs[-1].parts[-1], part))
        runs[-1].parts.append(part)
        begin = stop
    for run in runs:
        _count_on(run, where)
        _note_disorder(run, at[seams.late], table)
        _note_continuations(table, run, lead, resumes, where)
    return runs, where


def _one_run(table: Table, line: int) -> tuple[list[Run], Positions]:
    """All pieces as one run, counted. line: of the first step back."""
    how = (
        f"more than {MOST_BACK:,} records do not go on from the step before (the first of them at line "
        f"{line:,}): steps are a count of records"
    )
    where = counted(table, how)
    at = np.flatnonzero(where.lead)
    return [Run([Part(0, len(table), int(at[0]), int(at[-1]), RUN)])], where


def _leads(table: Table, where: Positions, at: Int64) -> _Lead:
    axis = where.axis[at]
    loss = table.column("loss")[at]
    if np.isnan(loss).all():
        loss = table.column("eval_loss")[at]
    rising = np.diff(axis)
    rising = rising[rising > 0]
    with_loss = np.array(["loss" in s.names for s in table.schemas], bool)
    identity = np.where(with_loss[table.schema[at]], -1, table.schema[at]).astype(np.int64)
    crowded = _repeats(axis, identity) > CROWDED * len(at)
    if table.rank is not None:
        identity = identity * (2**32) + np.clip(table.rank[at], -1, 2**31)
    return _Lead(
        at,
        axis,
        loss,
        identity,
        stride=float(np.median(rising)) if rising.size else 1.0,
        crowded=crowded,
    )


def _repeats(axis: Float64, identity: Int64) -> int:
    """Pieces that repeat the step of the one of their kind before."""
    order = np.argsort(identity, kind="stable")
    same = (np.diff(identity[order]) == 0) & (np.diff(axis[order]) == 0)
    return int(np.count_nonzero(same))


class _Cuts:
    """Finds where a new run or part begins."""

    def __init__(self, table: Table, lead: _Lead, starts: Int64, resumes: Int64, *, counted: bool) -> None:
        self._table = table
        self._lead = lead
        self._counted = counted
        self._after_start = _first_after(starts, lead.at)
        self._after_resume = _first_after(resumes, lead.at)
        self._run = 0  # leading piece with which the run began
        self._part = 0
        self._top = float(lead.axis[0])
        self._checked = 0
        self.late: list[int] = []  # leading pieces that come after one of a later step

    def find(self) -> list[tuple[int, str]]:
        """The leading pieces where something begins, and what; not all where there are too many of them."""
        lead = self._lead
        falls = set((np.flatnonzero(np.diff(lead.axis) < 0) + 1).tolist())
        out: list[tuple[int, str]] = []
        skip = 0
        for i in sorted(falls | self._after_start):
            if i <= 0 or i < skip:
                continue
            self._advance(i)
            started = i in self._after_start
            if not started and lead.axis[i] < self._top and not self._counted:
                over = self._disorder(i)
                if over:
                    self.late.append(i)
                    skip = over
                    continue
            kind = self._kind(i, started)
            if kind is None:
                continue
            if kind == EPOCH and (i - self._part < 2 or not self._is_epoch(i)):
                kind = PART
            if kind == RUN:
                self._run = i
            self._part = i
            self._top = float(lead.axis[i])
            self._checked = i
            out.append((i, kind))
            if untrusted(len(out), len(lead.at)):
                return out
        return _settle_epochs(out)

    def _advance(self, i: int) -> None:
        if i > self._checked:
            between = self._lead.axis[self._checked : i]
            if not np.isnan(between).all():
                self._top = max(self._top, float(np.nanmax(between)))
            self._checked = i

    def _disorder(self, i: int) -> int:
        """The place from which steps rise again if those from ``i`` on are only late, else 0."""
        lead = self._lead
        ahead = lead.axis[i : i + DISORDER_PIECES + 1]
        higher = np.flatnonzero(ahead > self._top)
        if not higher.size and i + len(ahead) < len(lead.axis):
            return 0
        over = i + (int(higher[0]) if higher.size else len(ahead))
        back = self._top - float(np.nanmin(lead.axis[i:over]))
        if back > DISORDER_PIECES * lead.stride:
            return 0
        if lead.crowded and back <= 2 * lead.stride:
            return over
        low = max(self._part, i - RECENT_PIECES)
        seen = set(zip(lead.axis[low:i].tolist(), lead.identity[low:i].tolist(), strict=True))
        late = zip(lead.axis[i:over].tolist(), lead.identity[i:over].tolist(), strict=True)
        return 0 if any(piece in seen for piece in late) else over

    def _kind(self, i: int, started: bool) -> str | None:
        """RUN, PART, EPOCH, or None where nothing begins at the leading piece ``i``."""
        lead = self._lead
        now, first = float(lead.axis[i]), float(lead.axis[self._run])
        if np.isnan(now):
            return RUN if self._starts_over(i, unsure=True) else None
        if now > self._top:
            return None  # goes on after a restart of the program
        if now > first + lead.stride:
            return PART
        if started or lead.axis[i - 1] <= first:
            return RUN
        if self._starts_over(i, unsure=i not in self._after_resume):
            return RUN
        return EPOCH

    def _starts_over(self, i: int, *, unsure: bool) -> bool:
        """Whether the loss is back near its starting level. unsure: the answer where losses do not tell."""
        loss = self._lead.loss
        begun = _level(loss[self._run : self._run + AROUND][:2])
        before = _level(loss[max(self._run, i - AROUND) : i])
        after = _level(loss[i : i + 2])
        if begun is None or before is None or after is None:
            return unsure
        if abs(begun - before) <= 0.1 * max(abs(begun), abs(before)):
            return unsure
        return (after - before) / (begun - before) > BACK

    def _is_epoch(self, i: int) -> bool:
        """Whether the iterations before ``i`` rose to a plausible end of an epoch."""
        return self._top > float(self._lead.axis[self._run])


def _level(values: Float64) -> float | None:
    finite = sorted(v for v in values.tolist() if math.isfinite(v))  # a few, many times over
    half = len(finite) // 2
    if not finite:
        return None
    return float(finite[half] if len(finite) % 2 else finite[half - 1] / 2 + finite[half] / 2)


def _settle_epochs(cuts: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """One restart alone is a resume; two or more in a run are epochs."""
    out: list[tuple[int, str]] = []
    run: list[tuple[int, str]] = []
    for cut in [*cuts, (-1, RUN)]:
        if cut[1] == RUN:
            epochs = sum(1 for _, kind in run if kind == EPOCH)
            out += [(i, PART if kind == EPOCH and epochs < 2 else kind) for i, kind in run]
            run = []
            out += [cut] if cut[0] >= 0 else []
        else:
            run.append(cut)
    return out


def _first_after(marks: Int64, at: Int64) -> set[int]:
    """The leading pieces that come first after a mark."""
    return {int(i) for i in np.unique(np.searchsorted(at, marks)) if i < len(at)}


def _boundary(table: Table, where: Positions, last: int, first: int, starts: Int64, resumes: Int64) -> int:
    """Where between two leading pieces the second part begins: at a header, or at an evaluation of its
    first step."""
    for marks in (starts, resumes):
        k = int(np.searchsorted(marks, last))
        if k < len(marks) and marks[k] < first:
            return int(marks[k])
    for i in range(max(last + 1, first - 8), first):
        if where.at[i] != NONE and not where.counted and where.at[i] <= where.at[first]:
            return i
    return first


def _count_on(run: Run, where: Positions) -> None:
    """Shifts the epochs of the run so that its iterations rise through all of them."""
    epochs = [p for p in run.parts if p.kind == EPOCH]
    if not epochs:
        return
    size = max(int(where.at[p.last]) for p in run.parts)
    if min(int(where.at[p.first]) for p in run.parts) == 0:  # counted from zero: one interval is missing
        inside = where.at[run.parts[0].first : run.parts[0].last + 1]
        rising = np.diff(inside[inside != NONE])
        rising = rising[rising > 0]
        size += int(np.median(rising)) if rising.size else 1
    shift = 0
    for part in run.parts:
        shift = shift + size if part.kind == EPOCH else 0
        part.shift = shift
    run.note(f"iterations restart with each of {len(epochs) + 1:,} epochs: they are counted on")


def _note_disorder(run: Run, late: Int64, table: Table) -> None:
    mine = late[(late >= run.parts[0].start) & (late < run.parts[-1].stop)]
    if len(mine):
        first = int(table.line[mine[0]])
        run.note(f"steps out of order at {len(mine):,} places (the first at line {first:,}) are sorted")


def _resumed(table: Table, where: Positions, before: Part, part: Part) -> str:
    last, first = int(where.at[before.last]), int(where.at[part.first])
    line = int(table.line[part.first])
    if where.counted:
        return f"the run resumes at line {line:,}, from an earlier epoch"
    return f"the run resumes at step {first:,} (line {line:,}), after step {last:,}"


def _note_continuations(table: Table, run: Run, lead: _Lead, resumes: Int64, where: Positions) -> None:
    """Notes where a checkpoint was loaded and steps went on rising."""
    if where.counted or not len(resumes):
        return
    for part in run.parts[:MAX_NOTES]:
        low, high = np.searchsorted(resumes, (part.start, part.stop))
        for mark in resumes[low : min(high, low + MAX_NOTES)].tolist():
            k = int(np.searchsorted(lead.at, mark))
            piece = int(lead.at[k]) if k < len(lead.at) else part.stop
            if piece >= part.stop:
                continue
            step = int(where.at[piece]) + part.shift
            if part.first < piece:
                run.note(f"a checkpoint was loaded before step {step:,}")
            elif part is run.parts[0] and step > 1:
                run.note(f"the run begins from a checkpoint, at step {step:,}")

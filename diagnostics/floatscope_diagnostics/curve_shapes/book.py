"""The curves of a run: a summary of every scalar of the lowest rank, one set for each segment.

Rows wait until there are enough of them to be summed up at once; reading and saving sum up what waits, which
changes nothing, since the bins depend on the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.curve_shapes.bins import Curve, Series

DETAILED = ("loss", "eval_loss", "grad_norm", "lr", "loss_scale", "skipped_steps")
DETAILED_BINS, OTHER_BINS = 1024, 32
MAX_OTHERS = 64  # further scalars with a summary, those that came first
MAX_SEGMENTS = 12  # the first third tells how the run began, the rest its state
MAX_SEAMS = 64
WAITING_VALUES = 1 << 18  # 2 MB of rows wait at most
ROWS_AT_ONCE = 1 << 15  # what fits the cache


@dataclass(slots=True)
class Seam:
    """Steps went back. segment: that began.  last_step: before.  next_step: first after."""

    segment: int
    last_step: int
    next_step: int


@dataclass(frozen=True)
class SegmentCurves:
    """The curves of one life of the run, by name. rows: its rows.  first_step, last_step: of all rows."""

    segment: int
    rows: int
    first_step: int
    last_step: int
    curves: Mapping[str, Curve]

    def get(self, name: str) -> Curve | None:
        found = self.curves.get(name)
        return found if found is not None and len(found) else None


@dataclass(slots=True)
class _Segment:
    number: int
    rows: int = 0
    first_step: int = 0
    last_step: int = 0
    series: dict[str, Series] = field(default_factory=dict)


@dataclass(frozen=True)
class _Rows:
    names: tuple[str, ...]
    segment: int | None
    step: NDArray[np.int64]
    values: NDArray[np.float64]
    present: NDArray[np.bool_]


class CurveBook:
    """Curves of the lowest rank that has sent rows, of runs without tensor statistics.

    With tensor statistics the tensors are judged and nothing is kept here.
    """

    def __init__(self) -> None:
        self.rank: int | None = None
        self.closed = False
        self.segments: list[_Segment] = []
        self.seams: list[Seam] = []
        self.seam_count = 0
        self._waiting: list[_Rows] = []
        self._waiting_values = 0

    def feed(self, batch: Batch, *, rank: int, segment: int | None = None) -> None:
        """Takes every row of a batch."""
        if self.closed or not len(batch):
            return
        if batch.tensor_names:
            self.__init__()  # type: ignore[misc]
            self.closed = True
            return
        if self.rank is None or rank < self.rank:
            self.__init__()  # type: ignore[misc]
            self.rank = rank
        elif rank > self.rank:
            return
        asked = segment if segment is not None else batch.segment
        rows = _Rows(batch.scalar_names, asked, batch.step, batch.scalars, batch.scalars_present)
        self._waiting.append(rows)
        self._waiting_values += len(batch) * (len(batch.scalar_names) + 1)
        if self._waiting_values >= WAITING_VALUES:
            self._sum_up()

    def lives(self) -> tuple[SegmentCurves, ...]:
        """The curves so far, one set for each segment kept."""
        self._sum_up()
        return tuple(
            SegmentCurves(
                s.number,
                s.rows,
                s.first_step,
                s.last_step,
                {name: series.curve(name, s.number, s.rows) for name, series in s.series.items()},
            )
            for s in self.segments
            if s.rows
        )

    def state(self) -> dict[str, Any]:
        self._sum_up()
        return {
            "rank": self.rank,
            "closed": self.closed,
            "seams": [[s.segment, s.last_step, s.next_step] for s in self.seams],
            "seam_count": self.seam_count,
            "segments": [
                {
                    "plain": [s.number, s.rows, s.first_step, s.last_step],
                    "names": list(s.series),
                    "series": [x.state() for x in s.series.values()],
                }
                for s in self.segments
            ],
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> CurveBook:
        out = cls()
        out.rank = None if state["rank"] is None else int(state["rank"])
        out.closed = bool(state["closed"])
        out.seams = [Seam(*(int(v) for v in s)) for s in state["seams"]]
        out.seam_count = int(state["seam_count"])
        for saved in state["segments"]:
            number, rows, first, last = (int(v) for v in saved["plain"])
            segment = _Segment(number, rows, first, last)
            segment.series = {
                str(n): Series.load(s) for n, s in zip(saved["names"], saved["series"], strict=True)
            }
            out.segments.append(segment)
        return out

    def _sum_up(self) -> None:
        waiting, self._waiting, self._waiting_values = self._waiting, [], 0
        for rows in _joined(waiting):
            if rows.segment is not None and (not self.segments or rows.segment > self.segments[-1].number):
                self._begin(rows.segment, int(rows.step[0]))
            elif not self.segments or (
                self.segments[-1].rows and int(rows.step[0]) <= self.segments[-1].last_step
            ):
                self._begin(self.segments[-1].number + 1 if self.segments else 0, int(rows.step[0]))
            borders = [0, *(np.flatnonzero(np.diff(rows.step) <= 0) + 1).tolist(), len(rows.step)]
            for start, stop in pairwise(borders):
                if start:
                    self._begin(self.segments[-1].number + 1, int(rows.step[start]))
                for part in range(start, stop, ROWS_AT_ONCE):
                    self._add(rows, part, min(part + ROWS_AT_ONCE, stop))

    def _begin(self, number: int, step: int) -> None:
        if self.segments:
            self.seams = [*self.seams, Seam(number, self.segments[-1].last_step, step)][-MAX_SEAMS:]
            self.seam_count += 1
        self.segments.append(_Segment(number))
        if len(self.segments) > MAX_SEGMENTS:
            del self.segments[MAX_SEGMENTS // 3]

    def _add(self, rows: _Rows, start: int, stop: int) -> None:
        segment = self.segments[-1]
        step = rows.step[start:stop]
        index = np.arange(segment.rows, segment.rows + len(step))
        if segment.rows == 0:
            segment.first_step = int(step[0])
        segment.rows += len(step)
        segment.last_step = int(step[-1])
        present = rows.present[start:stop]
        full = np.logical_and.reduce(present, axis=0)
        some = np.logical_or.reduce(present, axis=0)
        begins = present.argmax(axis=0)
        order = sorted(np.flatnonzero(some).tolist(), key=lambda k: (begins[k], rows.names[k]))
        for k in order:
            series = self._series(segment, rows.names[k])
            if series is None:
                continue
            values = rows.values[start:stop, k]
            if full[k]:
                series.add(step, index, np.ascontiguousarray(values))
            else:
                here = np.flatnonzero(present[:, k])
                series.add(step[here], index[here], values[here])

    def _series(self, segment: _Segment, name: str) -> Series | None:
        known = segment.series.get(name)
        if known is None:
            if name in DETAILED:
                known = Series(DETAILED_BINS)
            elif sum(n not in DETAILED for n in segment.series) < MAX_OTHERS:
                known = Series(OTHER_BINS)
            else:
                return None
            segment.series[name] = known
        return known


def _joined(waiting: Sequence[_Rows]) -> Iterator[_Rows]:
    """Neighbouring rows with the same columns as one."""
    group: list[_Rows] = []
    for rows in waiting:
        if group and (rows.names, rows.segment) != (group[0].names, group[0].segment):
            yield _one(group)
            group = []
        group.append(rows)
    if group:
        yield _one(group)


def _one(group: list[_Rows]) -> _Rows:
    if len(group) == 1:
        return group[0]
    return _Rows(
        group[0].names,
        group[0].segment,
        np.concatenate([r.step for r in group]),
        np.concatenate([r.values for r in group]),
        np.concatenate([r.present for r in group]),
    )

"""From the pieces of one run to its rows: pieces that share a step are one row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.readers.counting import Positions
from floatscope_diagnostics.readers.piece import EVAL, EVENT, TRAIN
from floatscope_diagnostics.readers.records import MAX_STEP
from floatscope_diagnostics.readers.splitting import Part, Run
from floatscope_diagnostics.readers.table import KINDS, NONE, Bool, Float64, Int64, Table

Int32 = NDArray[np.int32]

ROWS_A_BATCH = 1 << 16
CELLS_A_BATCH = 1 << 20  # rows times names; 8 MiB of float64
MAX_RANKS_KEPT = 1_024
MAX_NAME_CHARS = 200
EVENT_WEIGHT = 0
SAME_STEPS = 1.5  # ranks a step from which ranks are ranks and not one voice that moves about


@dataclass(frozen=True)
class Columns:
    """Values of one schema of a run. row: int64 [M], ascending.  values: float64 [M] a name."""

    row: Int64
    values: dict[str, Float64]


@dataclass(frozen=True)
class Rows:
    """Rows of one rank. step: int64 [T].  part: int32 [T], a new part where steps fall back.

    columns: later ones win over earlier ones.  repeated: records that were merged into another of the same
    step.
    """

    step: Int64
    part: Int32
    columns: list[Columns]
    repeated: int

    def batches(self, most: int) -> Iterator[Batch]:
        """The rows in batches of at most ``most``, none across a part."""
        names = sorted({name for c in self.columns for name in c.values})
        size = max(1, min(most, CELLS_A_BATCH // max(1, len(names))))
        edges = [0, *(np.flatnonzero(np.diff(self.part)) + 1).tolist(), len(self.step)]
        for low, high in pairwise(edges):
            for start in range(low, high, size):
                yield self._batch(names, start, min(start + size, high))

    def _batch(self, names: list[str], start: int, stop: int) -> Batch:
        index = {name: k for k, name in enumerate(names)}
        values = np.zeros((stop - start, len(names)))
        present = np.zeros((stop - start, len(names)), bool)
        for columns in self.columns:
            low, high = np.searchsorted(columns.row, (start, stop))
            if low == high:
                continue
            at = columns.row[low:high] - start
            for name, column in columns.values.items():
                values[at, index[name]] = column[low:high]
                present[at, index[name]] = True
        used: Bool = np.asarray(present.any(axis=0), bool)
        time = np.full(stop - start, np.nan)
        if "time" in index:  # Unix seconds are a row's place, not a curve
            column = values[:, index["time"]]
            time = np.where(present[:, index["time"]] & np.isfinite(column), column, np.nan)
            used[index["time"]] = False
        return Batch(
            step=self.step[start:stop],
            time=time,
            scalar_names=tuple(n for n, u in zip(names, used.tolist(), strict=True) if u),
            scalars=values[:, used],
            scalars_present=present[:, used],
        )


def rows_of(table: Table, where: Positions, run: Run) -> dict[int, Rows]:
    """The rows of each rank; one rank, 0, where ranks are not told apart."""
    start, stop = run.parts[0].start, run.parts[-1].stop
    at = np.full(stop - start, NONE, np.int64)
    part = np.zeros(stop - start, np.int32)
    for k, piece in enumerate(run.parts):
        inside = slice(piece.start - start, piece.stop - start)
        at[inside] = _placed(table, where, piece)
        part[inside] = k
    if where.counted:
        first = int(where.at[run.parts[0].first])
        before = where.at[start : run.parts[0].first]
        first = min([first, *before[before != NONE].tolist()])
        at = np.where(at == NONE, NONE, at - first + 1)
        part[:] = 0
    at[(at < 0) | (at >= MAX_STEP)] = NONE
    valued = np.array([bool(s.names) for s in table.schemas], bool)
    at[~valued[table.schema[start:stop]]] = NONE
    ranks = _ranks(table, where, run, at, part)
    out: dict[int, Rows] = {}
    for rank in np.unique(ranks).tolist():
        mine = (ranks == rank) & (at != NONE)
        rows = _rank_rows(table, where, start, at, part, mine)
        if len(rows.step):
            out[rank] = rows
    return out


def _placed(table: Table, where: Positions, part: Part) -> Int64:
    """Steps of all pieces of a part, int64; NONE for headers."""
    inside = slice(part.start, part.stop)
    at = where.at[inside].copy()
    lead = np.flatnonzero(where.lead[inside])
    steps = at[lead]
    known = at != NONE
    kind = table.kind[inside]  # of the part alone: there may be thousands
    train, evals, events = (kind == KINDS.index(k) for k in (TRAIN, EVAL, EVENT))
    late = np.flatnonzero(evals & ~known)
    if late.size:
        at[late] = steps[np.maximum(np.searchsorted(lead, late) - 1, 0)]
    late = np.flatnonzero(train & ~known)
    if late.size:
        at[late] = _between(table, part.start, late, lead, steps)
    waiting = np.flatnonzero(events & ~known)
    if waiting.size:
        at[waiting] = _spread(table, inside, waiting, lead, steps)
    at[at != NONE] += part.shift
    return at


def _between(table: Table, start: int, late: Int64, lead: Int64, steps: Int64) -> Int64:
    """Steps of records that print none among others that do: that of the record before them, and on from
    there where several of one kind follow it."""
    gap = np.searchsorted(lead, late)
    schema = table.schema[start + late]
    leading = {table.schemas[k].names for k in set(table.schema[start + lead].tolist())}
    alike = np.array([bool(s.names) and s.names in leading for s in table.schemas], bool)[schema]
    _, group = np.unique(np.stack([gap, schema]), axis=1, return_inverse=True)
    group = group.ravel()
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], group, side="left")
    number = np.empty(len(late), np.int64)
    number[order] = np.arange(len(late))
    number -= first
    total = np.bincount(group)[group]
    before = steps[np.maximum(gap - 1, 0)]
    width = np.where(gap < len(lead), steps[np.minimum(gap, len(lead) - 1)] - before, total)
    inside = before + np.maximum(width, 0) * (number + alike) // (total + alike)
    alone = alike | np.isin(schema, schema[gap > 0])  # records of their own, not parts of the first
    ahead = np.where(alone, np.maximum(steps[0] - total + number, 0), steps[0])
    return np.asarray(np.where(gap > 0, inside, ahead), np.int64)


def _spread(table: Table, inside: slice, events: Int64, lead: Int64, steps: Int64) -> Int64:
    """Steps of events: evenly between the record before and the record after, the last on the latter; after
    the last record one step each. A bar on the line that fits in between says it better."""
    gap = np.searchsorted(lead, events)
    first = np.searchsorted(gap, gap, side="left")
    number = np.arange(len(events)) - first + 1
    total = np.searchsorted(gap, gap, side="right") - first
    before = np.where(gap > 0, steps[np.maximum(gap - 1, 0)], np.maximum(steps[0] - total, -1))
    after = np.where(gap < len(lead), steps[np.minimum(gap, len(lead) - 1)], before + total)
    after = np.maximum(after, before)
    width = after - before
    out = before + np.maximum(-(-number * width // np.maximum(total, 1)), np.minimum(width, 1))
    if table.batch is not None:
        bar = table.batch[inside][events]
        fits = (bar != NONE) & (bar >= before) & ((bar <= after) | (gap == len(lead)))
        out = np.where(fits, bar, out)
    return np.asarray(out, np.int64)


def _ranks(table: Table, where: Positions, run: Run, at: Int64, part: Int32) -> Int64:
    """The rank of each piece of the run, all 0 where they are not to be told apart."""
    start, stop = run.parts[0].start, run.parts[-1].stop
    one = np.zeros(stop - start, np.int64)
    if table.rank is None:
        return one
    rank = table.rank[start:stop]
    lead = where.lead[start:stop] & (at != NONE)
    named = lead & (rank != NONE)
    known = np.unique(rank[named])
    if len(known) < 2 or len(known) > MAX_RANKS_KEPT or known[0] < 0:
        return one
    keys = np.stack([part[named], at[named]])
    steps = np.unique(keys, axis=1).shape[1]
    pairs = np.unique(np.stack([*keys, rank[named]]), axis=1).shape[1]
    if pairs < SAME_STEPS * steps:
        run.note(f"{len(known):,} ranks take turns in printing: their lines are one run")
        return one
    if _say_the_same(table, start, np.flatnonzero(named), keys):
        run.note(f"{len(known):,} ranks print the same numbers: read once")
        return one
    return np.where(rank == NONE, known[0], np.where(np.isin(rank, known), rank, known[0]))


def _say_the_same(table: Table, start: int, named: Int64, keys: Int64) -> bool:
    """Whether the ranks print equal losses at nearly all steps."""
    loss = table.column("loss")[start + named]
    _, group = np.unique(keys, axis=1, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    group, loss = group.ravel()[order], loss[order]
    pairs = np.flatnonzero(np.diff(group) == 0)
    one, other = loss[pairs], loss[pairs + 1]
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return bool(len(pairs) and same.mean() > 0.95)


def _rank_rows(table: Table, where: Positions, start: int, at: Int64, part: Int32, mine: Bool) -> Rows:
    pieces = np.flatnonzero(mine)
    steps, parts = at[pieces], part[pieces]
    if not _sorted(steps, parts):
        order = np.lexsort((steps, parts))
        pieces, steps, parts = pieces[order], steps[order], parts[order]
    new = np.ones(len(steps), bool)
    new[1:] = (steps[1:] != steps[:-1]) | (parts[1:] != parts[:-1])
    row = np.full(len(at), -1, np.int64)
    row[pieces] = np.cumsum(new) - 1
    if not new.all():
        steps, parts = steps[new], parts[new]
    columns: list[Columns] = []
    repeated = 0
    broken: list[Columns] = []
    for weight, schema, lead in _by_weight(table, where, start, len(at)):
        low, high = np.searchsorted(table.order[schema], (start, start + len(at)))
        places = table.order[schema][low:high] - start
        rows = row[places]
        chosen = (rows >= 0) & (where.lead[start:][places] == lead)
        names = table.schemas[schema].names
        if not chosen.any() or not names:
            continue
        values = {shown(n): np.frombuffer(table.schemas[schema].values[n])[low:high] for n in names}
        if not chosen.all():
            rows, values = rows[chosen], {n: v[chosen] for n, v in values.items()}
        merged = _merged(rows, values)
        repeated += len(rows) - len(merged.row)
        columns.append(merged)
        if weight == EVENT_WEIGHT:
            broken += _broken(merged)
    return Rows(steps, parts, [*columns, *broken], repeated)


@lru_cache(maxsize=4096)
def shown(name: str) -> str:
    """A name of a log as a scalar may be called: without control characters, of bounded length."""
    clean = "".join(c if c.isprintable() else " " for c in name[:MAX_NAME_CHARS])
    return " ".join(clean.split()) or "unnamed"


def _broken(columns: Columns) -> list[Columns]:
    """The values that are not finite: an event that says NaN stands beside a finite value of its step."""
    out = []
    for name, column in columns.values.items():
        bad = ~np.isfinite(column)
        if bad.any():
            out.append(Columns(columns.row[bad], {name: column[bad]}))
    return out


def _sorted(steps: Int64, parts: Int32) -> bool:
    return bool(((parts[1:] > parts[:-1]) | (steps[1:] >= steps[:-1])).all())


def _by_weight(table: Table, where: Positions, start: int, size: int) -> list[tuple[int, int, bool]]:
    """(weight, schema, leading): events first, leading pieces last, so that these win on a shared row."""
    out: list[tuple[int, int, bool]] = []
    weight = {EVENT: EVENT_WEIGHT, TRAIN: 1, EVAL: 2}
    for k, schema in enumerate(table.schemas):
        if schema.kind not in weight:
            continue
        low, high = np.searchsorted(table.order[k], (start, start + size))
        leading = where.lead[table.order[k][low:high]]
        if not leading.all():
            out.append((weight[schema.kind], k, False))
        if leading.any():
            out.append((3, k, True))
    return sorted(out)


def _merged(rows: Int64, values: dict[str, Float64]) -> Columns:
    """One value a row: the same if all agree; of two the later, or the one that is not finite; the mean of
    more (ranks, micro-batches)."""
    if (rows[1:] > rows[:-1]).all():
        return Columns(rows, values)
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    begin = np.flatnonzero(np.concatenate([[True], np.diff(rows) > 0]))
    count = np.diff(np.append(begin, len(rows)))
    last = begin + count - 1
    out: dict[str, Float64] = {}
    for name, unsorted in values.items():
        column = unsorted[order]
        value = column[last]
        first = column[begin]
        value = np.where(~np.isfinite(first), first, value)
        many = count > 2
        if many.any():
            with np.errstate(all="ignore"):
                low, high = np.minimum.reduceat(column, begin), np.maximum.reduceat(column, begin)
                mean = np.add.reduceat(column, begin) / count
            value = np.where(many & ~(low == high), mean, value)
        out[name] = value
    return Columns(rows[begin], out)

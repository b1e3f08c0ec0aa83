"""Rows of a table become batches: steps checked, rows of one step put together, ranks told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope.protocol.names import MAX_STEP
from floatscope_diagnostics.readers.columns_plan import Plan
from floatscope_diagnostics.readers.number_table import Table
from floatscope_diagnostics.readers.run_log import MAX_RANKS, ROWS_A_BATCH, Tally

Bool = NDArray[np.bool_]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

BATCH_ROWS = 1 << 16
UNIX_SECONDS = 1e8  # 1973: a smaller number is no time of day, but seconds since the start or of a step


@dataclass(frozen=True)
class _Rows:
    """step, rank: int64 [N].  time: float64 [N].  values: float64 [N, K].  present: bool [N, K]."""

    step: Int64
    rank: Int64
    time: Float64
    values: Float64
    present: Bool

    def at(self, index: Int64 | slice) -> _Rows:
        return _Rows(
            self.step[index], self.rank[index], self.time[index], self.values[index], self.present[index]
        )

    def then(self, more: _Rows) -> _Rows:
        return _Rows(
            np.concatenate([self.step, more.step]),
            np.concatenate([self.rank, more.rank]),
            np.concatenate([self.time, more.time]),
            np.concatenate([self.values, more.values]),
            np.concatenate([self.present, more.present]),
        )


class TableRows:
    """Takes the tables of one input in order."""

    def __init__(self, plan: Plan, tally: Tally, *, clock: str = "curve/time") -> None:
        self.plan = plan
        self.tally = tally
        self.count = 0  # rows taken
        self._names = (*plan.scalars, *plan.sums, *((clock,) if plan.time is not None else ()))
        self._held: _Rows | None = None
        self._unix: bool | None = None

    def sound(self, table: Table) -> bool:
        """Whether every row says where it stands, so that none has to be named in a message."""
        return bool(self._standing(table).all())

    def take(self, table: Table) -> Iterator[tuple[int, Batch]]:
        """Batches of the rows so far; the last one is held back, since the next may belong to its step."""
        good = self._standing(table)
        if not good.all():
            for row in np.flatnonzero(~good).tolist():
                line = int(table.lines[row]) if table.lines is not None else row + 1
                self.tally.skip(line, self._why(table, row))
            table = Table(table.values[good], table.present[good], None)
        rows = self._rows(table)
        self.count += len(rows.step)
        if self._held is not None:
            rows = self._held.then(rows)
        if not len(rows.step):
            return
        rows = self._merged(rows)
        self._held = rows.at(slice(len(rows.step) - 1, None))
        yield from self._batches(rows.at(slice(0, len(rows.step) - 1)))

    def flush(self) -> Iterator[tuple[int, Batch]]:
        """The row that was held back."""
        if self._held is not None:
            yield from self._batches(self._held)
        self._held = None

    def _axis(self) -> int | None:
        return self.plan.step if self.plan.step is not None else self.plan.epoch

    def _standing(self, table: Table) -> Bool:
        good = np.ones(len(table.values), bool)
        for column, most in ((self._axis(), MAX_STEP), (self.plan.rank, MAX_RANKS - 1)):
            if column is None:
                continue
            value, here = table.values[:, column], table.present[:, column]
            with np.errstate(invalid="ignore"):
                whole = here & (value >= 0) & (value <= most) & (value == np.floor(value))
            good &= whole | ~here if column == self.plan.rank else whole
        return good

    def _why(self, table: Table, row: int) -> str:
        axis, rank = self._axis(), self.plan.rank
        if axis is not None and not table.present[row, axis]:
            return "no step number"
        if axis is not None:
            value = table.values[row, axis]
            if not (0 <= value <= MAX_STEP and value == np.floor(value)):
                return f"the step is {value:g}, expected a whole number from 0"
        value = table.values[row, rank] if rank is not None else np.nan
        return f"rank is {value:g}, expected a whole number from 0"

    def _rows(self, table: Table) -> _Rows:
        plan, count = self.plan, len(table.values)
        axis = self._axis()
        step = np.arange(self.count, self.count + count)
        if axis is not None:
            step = table.values[:, axis].astype(np.int64)
        rank = np.zeros(count, np.int64)
        if plan.rank is not None:
            rank = np.where(table.present[:, plan.rank], table.values[:, plan.rank], 0).astype(np.int64)
        values = np.zeros((count, len(self._names)))
        present = np.zeros(values.shape, bool)
        for k, columns in enumerate(plan.scalars.values()):
            for c in columns:
                fresh = table.present[:, c] & ~present[:, k]
                values[fresh, k] = table.values[fresh, c]
                present[:, k] |= fresh
        for k, columns in enumerate(plan.sums.values(), start=len(plan.scalars)):
            index = list(columns)
            present[:, k] = table.present[:, index].all(axis=1)
            values[:, k] = np.where(present[:, k], table.values[:, index].sum(axis=1), 0.0)
        time = np.full(count, np.nan)
        if plan.time is not None:
            clock, here = table.values[:, plan.time], table.present[:, plan.time]
            if self._unix is None and here.any():
                self._unix = bool(clock[here][0] >= UNIX_SECONDS)
            if self._unix:
                time = np.where(here & np.isfinite(clock), clock, np.nan)
            else:
                values[:, -1], present[:, -1] = np.where(here, clock, 0.0), here
        return _Rows(step, rank, time, values, present)

    def _merged(self, rows: _Rows) -> _Rows:
        """Rows of one step and rank, one after the other, as one: the last value of each scalar counts."""
        fresh = np.ones(len(rows.step), bool)
        fresh[1:] = (np.diff(rows.step) != 0) | (np.diff(rows.rank) != 0)
        if fresh.all():
            return rows
        starts = np.flatnonzero(fresh)
        ends = np.append(starts[1:], len(fresh)) - 1
        values, present = rows.values[ends], rows.present[ends]
        twice = False
        epoch = self.plan.epoch
        for k, name in enumerate(self._names):
            here = rows.present[:, k]
            last = np.maximum.accumulate(np.where(here, np.arange(len(here)), -1))[ends]
            present[:, k] = last >= starts
            values[:, k] = np.where(present[:, k], rows.values[np.maximum(last, 0), k], 0.0)
            if epoch is None or epoch not in self.plan.scalars.get(name, ()):
                twice = twice or bool((np.add.reduceat(here.astype(np.int64), starts) > 1).any())
        if twice:
            self.tally.note("several rows of one step and rank: the last value counts")
        return _Rows(rows.step[ends], rows.rank[ends], rows.time[ends], values, present)

    def _batches(self, rows: _Rows) -> Iterator[tuple[int, Batch]]:
        """In parts. Ranks wait for each other for 64 steps only, so theirs are cut short and interleave."""
        many = self.plan.rank is not None
        size = ROWS_A_BATCH if many else BATCH_ROWS
        for start in range(0, len(rows.step), size):
            part = rows.at(slice(start, start + size))
            for rank in np.unique(part.rank).tolist():
                mine = part.at(np.flatnonzero(part.rank == rank)) if many else part
                yield rank, self._batch(mine)

    def _batch(self, rows: _Rows) -> Batch:
        used = np.flatnonzero(rows.present.any(axis=0))
        return Batch(
            step=rows.step,
            time=rows.time,
            scalar_names=tuple(self._names[k] for k in used),
            scalars=rows.values[:, used],
            scalars_present=rows.present[:, used],
        )

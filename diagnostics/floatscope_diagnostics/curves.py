"""Thinned series of a run for pictures: at most POINTS bins a series, whatever the length of the run.

Bins keep the least, the greatest and the mean of their finite values and count NaN and Inf, so that no spike
and no bad value gets lost. They do not depend on how the run was cut into batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch

POINTS = 512
ROWS_AT_ONCE = 8192  # rows gathered before they are thinned: a batch may hold 64
NAMES = ("loss", "eval_loss", "ref_loss", "grad_norm", "lr", "loss_scale")
OTHERS = 4  # scalars drawn of a run that logs none of NAMES
NOT_DRAWN = ("resumed", "data_id", "epoch")
WORST = {"overflow_pct": "clipped %", "underflow_pct": "underflow %"}
MOST_SEAMS = 64
LARGEST = 1e100  # values beyond are drawn here; their mean stays finite

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Column = NDArray[Any]


@dataclass
class Curve:
    """Bins of a series, each of the same number of its values; all arrays [bins].

    row: rows of the run before the bin's first value.  step: its step.  low, high, last: of the finite
    values, NaN where a bin has none.  nan, inf: how many of its values are.
    """

    row: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    step: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    low: F64 = field(default_factory=lambda: np.empty(0))
    high: F64 = field(default_factory=lambda: np.empty(0))
    last: F64 = field(default_factory=lambda: np.empty(0))
    total: F64 = field(default_factory=lambda: np.empty(0))
    finite: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    nan: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    inf: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    first_value: float = float("nan")
    last_value: float = float("nan")
    count: int = 0
    _width: int = 1

    def __len__(self) -> int:
        return len(self.step)

    @property
    def mean(self) -> F64:
        """Mean of the finite values of each bin, NaN where there are none."""
        empty: F64 = np.full(len(self), np.nan)
        return np.divide(self.total, self.finite, out=empty, where=self.finite > 0)

    @property
    def bad(self) -> NDArray[np.bool_]:
        """Bins with a value that is not finite."""
        return (self.nan + self.inf) > 0

    def add(self, row: I64, step: I64, value: F64) -> None:
        """Takes values in order, with their rows and steps."""
        if not len(value):
            return
        if not self.count:
            self.first_value = float(value[0])
        self.last_value = float(value[-1])
        room = -self.count % self._width  # values the last bin still takes
        self.count += len(value)
        while self.count > POINTS * self._width:
            room += self._merge(room)
        starts = np.arange(room, len(value), self._width)
        if room:
            starts = np.concatenate(([0], starts))
        is_finite = np.isfinite(value)
        shown = np.where(is_finite, np.clip(value, -LARGEST, LARGEST), np.nan)
        position = np.where(is_finite, np.arange(len(value)), -1)
        latest = np.maximum.reduceat(position, starts)
        is_nan = np.isnan(value)
        new = (
            row[starts],
            step[starts],
            np.fmin.reduceat(shown, starts),
            np.fmax.reduceat(shown, starts),
            np.where(latest >= starts, shown[latest], np.nan),
            np.add.reduceat(np.where(is_finite, shown, 0.0), starts),
            np.add.reduceat(is_finite, starts, dtype=np.int64),
            np.add.reduceat(is_nan, starts, dtype=np.int64),
            np.add.reduceat(~is_finite & ~is_nan, starts, dtype=np.int64),
        )
        self._join(new, into_last=bool(room))

    def _join(self, new: tuple[Column, ...], *, into_last: bool) -> None:
        joined = [np.concatenate(pair) for pair in zip(self._columns(), new, strict=True)]
        if into_last:
            at = len(self) - 1
            joined = [np.delete(_folded(k, column, at), at + 1) for k, column in enumerate(joined)]
        self._set(joined)

    def _merge(self, room: int) -> int:
        """Makes pairs of bins one. Returns by how much the room of the last bin grows; ``room`` is what it
        was."""
        odd = len(self) % 2
        grown = self._width if odd else 0
        columns = self._columns()
        if odd:
            fill = (0, 0, np.nan, np.nan, np.nan, 0.0, 0, 0, 0)
            columns = [np.append(c, np.array([f], c.dtype)) for c, f in zip(columns, fill, strict=True)]
        self._set([_paired(k, column) for k, column in enumerate(columns)])
        self._width *= 2
        return grown

    def _columns(self) -> list[Column]:
        return [
            self.row,
            self.step,
            self.low,
            self.high,
            self.last,
            self.total,
            self.finite,
            self.nan,
            self.inf,
        ]

    def _set(self, columns: list[Column]) -> None:
        (self.row, self.step, self.low, self.high, self.last, self.total, self.finite, self.nan, self.inf) = (
            columns
        )


def _combine(column: int, a: Column, b: Column) -> Column:
    """Columns of one bin from those of its two parts, in the order of ``Curve._columns``."""
    if column < 2:
        return a
    joined: Column
    if column == 2:
        joined = np.fmin(a, b)
    elif column == 3:
        joined = np.fmax(a, b)
    else:
        joined = np.where(np.isnan(b), a, b) if column == 4 else np.add(a, b)
    return joined


def _paired(column: int, values: Column) -> Column:
    return _combine(column, values[::2], values[1::2])


def _folded(column: int, values: Column, at: int) -> Column:
    values[at : at + 1] = _combine(column, values[at : at + 1], values[at + 1 : at + 2])
    return values


class Curves:
    """Scalars people look at and the worst clipping and underflow of any tensor, of the rank that is first in
    the log."""

    def __init__(self) -> None:
        self._series: dict[str, Curve] = {}
        self._steps = Curve()
        self._rank: int | None = None
        self._rows = 0
        self._last_step: int | None = None
        self._seams: list[int] = []
        self._held: list[Batch] = []
        self._held_rows = 0

    def add(self, rank: int, batch: Batch) -> None:
        """Takes the next batch of a rank."""
        if self._rank is None:
            self._rank = rank
        if rank != self._rank or not len(batch):
            return
        if len(batch) > ROWS_AT_ONCE:  # parts that fit the processor's cache are thinned twice as fast
            for start in range(0, len(batch), ROWS_AT_ONCE):
                self.add(rank, batch.rows(start, start + ROWS_AT_ONCE))
            return
        self._held.append(batch)
        self._held_rows += len(batch)
        if self._held_rows >= ROWS_AT_ONCE or len(batch.stat_row):
            self._thin()

    @property
    def series(self) -> dict[str, Curve]:
        """By name, in the order in which they are drawn."""
        self._thin()
        order = [*NAMES, *(n for n in self._series if n not in NAMES)]
        return {n: self._series[n] for n in order if n in self._series}

    @property
    def seams(self) -> tuple[int, ...]:
        """Rows at which the steps go back (the first MOST_SEAMS)."""
        self._thin()
        return tuple(self._seams)

    def x(self, curve: Curve) -> F64:
        """Where the bins of a curve lie: at their steps, or at their rows where the steps go back."""
        return (curve.row if self.seams else curve.step).astype(np.float64)

    def span(self) -> tuple[float, float]:
        """First and last x of the run."""
        self._thin()
        if self._seams:
            return 0.0, float(max(self._rows - 1, 0))
        first = float(self._steps.step[0]) if len(self._steps) else 0.0
        return first, float(self._last_step if self._last_step is not None else first)

    def ends(self) -> tuple[int, int] | None:
        """The step of the first row and of the last."""
        self._thin()
        if self._last_step is None:
            return None
        return int(self._steps.step[0]), self._last_step

    def at(self, step: int, segment: int = 0) -> float:
        """Where a step of a segment lies."""
        if not self.seams:
            return float(step)
        bounds = [0, *self._seams, self._rows]
        k = min(max(segment, 0), len(bounds) - 2)
        inside = (self._steps.row >= bounds[k]) & (self._steps.row < bounds[k + 1])
        rows, steps = self._steps.row[inside], self._steps.step[inside]
        if not len(rows):
            return float(bounds[k])
        return float(np.interp(step, np.maximum.accumulate(steps), rows))

    def step_at(self, x: float) -> int:
        """The step that lies at x."""
        if not self.seams:
            return round(x)
        at = int(np.searchsorted(self._steps.row, x, side="right")) - 1
        return int(self._steps.step[max(at, 0)])

    def _thin(self) -> None:
        held, self._held, self._held_rows = self._held, [], 0
        while held:
            names = held[0].scalar_names
            alike = next((k for k, b in enumerate(held) if b.scalar_names != names), len(held))
            self._thin_alike(held[:alike])
            held = held[alike:]

    def _thin_alike(self, batches: list[Batch]) -> None:
        """Batches with the same scalars."""
        step = np.concatenate([b.step for b in batches])
        row = self._rows + np.arange(len(step))
        before = step[0] - 1 if self._last_step is None else self._last_step
        back = np.flatnonzero(np.diff(step, prepend=before) <= 0)
        self._seams += row[back][: MOST_SEAMS - len(self._seams)].tolist()
        self._steps.add(row, step, step.astype(np.float64))
        for k, name in self._drawn(batches[0].scalar_names):
            here = np.concatenate([b.scalars_present[:, k] for b in batches])
            value = np.concatenate([b.scalars[:, k] for b in batches])
            self._series.setdefault(name, Curve()).add(row[here], step[here], value[here])
        for batch in batches:
            if len(batch.stat_row):
                self._worst(batch)
            self._rows += len(batch)
        self._last_step = int(step[-1])

    def _drawn(self, names: tuple[str, ...]) -> list[tuple[int, str]]:
        known = [(k, n) for k, n in enumerate(names) if n in NAMES]
        if "loss" in names or "loss" in self._series:
            return known
        others = [n for n in self._series if n not in NAMES and n not in WORST.values()]
        room = OTHERS - len(others)
        fresh = [n for n in names if n not in NAMES and n not in others and n not in NOT_DRAWN]
        fresh.sort(key=lambda n: "loss" not in n.lower())
        taken = {*others, *fresh[: max(room, 0)]}
        return known + [(k, n) for k, n in enumerate(names) if n in taken]

    def _worst(self, batch: Batch) -> None:
        """The largest value of any tensor at each step that has statistics."""
        for stat, name in WORST.items():
            values, present = batch.stat(stat)
            if present.any():
                worst = np.where(present & np.isfinite(values), values, -np.inf).max(axis=1)
                seen = np.isfinite(worst)
                rows = batch.stat_row[seen]
                curve = self._series.setdefault(name, Curve())
                curve.add(self._rows + rows, batch.step[rows], worst[seen].astype(np.float64))

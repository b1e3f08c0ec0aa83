"""A series as bins of 2^k points, merged in pairs as it grows: exact while short, bounded for ever.

Bin i holds the points from i * width on, so the bins depend on the points alone and not on how they came.
Values are kept to the precision of float32: then sums of them in float64 are exact for a million points of a
usual range, whatever the order of addition (24 of 53 bits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

NEVER = np.int64(1 << 62)
LARGEST = 1e30  # no scalar of a training run lies beyond it; sums of a million of them stay finite
_KEPT_BITS = ~np.int64((1 << 29) - 1)  # float64 without the last 29 of its 52 bits of mantissa

# Rows of the integer table, by how two neighbouring bins become one.
_ADDED = ("points", "finite", "nan", "inf", "same")
_SMALLEST = ("first_step", "first_row", "bad_step")
_LARGEST = ("last_step", "last_row")
_AT = ("low_step", "high_step")
INTS = (*_ADDED, *_SMALLEST, *_LARGEST, *_AT)
FLOATS = ("total", "rough", "low", "high", "first", "last")
_A, _S, _L = len(_ADDED), len(_ADDED) + len(_SMALLEST), len(_ADDED) + len(_SMALLEST) + len(_LARGEST)


@dataclass(frozen=True)
class Curve:
    """The bins of one series, one entry a bin; all arrays have shape (bins,).

    points: all points; finite, nan, inf: of them.  same: points that repeat the finite one before exactly.
    first_step, last_step: of all points.  first_row, last_row: rows of the segment, so a series that stopped
    is seen.  bad_step: first point that is not finite, else NEVER.  low_step, high_step: where the extremes
    lie.  total: sum of the finite points.  rough: sum of absolute differences to the finite point before.
    first, last: finite points; NaN in a bin without one, and low, high are then +Inf and -Inf.  width: points
    of a full bin.  rows: rows of the segment, with or without this series.
    """

    name: str
    segment: int
    width: int
    rows: int
    points: Int64
    finite: Int64
    nan: Int64
    inf: Int64
    same: Int64
    first_step: Int64
    first_row: Int64
    bad_step: Int64
    last_step: Int64
    last_row: Int64
    low_step: Int64
    high_step: Int64
    total: Float64
    rough: Float64
    low: Float64
    high: Float64
    first: Float64
    last: Float64

    def __len__(self) -> int:
        return len(self.points)


class Series:
    """The growing summary of one series. capacity: bins kept, a power of two."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.width = 1
        self.count = 0
        self.newest = float("nan")  # the last finite point, as it came
        self.ints = np.zeros((len(INTS), 0), np.int64)
        self.floats = np.zeros((len(FLOATS), 0))

    def add(self, step: Int64, row: Int64, value: Float64) -> None:
        """Takes points in order: step, row in the segment and value, each of shape (points,)."""
        if not len(step):
            return
        ints, floats = self._points(step, row, value)
        begin = self.count
        self.count += len(step)
        while self.count > self.capacity * self.width:
            self.width *= 2
            if self.ints.shape[1]:
                starts = np.arange(0, self.ints.shape[1], 2)
                self.ints, self.floats = _merged(self.ints, self.floats, starts)
        if self.width > 1:
            to_border = -begin % self.width
            starts = np.arange(to_border, len(step), self.width)
            starts = starts if to_border == 0 else np.concatenate(([0], starts))
            ints, floats = _merged(ints, floats, starts)
            if begin % self.width:  # the first new bin goes on with the last old one
                ints = np.concatenate((self.ints[:, -1:], ints), axis=1)
                floats = np.concatenate((self.floats[:, -1:], floats), axis=1)
                starts = np.concatenate(([0], np.arange(2, ints.shape[1])))
                ints, floats = _merged(ints, floats, starts)
                self.ints, self.floats = self.ints[:, :-1], self.floats[:, :-1]
        self.ints = np.concatenate((self.ints, ints), axis=1)
        self.floats = np.concatenate((self.floats, floats), axis=1)

    def _points(self, step: Int64, row: Int64, value: Float64) -> tuple[Int64, Float64]:
        """Bins of one point each."""
        n = len(step)
        good = np.isfinite(value)
        here = np.flatnonzero(good)
        raw = value[here]
        rounded = (np.clip(raw, -LARGEST, LARGEST).view(np.int64) & _KEPT_BITS).view(np.float64)
        before = np.concatenate(([self.newest], raw))
        was = np.clip(before[:1], -LARGEST, LARGEST).view(np.int64) & _KEPT_BITS
        ints = np.zeros((len(INTS), n), np.int64)
        floats = np.zeros((len(FLOATS), n))
        table = dict(zip(INTS, ints, strict=True))
        table["points"][:] = 1
        table["finite"][:] = good
        table["nan"][:] = np.isnan(value)
        table["inf"][:] = np.isinf(value)
        table["same"][here] = raw == before[:-1]
        table["first_step"][:] = table["last_step"][:] = step
        table["low_step"][:] = table["high_step"][:] = step
        table["first_row"][:] = table["last_row"][:] = row
        table["bad_step"][:] = np.where(good, NEVER, step)
        total, rough, low, high, first, last = floats
        total[here] = rounded
        if len(here):
            change = np.abs(np.diff(rounded, prepend=was.view(np.float64)))
            rough[here] = np.where(np.isnan(change), 0.0, change)
            self.newest = float(raw[-1])
        low[:], high[:], first[:], last[:] = np.inf, -np.inf, np.nan, np.nan
        low[here] = high[here] = first[here] = last[here] = rounded
        return ints, floats

    def curve(self, name: str, segment: int, rows: int) -> Curve:
        arrays: dict[str, Any] = dict(zip((*INTS, *FLOATS), (*self.ints, *self.floats), strict=True))
        return Curve(name=name, segment=segment, width=self.width, rows=rows, **arrays)

    def state(self) -> dict[str, Any]:
        plain = {k: getattr(self, k) for k in ("capacity", "width", "count", "newest")}
        return {**plain, "ints": self.ints, "floats": self.floats}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Series:
        out = cls(int(state["capacity"]))
        for name in ("width", "count", "newest", "ints", "floats"):
            setattr(out, name, state[name])
        return out


def _merged(ints: Int64, floats: Float64, starts: Int64) -> tuple[Int64, Float64]:
    """Neighbouring bins put together; starts: (groups,), the first bin of each group, ascending from 0."""
    bins = ints.shape[1]
    out_i = np.empty((len(INTS), len(starts)), np.int64)
    out_f = np.empty((len(FLOATS), len(starts)))
    out_i[:_A] = np.add.reduceat(ints[:_A], starts, axis=1)
    out_i[_A:_S] = np.minimum.reduceat(ints[_A:_S], starts, axis=1)
    out_i[_S:_L] = np.maximum.reduceat(ints[_S:_L], starts, axis=1)
    out_f[:2] = np.add.reduceat(floats[:2], starts, axis=1)
    low, high = floats[2], floats[3]
    out_f[2], out_f[3] = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
    sizes = np.diff(starts, append=bins)
    for extreme, values, at in ((out_f[2], low, _L), (out_f[3], high, _L + 1)):
        there = np.where(values == np.repeat(extreme, sizes), ints[at], NEVER)
        out_i[at] = np.minimum.reduceat(there, starts)
    index = np.arange(bins)
    has = ints[1] > 0
    first = np.minimum.reduceat(np.where(has, index, bins), starts)
    last = np.maximum.reduceat(np.where(has, index, -1), starts)
    some = last >= 0
    out_f[4] = np.where(some, floats[4][np.minimum(first, bins - 1)], np.nan)
    out_f[5] = np.where(some, floats[5][last], np.nan)
    return out_i, out_f

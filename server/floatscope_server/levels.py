"""Levels: what a stretch of steps looks like from afar, without losing a spike, a NaN, an Inf or a gap.

A level of width w holds, per series and bin, the smallest, largest, mean and last finite value, the number of
values, and how many of them are NaN and Inf. Bin b holds the steps b * w to b * w + w - 1, so bins of
two levels, two chunks and two ranks fit together, and a picture does not jump when steps are added. Widths
are powers of four, so a bin of any power of two that is at least w is a union of whole bins of width w.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Bool, Float64, Int64

FACTOR = 4
FINEST = 16
THIN_ROWS = 32  # below so many rows a bin, a level has only what a heat map needs: the rest is quick to make
FEW_BINS = 4  # a chunk's levels end at so many bins
SHORT = 16
LEAST_ROWS = 8  # a bin of fewer rows than this saves nothing
_PER_SERIES = ("minimum", "maximum", "count", "nan", "inf", "mean", "last")  # in the order of Level


@dataclass(frozen=True, eq=False)
class Level:
    """S series in B bins of ``width`` steps.

    bins: int64 [B], ascending, the bins that hold a row. minimum, maximum, last: [S, B], over the finite
    values of the bin, NaN without any. mean: float64 [S, B]; mean and last are None in a thin level.
    count, nan, inf: int64 [S, B]; count: values that are present, of which nan are NaN and inf are infinite.
    """

    width: int
    bins: Int64
    minimum: NDArray[Any]
    maximum: NDArray[Any]
    count: Int64
    nan: Int64
    inf: Int64
    mean: Float64 | None = None
    last: NDArray[Any] | None = None

    def series(self, first: int, stop: int) -> Level:
        """Only the series from ``first`` up to, not including, ``stop``."""
        kept: dict[str, Any] = {
            name: None if (array := getattr(self, name)) is None else array[first:stop]
            for name in _PER_SERIES
        }
        return replace(self, **kept)


def widths(step: Int64) -> tuple[int, ...]:
    """The widths worth storing for rows at these steps (ascending), finest first."""
    out = []
    width = FINEST
    while len(step):
        bins = int(np.count_nonzero(np.diff(step // width))) + 1
        if bins * LEAST_ROWS <= len(step):
            out.append(width)
        if bins <= FEW_BINS:
            break
        width *= FACTOR
    return tuple(out)


def is_thin(rows: int, bins: int) -> bool:
    """Whether a level with so many bins for so many rows leaves out mean and last."""
    return rows < THIN_ROWS * bins


def summarise(step: Int64, values: NDArray[Any], present: Bool | None, width: int) -> Level:
    """The level of one width, from time-major values [T, S] at ascending steps [T]. present: None for all."""
    number = step // width
    bins = _Bins(number)
    rows = bins.rows
    finite = np.isfinite(values)
    shape = (len(rows), values.shape[1])
    if present is None:
        count = np.repeat(rows[:, None], values.shape[1], axis=1)
    else:
        finite &= present
        count = bins.reduce(np.add, present, dtype=np.int64)
    if finite.all():
        nan = inf = np.zeros(shape, np.int64)
        low = high = share = values
        last = values[bins.starts + rows - 1]
        good = count
    else:
        there = np.ones(values.shape, bool) if present is None else present
        nan, inf = (
            bins.reduce(np.add, odd, dtype=np.int64) if odd.any() else np.zeros(shape, np.int64)
            for odd in (np.isnan(values) & there, np.isinf(values) & there)
        )
        low, high = (np.where(finite, values, values.dtype.type(sign * np.inf)) for sign in (1, -1))
        good = count - nan - inf
        at = bins.reduce(np.maximum, np.where(finite, np.arange(len(step), dtype=np.int32)[:, None], -1))
        last = np.where(at >= 0, np.take_along_axis(values, np.maximum(at, 0), axis=0), np.nan)
        share = np.where(finite, values, values.dtype.type(0))
    none = good == 0
    return Level(
        width=width,
        bins=number[bins.starts],
        minimum=np.where(none, np.nan, bins.reduce(np.minimum, low)).T.astype(values.dtype),
        maximum=np.where(none, np.nan, bins.reduce(np.maximum, high)).T.astype(values.dtype),
        count=count.T,
        nan=nan.T,
        inf=inf.T,
        mean=np.where(none, np.nan, _mean(bins, share, good)).T,
        last=last.T.astype(values.dtype),
    )


def merge(parts: Sequence[Level], width: int) -> Level:
    """One level from levels of the same series in time order, each of a width that divides ``width``.

    Mean and last are there only if all parts have them.
    """
    number = np.concatenate([part.bins * part.width // width for part in parts])
    bins = _Bins(number)
    joined = {name: _side_by_side(parts, name) for name in _PER_SERIES}
    if len(bins.rows) == len(number):
        return Level(width=width, bins=number, **joined)
    count, nan, inf, mean, last = (joined[name] for name in ("count", "nan", "inf", "mean", "last"))
    good = count - nan - inf
    count = bins.reduce(np.add, count, axis=1)
    whole = bins.reduce(np.add, good, axis=1)
    if mean is not None:
        weight = good / np.maximum(np.repeat(whole, bins.rows, axis=1), 1)
        total = bins.reduce(np.add, np.where(good == 0, 0.0, mean) * weight, axis=1)
        mean = np.where(whole == 0, np.nan, total)
    if last is not None:
        at = bins.reduce(np.maximum, np.where(good > 0, np.arange(len(number)), -1), axis=1)
        latest = np.take_along_axis(last, np.maximum(at, 0), axis=1)
        last = np.where(at >= 0, latest, np.nan).astype(last.dtype)
    return Level(
        width=width,
        bins=number[bins.starts],
        minimum=bins.reduce(np.fmin, joined["minimum"], axis=1),
        maximum=bins.reduce(np.fmax, joined["maximum"], axis=1),
        count=count,
        nan=bins.reduce(np.add, nan, axis=1) if nan.any() else np.zeros(count.shape, np.int64),
        inf=bins.reduce(np.add, inf, axis=1) if inf.any() else np.zeros(count.shape, np.int64),
        mean=mean,
        last=last,
    )


class _Bins:
    """Runs of equal numbers in an ascending array. starts: where each begins. rows: how long it is."""

    def __init__(self, number: Int64) -> None:
        self.starts = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
        self.rows = np.diff(np.append(self.starts, len(number)))
        inner = self.rows[1:-1]
        self._even = len(inner) > 1 and bool((inner == inner[0]).all())

    def reduce(
        self, what: np.ufunc, array: NDArray[Any], *, axis: int = 0, dtype: Any = None
    ) -> NDArray[Any]:
        """``what`` of each bin. Bins of equal length are a dimension of their own, which numpy reduces about
        ten times as fast as by ``reduceat``, and without holding the interpreter's lock; only the first
        and the last may differ.
        """
        if not self._even:
            return np.asarray(what.reduceat(array, self.starts, axis=axis, dtype=dtype))
        first, last, length = self.starts[1], self.starts[-1], int(self.rows[1])
        bins = len(self.rows)
        before, inner, after = np.split(array, (first, last), axis=axis)
        shape = (*inner.shape[:axis], bins - 2, length, *inner.shape[axis + 1 :])
        return np.concatenate(
            [
                what.reduce(before, axis=axis, dtype=dtype, keepdims=True),
                _across(what, inner.reshape(shape), axis + 1, dtype),
                what.reduce(after, axis=axis, dtype=dtype, keepdims=True),
            ],
            axis=axis,
        )


def _across(what: np.ufunc, array: NDArray[Any], axis: int, dtype: Any) -> NDArray[Any]:
    """``what`` along an axis; along the last one, if that is short, step by step, not value by value."""
    if axis < array.ndim - 1 or array.shape[axis] > SHORT:
        return np.asarray(what.reduce(array, axis=axis, dtype=dtype))
    total = array[..., 0]
    for k in range(1, array.shape[axis]):
        total = what(total, array[..., k], dtype=dtype)
    return total


def _mean(bins: _Bins, share: NDArray[Any], good: Int64) -> Float64:
    """Values that do not count are 0 in ``share``. Sums of float32 fit into a float64; those of float64 might
    overflow, so they are divided first.
    """
    if share.dtype == np.float32:
        return bins.reduce(np.add, share, dtype=np.float64) / np.maximum(good, 1)
    return bins.reduce(np.add, share / np.repeat(np.maximum(good, 1), bins.rows, axis=0))


def _side_by_side(parts: Sequence[Level], name: str) -> Any:
    arrays = [getattr(part, name) for part in parts]
    if any(array is None for array in arrays):
        return None
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)

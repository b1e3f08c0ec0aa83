"""Levels: what a stretch of steps looks like from afar, without losing a spike, a NaN, an Inf or a gap.

A level of width w holds, per series and bin, the smallest, largest, mean and last finite value, the number of
values, and how many of them are NaN and Inf. Bin b holds the steps b * w to b * w + w - 1, so bins of
two levels, two chunks and two ranks fit together, and a picture does not jump when steps are added. Widths
are powers of four, so a bin of any power of two that is at least w is a union of whole bins of width w.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Bool, Float64, Int64

FACTOR = 4
FINEST = 16
THIN_ROWS = 32  # below so many rows a bin, a level has only what a heat map needs: the rest is quick to make
FEW_BINS = 4  # a chunk's levels end at so many bins
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
    starts = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    rows = np.diff(np.append(starts, len(step)))
    finite = np.isfinite(values)
    shape = (len(starts), values.shape[1])
    if present is None:
        count = np.repeat(rows[:, None], values.shape[1], axis=1)
    else:
        finite &= present
        count = np.add.reduceat(present, starts, axis=0, dtype=np.int64)
    if finite.all():
        nan = inf = np.zeros(shape, np.int64)
        low = high = values
        last = values[starts + rows - 1]
        share = values.astype(np.float64)
        good = rows[:, None]
    else:
        there = np.ones(values.shape, bool) if present is None else present
        nan = np.add.reduceat(np.isnan(values) & there, starts, axis=0, dtype=np.int64)
        inf = np.add.reduceat(np.isinf(values) & there, starts, axis=0, dtype=np.int64)
        low, high = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
        good = count - nan - inf
        at = np.maximum.reduceat(np.where(finite, np.arange(len(step))[:, None], -1), starts, axis=0)
        last = np.where(at >= 0, np.take_along_axis(values, np.maximum(at, 0), axis=0), np.nan)
        share = np.where(finite, values, 0.0).astype(np.float64)
    share = share / np.repeat(np.maximum(good, 1), rows, axis=0)  # before the sum, which could overflow
    none = good == 0
    return Level(
        width=width,
        bins=number[starts],
        minimum=np.where(none, np.nan, np.minimum.reduceat(low, starts, axis=0)).T.astype(values.dtype),
        maximum=np.where(none, np.nan, np.maximum.reduceat(high, starts, axis=0)).T.astype(values.dtype),
        count=count.T,
        nan=nan.T,
        inf=inf.T,
        mean=np.where(none, np.nan, np.add.reduceat(share, starts, axis=0)).T,
        last=last.T.astype(values.dtype),
    )


def merge(parts: Sequence[Level], width: int) -> Level:
    """One level from levels of the same series in time order, each of a width that divides ``width``.

    Mean and last are there only if all parts have them.
    """
    number = np.concatenate([part.bins * part.width // width for part in parts])
    starts = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    if len(starts) == len(number):
        return Level(
            width=width,
            bins=number,
            **{
                name: _side_by_side(parts, name)
                for name in Level.__dataclass_fields__
                if name not in ("width", "bins")
            },
        )
    count, nan, inf = (_side_by_side(parts, name) for name in ("count", "nan", "inf"))
    good = count - nan - inf
    whole = np.add.reduceat(good, starts, axis=1)
    mean, last = _side_by_side(parts, "mean"), _side_by_side(parts, "last")
    if mean is not None:
        weight = good / np.maximum(np.repeat(whole, np.diff(np.append(starts, len(number))), axis=1), 1)
        mean = np.where(
            whole == 0, np.nan, np.add.reduceat(np.where(good == 0, 0.0, mean) * weight, starts, axis=1)
        )
    if last is not None:
        at = np.maximum.reduceat(np.where(good > 0, np.arange(len(number)), -1), starts, axis=1)
        last = np.where(at >= 0, np.take_along_axis(last, np.maximum(at, 0), axis=1), np.nan).astype(
            last.dtype
        )
    return Level(
        width=width,
        bins=number[starts],
        minimum=np.fmin.reduceat(_side_by_side(parts, "minimum"), starts, axis=1),
        maximum=np.fmax.reduceat(_side_by_side(parts, "maximum"), starts, axis=1),
        count=np.add.reduceat(count, starts, axis=1),
        nan=np.add.reduceat(nan, starts, axis=1),
        inf=np.add.reduceat(inf, starts, axis=1),
        mean=mean,
        last=last,
    )


def _side_by_side(parts: Sequence[Level], name: str) -> Any:
    arrays = [getattr(part, name) for part in parts]
    return None if any(array is None for array in arrays) else np.concatenate(arrays, axis=1)

"""What a picture of a comparison shows: the paired difference in bins, its mean with a band in windows, and
both losses in the same bins.

Bins are of a power of two of steps and begin at multiples of it, for all three alike, so that those of a
picture stay where they are while a run grows. The band is that of ``bootstrap.mean_band`` over windows that
overlap by half; a window of many pairs is averaged in neighbours first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.bootstrap import mean_band
from floatscope_diagnostics.compare.pairing import Pairs
from floatscope_diagnostics.compare.side import Side

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

WINDOWS = 60  # bands in a picture, about
MIN_WINDOW_PAIRS = 16
MAX_WINDOW_VALUES = 96  # of a window that are resampled, after averaging neighbours


@dataclass(frozen=True)
class Range:
    """Steps that are drawn, both included."""

    first: int
    last: int


def drawn(
    pairs: Pairs, run: Side, base: Side, *, confidence: float, points: int, shown: Range | None = None
) -> dict[str, Any]:
    """The series as plain JSON values: finite numbers, None where there is none.

    difference: of the pairs; those without a finite loss on both sides count as NaN.  band: mean, low and
    high over ``pairs`` pairs around ``step``.  run, baseline: finite losses, with counts of NaN and Inf.
    """
    whole = shown or Range(int(min(run.step[0], base.step[0])), int(max(run.step[-1], base.step[-1])))
    width = bin_width(whole.first, whole.last, points)
    inside = _inside(pairs.step, whole)
    step, gap = pairs.step[inside], pairs.gap[inside]
    return {
        "from": whole.first,
        "to": whole.last,
        "bin_steps": width,
        "difference": _binned(step, gap, width, whole.first),
        "band": _band(step[np.isfinite(gap)], gap[np.isfinite(gap)], confidence),
        "run": _side(run, width, whole),
        "baseline": _side(base, width, whole),
    }


def bin_width(first: int, last: int, most: int) -> int:
    """The smallest power of two of which at most ``most`` bins cover the steps from first to last."""
    width = 1
    while last // width - first // width >= most:
        width *= 2
    return width


def _inside(step: Int64, whole: Range) -> slice:
    return slice(*np.searchsorted(step, (whole.first, whole.last + 1)).tolist())


def _side(side: Side, width: int, whole: Range) -> dict[str, list[Any]]:
    inside = _inside(side.step, whole)
    return _binned(side.step[inside], side.loss[inside], width, whole.first)


def _binned(step: Int64, values: Float64, width: int, first: int) -> dict[str, list[Any]]:
    """step: where the bin begins, or ``first`` if it begins before that. count: values, finite or not."""
    if not len(step):
        return {name: [] for name in ("step", "min", "max", "mean", "count", "nan", "inf")}
    bins = step // width
    starts = np.flatnonzero(np.append(True, bins[1:] != bins[:-1]))
    finite = np.isfinite(values)
    count = np.diff(np.append(starts, len(step)))
    good = np.add.reduceat(finite.astype(np.int64), starts)
    low = np.minimum.reduceat(np.where(finite, values, math.inf), starts)
    high = np.maximum.reduceat(np.where(finite, values, -math.inf), starts)
    total = np.add.reduceat(np.where(finite, values, 0.0), starts)
    some = good > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / good
    return {
        "step": np.maximum(bins[starts] * width, first).tolist(),
        "min": _known(low, some),
        "max": _known(high, some),
        "mean": _known(mean, some & np.isfinite(mean)),
        "count": count.tolist(),
        "nan": np.add.reduceat(np.isnan(values).astype(np.int64), starts).tolist(),
        "inf": np.add.reduceat(np.isinf(values).astype(np.int64), starts).tolist(),
    }


def _known(values: Float64, known: NDArray[np.bool_]) -> list[float | None]:
    return [value if ok else None for value, ok in zip(values.tolist(), known.tolist(), strict=True)]


def _band(step: Int64, gap: Float64, confidence: float) -> dict[str, Any]:
    """Windows over the pairs, each with the band of its mean. ``pairs``: how many a window holds."""
    n = len(gap)
    size = min(max(MIN_WINDOW_PAIRS, math.ceil(2 * n / WINDOWS)), n)
    found: dict[str, Any] = {"pairs": size, "step": [], "mean": [], "low": [], "high": []}
    if n < 2:
        return found
    hop = max(size // 2, 1)
    begins = sorted({*range(0, n - size + 1, hop), n - size})
    for at in begins:
        band = mean_band(_averaged(gap[at : at + size]), confidence=confidence)
        if not math.isfinite(band.half):
            continue
        found["step"].append(int(step[at + (size - 1) // 2]))
        for name in ("mean", "low", "high"):
            found[name].append(getattr(band, name))
    return found


def _averaged(values: Float64) -> Float64:
    """At most MAX_WINDOW_VALUES means of neighbours; values at the end that fill none are left out."""
    width = math.ceil(len(values) / MAX_WINDOW_VALUES)
    whole = len(values) // width * width
    means: Float64 = values[:whole].reshape(-1, width).mean(axis=1)
    return means

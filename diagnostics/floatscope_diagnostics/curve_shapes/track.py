"""A curve made ready for tests of its shape: levels, a smooth course, and the noise of both.

Levels are natural logarithms where no value is negative, so a rise is a factor and no unit matters; of a
series that takes both signs (a likelihood) they are shares of its own range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from floatscope_diagnostics.curve_shapes.bins import Curve, Float64, Int64

MAD_TO_SIGMA = 1.4826  # of a normal distribution (Rousseeuw and Croux 1993)
TRIMMED_POINTS = 4  # a bin of so many gives away its lowest and highest point
SMOOTH_SHARE, MOST_SMOOTH = 40, 21  # the smooth course is a running median over a 40th of the bins
LONG_SHARE = 6  # and its own wandering is seen against one over a sixth


@dataclass(frozen=True)
class Track:
    """Bins whose level is known; arrays of shape (bins,).

    kept: which of the curve's bins these are, bool (all its bins,).  level: mean of a bin without its
    extremes, as logged.  y: as logarithm, or in shares of the range (``log`` tells which).  close: y as the
    median of three or five where bins are narrow: without single outliers.  smooth: a running median.
    sigma, wander: noise of y about smooth, and of smooth about its long course.  scale: what one unit of y
    is, in the series' unit; 1 with logarithms.
    """

    curve: Curve
    kept: NDArray[np.bool_]
    log: bool
    step: Int64
    until: Int64
    row: Int64
    size: Int64
    level: Float64
    y: Float64
    close: Float64
    smooth: Float64
    sigma: float
    wander: float
    scale: float

    def __len__(self) -> int:
        return len(self.y)

    @property
    def points(self) -> int:
        return int(self.size.sum())

    def value(self, y: float) -> float:
        """A level back in the series' unit."""
        return float(np.exp(y)) if self.log else y * self.scale

    def at(self, step: int) -> int:
        """The bin that holds a step, or the last one before it."""
        return max(int(np.searchsorted(self.step, step, side="right")) - 1, 0)


def track_of(curve: Curve | None) -> Track | None:
    """The track of a curve; None if it has no finite point that tells its level."""
    if curve is None:
        return None
    keep = curve.finite > 0
    log = bool(keep.any()) and bool((curve.low[keep] >= 0).all()) and float(curve.high[keep].max()) > 0
    size = np.maximum(curve.finite, 1)
    low, high = curve.low, curve.high
    with np.errstate(invalid="ignore"):  # bins without a finite point have infinite extremes
        trimmed = (curve.total - low - high) / np.maximum(size - 2, 1)
    level = np.where(size >= TRIMMED_POINTS, np.clip(trimmed, low, high), curve.total / size)
    if log:
        keep = keep & (level > 0)  # a loss of exactly 0 is a step that was skipped, or what broken has to say
    if not keep.any():
        return None
    size, level = size[keep], level[keep]
    scale = 1.0
    if log:
        y = np.log(level)
    else:
        scale = float(np.subtract(*np.percentile(level, [90, 10]))) or float(np.abs(level).max()) or 1.0
        y = level / scale
    alone = {1: 3, 2: 5}.get(curve.width, 1) if len(y) >= 6 else 1  # an outlier fills a bin of two points
    close = running_median(y, alone)
    window = min(max(len(y) // SMOOTH_SHARE | 1, 3), MOST_SMOOTH) if len(y) >= 6 else 1
    smooth = running_median(y, window)
    long = running_median(smooth, max(len(y) // LONG_SHARE | 1, 3)) if len(y) >= 12 else smooth
    return Track(
        curve=curve,
        kept=keep,
        log=log,
        step=curve.first_step[keep],
        until=curve.last_step[keep],
        row=curve.first_row[keep],
        size=size,
        level=level,
        y=y,
        close=close,
        smooth=smooth,
        sigma=_noise(y),
        wander=spread(smooth - long),
        scale=scale,
    )


def running_median(y: Float64, window: int) -> Float64:
    """Median over an odd window about each entry, narrower towards the ends so that it stays centred."""
    if window < 3 or len(y) < 3:
        return y.copy()
    window = min(window, len(y) - (len(y) + 1) % 2)
    half = window // 2
    out = y.copy()
    out[half : len(y) - half] = np.median(sliding_window_view(y, window), axis=1)
    for i in range(1, half):
        out[i] = np.median(y[: 2 * i + 1])
        out[-1 - i] = np.median(y[len(y) - 2 * i - 1 :])
    return out


def spread(y: Float64) -> float:
    """Standard deviation about 0, from the median of the magnitudes."""
    return MAD_TO_SIGMA * float(np.median(np.abs(y))) if len(y) else 0.0


def _noise(y: Float64) -> float:
    """Of one entry, from second differences, which a slope does not move (variance 6 times the noise's)."""
    if len(y) < 3:
        return 0.0
    return spread(np.diff(y, n=2)) / math.sqrt(6.0)


def blocks(y: Float64, count: int) -> Float64:
    """Medians of ``count`` blocks of equal length, or of fewer that hold an entry each."""
    parts = np.array_split(y, max(1, min(count, len(y))))
    return np.array([np.median(p) for p in parts])

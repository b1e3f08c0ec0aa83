"""A least squares line whose error holds for autocorrelated residuals, and is honest in short series.

The error comes from block sums of the residuals' scores (Newey and West 1987 with blocks that do not
overlap), at least that of an AR(1) with the residuals' autocorrelation; Student's t with the blocks' degrees
of freedom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.noise import noise_of, student_quantile

Float64 = NDArray[np.float64]
MIN_BLOCKS = 6


@dataclass(frozen=True)
class Line:
    """y = mean + slope * (x - middle). error: of the slope.  df: degrees of freedom of the error."""

    mean: float
    middle: float
    slope: float
    error: float
    df: float

    def at(self, x: float) -> float:
        return self.mean + self.slope * (x - self.middle)

    def slope_band(self, confidence: float) -> tuple[float, float]:
        """The slope's two-sided interval."""
        half = student_quantile(0.5 + 0.5 * confidence, self.df) * self.error
        return self.slope - half, self.slope + half


def line_of(x: Float64, y: Float64) -> Line | None:
    """The line through y [n] at x [n]; None for fewer than 12 values or x all alike."""
    n = len(x)
    if n < 2 * MIN_BLOCKS:
        return None
    middle, mean = float(x.mean()), float(y.mean())
    about = x - middle
    power = float(about @ about)
    if power == 0.0:
        return None
    slope = float(about @ (y - mean)) / power
    rest = y - mean - slope * about
    noise = noise_of(rest)
    width = max(min(max(noise.block, math.ceil(n / noise.n_eff)), n // MIN_BLOCKS), 1)
    blocks = n // width
    score = (about * rest)[: blocks * width].reshape(blocks, width).sum(axis=1)
    error = math.sqrt(float(score @ score) * blocks / (blocks - 2)) / power
    error = max(error, noise.long_run_sd / math.sqrt(power))
    return Line(mean, middle, slope, error, float(min(blocks - 2, max(noise.n_eff - 2.0, 1.0))))

"""The mean of a noisy, autocorrelated series with a confidence band: circular block bootstrap.

Blocks of neighbouring values are drawn with replacement from the series bent into a circle (Politis and
Romano 1992), so that what neighbours have in common stays in the resamples. A bootstrap of few blocks is too
narrow; the band is widened by Student's t with as many degrees of freedom as there are effective values, and
is never narrower than the band of an AR(1) with the series' own autocorrelation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.noise import Noise, noise_of, normal_quantile, student_quantile

Float64 = NDArray[np.float64]

RESAMPLES = 2000
MAX_VALUES = 1024  # a longer series is averaged in neighbours first: the bootstrap then costs the same
SEED = 20_817  # fixed: the same logs give the same answer


@dataclass(frozen=True)
class Band:
    """A mean with its confidence band, in nats. noise: of the values it was taken over."""

    mean: float
    low: float
    high: float
    noise: Noise

    @property
    def half(self) -> float:
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def largest(self) -> float:
        """The largest difference, either way, that the band allows."""
        return max(abs(self.low), abs(self.high))

    def excludes(self, margin: float) -> bool:
        """Whether the whole band lies beyond ``margin``, on one side."""
        return self.low > margin or self.high < -margin

    def within(self, margin: float) -> bool:
        return self.low > -margin and self.high < margin


def mean_band(values: Float64, *, confidence: float) -> Band:
    """The band of the mean of ``values`` [n], n at least 1, all finite."""
    noise = noise_of(values)
    scale = float(np.abs(values).max(initial=0.0))
    if len(values) == 1 or noise.sd == 0.0:
        mean = float(values[0]) if len(values) == 1 else float((values / (scale or 1.0)).mean()) * scale
        half = math.inf if len(values) == 1 else 0.0
        return Band(mean, mean - half, mean + half, noise)
    unit = values / scale
    mean = float(unit.mean())
    short, block = _thinned(unit, noise.block)
    count = len(short)
    starts = np.random.default_rng(SEED).integers(0, count, size=(RESAMPLES, math.ceil(count / block)))
    around = np.concatenate([[0.0], np.cumsum(np.concatenate([short, short[:block]]) - mean)])
    sums = (around[starts + block] - around[starts]).sum(axis=1)
    means = sums / (starts.shape[1] * block)
    tail = 0.5 * (1.0 - confidence)
    low, high = (float(q) for q in np.quantile(means, (tail, 1.0 - tail)))
    t = student_quantile(1.0 - tail, max(noise.n_eff - 1.0, 1.0))
    wider = t / normal_quantile(1.0 - tail)
    floor = t * noise.long_run_sd / scale / math.sqrt(noise.n)
    low, high = min(low * wider, -floor), max(high * wider, floor)
    return Band(mean * scale, (mean + low) * scale, (mean + high) * scale, noise)


def _thinned(values: Float64, block: int) -> tuple[Float64, int]:
    """The series as means of neighbours, at most MAX_VALUES of them, and the block length in these."""
    width = math.ceil(len(values) / MAX_VALUES)
    if width == 1:
        return values, block
    whole = len(values) // width * width
    short = values[:whole].reshape(-1, width).mean(axis=1)
    return short, max(math.ceil(block / width), 1)

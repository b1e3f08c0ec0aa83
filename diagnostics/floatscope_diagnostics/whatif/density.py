"""From a histogram of exponents to points with weights: how the values lie inside the bins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.whatif.spread import LOWEST_EXPONENT, Spread

Floats = NDArray[np.float64]

_STEEPEST_DOWN, _STEEPEST_UP = -8.0, 3.0
"""Bounds of the density's slope, in nats an octave: a bin beside a nearly empty one says little more."""


@dataclass(frozen=True, eq=False)
class Points:
    """A distribution of abs(x): ``x`` ascending, ``w`` sums to 1.  n: elements that it stands for."""

    x: Floats
    w: Floats
    n: float

    @property
    def power(self) -> float:
        """Mean square, over amax squared so that it fits."""
        return float(self.w @ (self.x / self.x[-1]) ** 2)

    def bulk(self, without: float) -> Floats:
        """The weights when so many elements, the largest ones, are taken away."""
        above = np.concatenate([np.cumsum(self.w[::-1])[::-1][1:], [0.0]])
        return np.clip(self.w - np.clip(without / self.n - above, 0.0, None), 0.0, None)

    def share_of_power(self, largest: float) -> float:
        """Share, 0 to 1, of the sum of squares that so many of the largest elements hold."""
        square = (self.x / self.x[-1]) ** 2
        return 1.0 - float(self.bulk(largest) @ square) / float(self.w @ square)


def points_of(spread: Spread, per_bin: int) -> Points:
    """Points of a histogram that is not empty.

    In a bin the density of u = log2 abs(x) is taken as exp(beta u) with beta = ln(n[e+1] / n[e-1]) / 2,
    one-sided at the ends; the highest bin ends at amax, and one element is amax itself. Source: own
    derivation, checked by ``benchmarks/whatif``.
    """
    counts = spread.counts.astype(np.float64)
    n = float(counts.sum())
    full = np.flatnonzero(counts)
    amax = spread.largest
    at = np.concatenate([[0.0], counts, [0.0]])
    left, here, right = at[full], at[full + 1], at[full + 2]
    right[-1] = 0.0
    safe = np.log(np.maximum(np.stack([left, here, right]), 1.0))
    slope = np.select(
        [(left > 0) & (right > 0), left > 0, right > 0],
        [(safe[2] - safe[0]) / 2, safe[1] - safe[0], safe[2] - safe[1]],
        0.0,
    ).clip(_STEEPEST_DOWN, _STEEPEST_UP)
    low = full + float(LOWEST_EXPONENT)
    high = low + 1.0
    high[-1] = math.log2(amax) if amax > 2.0 ** low[-1] else low[-1] + 1e-9
    middle = (np.arange(per_bin) + 0.5) / per_bin
    u = low[:, None] + (high - low)[:, None] * middle
    w = np.exp(slope[:, None] * (u - low[:, None]))
    here[-1] -= 1.0  # that is amax
    w *= (here / w.sum(axis=1))[:, None]
    x = np.concatenate([np.exp2(u).ravel(), [max(amax, 2.0 ** u[-1, -1])]])
    return Points(x, np.concatenate([w.ravel(), [1.0]]) / n, n)

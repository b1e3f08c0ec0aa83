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

_MOST_TILT, _HALVINGS = 1e7, 60
_MANY, _MOST_BEND = 1_000.0, 0.2
"""Elements of a bin, and nats of its density from one end to the other."""
_END = 1e-3
"""Of the weight of the last point: what the end of the highest bin has before it is tilted."""


@dataclass(frozen=True, eq=False)
class Points:
    """A distribution of abs(x): ``x`` ascending, ``w`` sums to 1.  n: elements that it stands for.
    has_power: whether it was made to have the mean square that was logged.
    """

    x: Floats
    w: Floats
    n: float
    has_power: bool = False

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
    one-sided at the ends; the highest bin ends at amax, and one element is amax itself. Where the mean square
    is known, that density is tilted to have it. Source: own derivation, checked by ``benchmarks/whatif``.
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
    x = np.exp2(u)
    largest = max(amax, float(x[-1, -1]))
    at_amax = 1.0
    if spread.power is not None:
        w, more = _tilted(w, (x / largest) ** 2, spread.power * n - 1.0)
        at_amax += more
    x, w = np.append(x.ravel(), largest), np.append(w.ravel(), at_amax) / n
    return Points(x, w, n, spread.power is not None)


def _tilted(w: Floats, square: Floats, wanted: float) -> tuple[Floats, float]:
    """The weights nearest to w (in Kullback-Leibler divergence) with each bin's count and this sum of
    squares: w exp(t square), t by bisection; and how much of the highest bin goes to its end, as equal values
    do.

    w, square: [bins, points].  In bins of many values, which have no freedom left, t bends little: where that
    is not enough, the sum is as near as it gets.
    """
    end = _END * w[-1, -1]

    def at(t: float) -> tuple[Floats, float]:
        lift = t * square
        most = lift.max(axis=1)
        most[-1] = max(most[-1], t)
        new = w * np.exp(lift - most[:, None])
        at_end = end * math.exp(t - most[-1])
        total = new.sum(axis=1)
        total[-1] += at_end
        scale = np.divide(w.sum(axis=1), total, out=np.zeros_like(total), where=total > 0)
        return new * scale[:, None], float(at_end * scale[-1])

    def off(t: float) -> float:
        new, more = at(t)
        return float((new * square).sum()) + more - wanted

    many = w.sum(axis=1) > _MANY
    high = (
        min(_MOST_BEND / float(np.ptp(square[many], axis=1).max()), _MOST_TILT) if many.any() else _MOST_TILT
    )
    low = -high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if off(middle) > 0.0 else (middle, high)
    return at(0.5 * (low + high))

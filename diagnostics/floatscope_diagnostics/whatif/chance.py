"""How far chance moves the SQNR of one tensor from that of its distribution.

A histogram says how many values a bin holds, not where in it they lie. Of thousands that makes no difference;
where a few values hold the power or make the noise, the rounding of just these decides. No number that is
stored says how a value is rounded, so what is left is to say how far that goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from floatscope_diagnostics.whatif.density import Floats, Points

MOST_ELEMENTS = 4_096
"""The largest ones, of which chance is looked at: the others are too many to matter."""


def first_of_few(points: Points) -> int:
    """Index of the first of the points that stand for the largest elements."""
    above = np.cumsum(points.w[::-1])[::-1] * points.n
    return min(int(np.count_nonzero(above > MOST_ELEMENTS)), len(points.x) - 1)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Values whose number in each octave is given and whose places are not.

    weight: [points from ``first_of_few``].  mean, square: expected noise and its square, times the weight.
    """

    weight: Floats
    mean: Floats
    square: Floats


def chance(points: Points, parts: Sequence[Drawn], noise: float, power: float) -> float:
    """Variance of ln(power / noise) over the places of values within their octaves.

    noise, power: of all, in the unit of the parts.  The largest value's own place is known. Where the mean
    square was logged, what goes along with it is known too.  Source: own derivation, checked by
    ``benchmarks/whatif``.
    """
    first = first_of_few(points)
    x = points.x[first:-1]
    if not len(x) or noise <= 0.0 or power <= 0.0:
        return 0.0
    own = (x / points.x[-1]) ** 2 / power
    octave = np.frexp(x)[1]
    starts = np.flatnonzero(np.concatenate([[True], octave[1:] != octave[:-1]]))
    of_noise = of_power = both = 0.0
    for part in parts:
        w, f, ff = part.weight[:-1], part.mean[:-1] / noise, part.square[:-1] / noise**2
        sums = np.add.reduceat(np.stack([w, f, ff, w * own, w * own**2, f * own]), starts, axis=1)
        count, f, ff, s, ss, fs = sums[:, sums[0] > 0.0]
        of_noise += float(np.clip(ff - f * f / count, 0.0, None).sum())
        of_power += float(np.clip(ss - s * s / count, 0.0, None).sum())
        both += float((fs - f * s / count).sum())
    if not points.has_power:
        return max(of_noise + of_power - 2.0 * both, 0.0) / points.n
    known = both * both / of_power if of_power > 0.0 else 0.0
    return max(of_noise - known, 0.0) / points.n

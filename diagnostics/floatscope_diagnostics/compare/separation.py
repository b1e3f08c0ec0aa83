"""Since when two runs are apart: the first block at which a bet against "no difference" has paid.

The bet (``betting``) may be looked at after every block, so the first step it names is no artefact of having
looked at every step. Blocks are as long as the noise needs (the ratio of long-run to short-run variance), and
what neighbouring blocks still have in common is taken out of each (x - rho * previous x).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.betting import played

Float64 = NDArray[np.float64]

MIN_BLOCKS = 8  # fewer cannot win 1 / alpha: at most a factor of 2 a block
WANTED_BLOCKS = 24
MAX_BLOCKS = 20_000
MIN_LAG, MAX_LAG = 8, 96  # pairs over which noise may be remembered


@dataclass(frozen=True)
class Separation:
    """sign: 1 if the run is above its baseline.

    onset: index of the first pair of the stretch that proved it.  proven: index of the pair that did.
    margin: the difference it is beyond, in nats.
    """

    sign: int
    onset: int
    proven: int
    margin: float


def separations(gap: Float64, *, alpha: float, margin: float = 0.0) -> list[Separation]:
    """The first separation of ``gap`` [n], all finite, by more than ``margin`` to either side, first proven
    first.

    alpha: chance to name one, anywhere, when each block mean is as likely above as below the margin.
    """
    n = len(gap)
    if n < MIN_BLOCKS or not gap.any():
        return []
    size = float(np.abs(gap).max())
    if margin > size * 1e9:  # none is near it; a quotient of the two may not be finite
        return []
    unit, edge = gap / size, margin / size
    width = max(block_length(unit), math.ceil(n / MAX_BLOCKS))
    width = max(min(width, n // WANTED_BLOCKS), 1)
    blocks = n // width
    means = unit[: blocks * width].reshape(blocks, width).mean(axis=1)
    rho = carried_over(means)
    fresh = means - rho * np.concatenate([[0.0], means[:-1]])
    weight = -math.log(blocks)
    enough = math.log(2.0 / alpha)
    found: list[Separation] = []
    for sign in (1, -1):
        excess = sign * fresh - (1.0 - rho) * edge
        scale = _typical(excess)
        if scale == 0.0:
            continue
        won = played(excess, scale=scale, log_weight=weight, enough=enough)
        if won is None:
            continue
        block, begun = won
        proven = min((block + 1) * width, n) - 1
        onset = _sharpened(sign * unit, begun * width, proven, width, edge)
        found.append(Separation(sign, onset, proven, margin))
    return sorted(found, key=lambda s: s.proven)


def block_length(values: Float64) -> int:
    """Pairs a block, so that most of what neighbours have in common lies inside one block.

    1 + 2 sum(rho) of their noise. The autocorrelations come from the median squared difference over a lag
    (a variogram; Cressie and Hawkins 1980), of which a few changes of level, such as a separation, or a
    slope change little. What lasts longer than the longest lag is no noise but a difference.
    """
    longest = min(max(len(values) // 8, MIN_LAG), MAX_LAG)
    if len(values) < MIN_BLOCKS or longest >= len(values):
        return 1
    settled = _variogram(values, longest)
    if settled == 0.0:
        return 1
    chance = 2.0 * math.sqrt(math.log10(len(values)) / len(values))
    total = 0.0
    for lag in range(1, longest):
        rho = 1.0 - _variogram(values, lag) / settled
        if rho <= chance:
            break
        total += rho
    return math.ceil(1.0 + 2.0 * total)


def carried_over(means: Float64) -> float:
    """Share of a block mean that the next one repeats, in [0, 0.95], without the bias of short series."""
    n = len(means)
    if n < MIN_BLOCKS:
        return 0.0
    far = min(max(n // 8, 2), MIN_LAG)
    settled = float(np.mean([_variogram(means, lag) for lag in range(far, min(2 * far, n - 1))]))
    if settled == 0.0:
        return 0.0
    rho = 1.0 - _variogram(means, 1) / settled
    rho += 2.0 * (1.0 + 3.0 * max(rho, 0.0)) / n  # twice Kendall 1954: the median of squares is no better
    return min(max(rho, 0.0), 0.95)


def _variogram(values: Float64, lag: int) -> float:
    """Half the typical squared difference over ``lag``; 0.4549 is the median of a squared normal value."""
    apart = values[lag:] - values[:-lag]
    return float(np.median(apart * apart)) / (2.0 * 0.4549)


def _typical(excess: Float64) -> float:
    """Typical size of the blocks that are not exactly zero, whatever their sign."""
    sizes = np.abs(excess[excess != 0.0])
    return float(np.median(sizes)) / 0.6745 if len(sizes) else 0.0


def _sharpened(values: Float64, begun: int, proven: int, width: int, edge: float) -> int:
    """The most likely first pair: where the sum of what lies above half the new level is largest.

    A change from 0 to a level m is most likely at the maximum of sum(x - m / 2) over the rest (Hinkley 1970).
    """
    level = float(values[begun : proven + 1].mean())
    if level <= edge:
        return begun
    first = max(begun - 8 * width, 0)
    tail = np.cumsum((values[first : proven + 1] - 0.5 * level)[::-1])[::-1]
    return first + int(np.argmax(tail))


def last_stretch(gap: Float64, level: float) -> int:
    """Index of the pair from which on the gap [n] is most likely at ``level`` and not at 0 (Hinkley 1970)."""
    size = float(np.abs(gap).max(initial=0.0))
    if size == 0.0 or level == 0.0:
        return 0
    sign = math.copysign(1.0, level)
    tail = np.cumsum((sign * gap / size - 0.5 * abs(level) / size)[::-1])[::-1]
    return int(np.argmax(tail))

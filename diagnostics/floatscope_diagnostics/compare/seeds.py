"""More than one pair: the difference over seeds, and what two baselines differ by.

One pair measures the precision and the chaos of one training. Means of several pairs from different seeds are
independent: a t interval over them holds both. A null pair (BF16 against BF16, another seed or another order
of summation) shows what a difference of that size is worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.drift import risen
from floatscope_diagnostics.compare.judge import Comparison
from floatscope_diagnostics.compare.noise import student_quantile
from floatscope_diagnostics.compare.settled import settled

Float64 = NDArray[np.float64]

MIN_SEEDS = 3
LEVEL = 0.95  # of either end
RISE_LEVEL = 0.975
"""Of the lower end of the rise, as for a single pair: it refuses a run by a line that is carried on."""


@dataclass(frozen=True)
class Seeds:
    """means: nats of each pair, the first being that which is reported.  mean, low, high: over them; None for
    fewer than MIN_SEEDS.  nulls: means of null pairs.  risen: second half minus first of each pair, with
    the lower end of its mean over MIN_SEEDS pairs and more.  spread: largest mean of a null pair, either way,
    None without one.
    """

    means: tuple[float, ...]
    mean: float | None
    low: float | None
    high: float | None
    nulls: tuple[float, ...] = ()
    risen: tuple[float, ...] = ()
    risen_low: float | None = None

    @property
    def spread(self) -> float | None:
        return max((abs(v) for v in self.nulls), default=None)


def seeds_of(pairs: Sequence[Comparison], nulls: Sequence[Comparison]) -> Seeds | None:
    """What several pairs and null pairs say; None for a single pair without one."""
    gaps = [gap for gap in (settled(c).gap for c in pairs) if len(gap) > 1]
    means = tuple(float(gap.mean()) for gap in gaps)
    null_means = tuple(v for v in (_mean(c) for c in nulls) if v is not None)
    if len(means) < 2 and not null_means:
        return None
    if len(means) < MIN_SEEDS:
        return Seeds(means, None, None, None, null_means)
    return rises_of(gaps, null_means)


def rises_of(gaps: Sequence[Float64], nulls: tuple[float, ...] = ()) -> Seeds:
    """What at least MIN_SEEDS judged gaps of one recipe say together."""
    means = tuple(float(gap.mean()) for gap in gaps)
    mean, half = _t_interval(means, LEVEL)
    rises = tuple(risen(gap) for gap in gaps)
    rise, rise_half = _t_interval(rises, RISE_LEVEL)
    return Seeds(means, mean, mean - half, mean + half, nulls, rises, rise - rise_half)


def _t_interval(values: Sequence[float], level: float) -> tuple[float, float]:
    """The mean and the half width of its interval with ``level`` at either end."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)), student_quantile(level, float(len(values) - 1)) * error


def _mean(c: Comparison) -> float | None:
    part = settled(c)
    return float(part.gap.mean()) if len(part.gap) else None

"""What of a gap is chance: twins are the same run but for one rounding of the weights at the start, so
whatever they differ by in the end is chance. Errors come from twins pooled over scenarios, because two twins
alone say little about their own spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from floatscope_diagnostics.compare.noise import student_quantile

SURE = 0.99  # one-sided: how sure a gap must lie above zero for a share of it to mean anything
CONFIDENCE = 0.95  # two-sided, of the intervals that are printed
MEASURABLE_NATS = 0.005
"""Smallest gap of which a share is told, however small the chance is: what healthy FP8 costs here is of
0.003 nats, and no advice about layers can bring that back."""


@dataclass(frozen=True)
class Spread:
    """Standard deviation between twins, nats, and its degrees of freedom (0: not known)."""

    sd: float
    df: int


def spread_of(twins: Sequence[Sequence[float]]) -> Spread:
    """Pooled over groups of twins; each group has a mean of its own."""
    squares, df = 0.0, 0
    for group in twins:
        mean = sum(group) / len(group)
        squares += sum((value - mean) ** 2 for value in group)
        df += len(group) - 1
    return Spread(math.sqrt(squares / df) if df else 0.0, df)


@dataclass(frozen=True)
class Measured:
    """A mean difference between runs and their baseline, nats, with its standard error and the degrees of
    freedom of that.
    """

    nats: float
    error: float
    df: int

    @property
    def is_above_chance(self) -> bool:
        """Whether there is a gap to close: above zero beyond what twins differ by, and worth a share."""
        return (
            self.df > 0
            and self.nats > MEASURABLE_NATS
            and self.nats > student_quantile(SURE, float(self.df)) * self.error
        )


def measured(runs: Sequence[float], base: Sequence[float], of_runs: Spread, of_base: Spread) -> Measured:
    """Mean of the runs' final losses above that of the baseline's twins."""
    nats = sum(runs) / len(runs) - sum(base) / len(base)
    error = math.hypot(of_runs.sd / math.sqrt(len(runs)), of_base.sd / math.sqrt(len(base)))
    return Measured(nats, error, min(of_runs.df, of_base.df))


def closed_pct(before: Measured, after: Measured) -> float | None:
    """Share of a gap that is gone, in %. Above 100 the run ends better than its baseline. None where there is
    no gap beyond chance: nothing can be closed then.
    """
    return 100.0 * (1.0 - after.nats / before.nats) if before.is_above_chance else None


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the seeds' values and its two-sided interval by Student's t; infinite for one value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    sd = spread_of([values]).sd
    half = student_quantile(0.5 + 0.5 * CONFIDENCE, len(values) - 1.0) * sd / math.sqrt(len(values))
    return mean, mean - half, mean + half

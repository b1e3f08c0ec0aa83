"""Numbers over many judged runs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.diagnosis.outcome import EARLY_STEPS, Judged

ONSET_STEPS = 2  # an onset of an abrupt fault counts as right up to so many steps away


@dataclass(frozen=True)
class Share:
    """``right`` of ``total``; a percentage is None of nothing."""

    right: int
    total: int

    @property
    def percent(self) -> float | None:
        return 100.0 * self.right / self.total if self.total else None


@dataclass(frozen=True)
class FalseAlarms:
    """False alarms on healthy steps.

    steps: that were trained once and judged once.  alarms: on them.  resampled: steps of a healthy run judged
    again, in front of a fault or behind a resume, and the alarms on them.
    """

    runs: int
    runs_with_alarm: int
    steps: int
    alarms: int
    resampled_steps: int
    resampled_alarms: int

    @property
    def per_million(self) -> float | None:
        return 1e6 * self.alarms / self.steps if self.steps else None

    @property
    def bound_per_million(self) -> float | None:
        """Upper end of the 95 % interval of the rate: 3 / n without an alarm (rule of three), else the exact
        Poisson one.
        """
        return 1e6 * poisson_upper(self.alarms) / self.steps if self.steps else None


def poisson_upper(count: int) -> float:
    """Upper 95 % limit of a Poisson mean after ``count`` events, where P(X <= count) = 0.05; 3.0 for 0."""
    low, high = float(count), 3.0 + 3.0 * count + 10.0
    for _ in range(80):
        middle = (low + high) / 2
        tail = sum(math.exp(-middle + k * math.log(middle) - math.lgamma(k + 1)) for k in range(count + 1))
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return high


def share(values: Sequence[bool | None]) -> Share:
    """How many of those that apply are true."""
    known = [v for v in values if v is not None]
    return Share(right=sum(known), total=len(known))


def false_alarms(runs: Sequence[Judged]) -> FalseAlarms:
    healthy = [r for r in runs if r.cause == "healthy"]
    fresh = [r for r in runs if r.healthy_steps]
    again = [r for r in runs if not r.healthy_steps]
    return FalseAlarms(
        runs=len(healthy),
        runs_with_alarm=sum(bool(r.false_alarms) for r in healthy),
        steps=sum(r.healthy_steps for r in fresh),
        alarms=sum(len(r.false_alarms) for r in fresh),
        resampled_steps=sum(r.resampled_steps for r in again),
        resampled_alarms=sum(len(r.false_alarms) for r in again),
    )


def f1_by_cause(runs: Sequence[Judged]) -> Mapping[str, float]:
    """F1 of every cause that occurs as the true one; an accepted answer counts as the true one."""
    pairs = [(r.cause, r.cause if r.cause_ok else r.predicted) for r in runs]
    scores: dict[str, float] = {}
    for cause in sorted({true for true, _ in pairs}):
        hit = sum(true == said == cause for true, said in pairs)
        wrong = sum((true == cause) != (said == cause) for true, said in pairs)
        scores[cause] = 2 * hit / (2 * hit + wrong)
    return scores


def macro_f1(runs: Sequence[Judged]) -> float | None:
    scores = f1_by_cause(runs)
    return sum(scores.values()) / len(scores) if scores else None


def onset_right(runs: Sequence[Judged]) -> Share:
    """Abrupt faults that were noticed: onset within ONSET_STEPS of the window."""
    return share([abs(r.onset_error) <= ONSET_STEPS for r in runs if r.abrupt and r.onset_error is not None])


def onset_early(runs: Sequence[Judged]) -> Share:
    """Onsets named far too early, of all that were named."""
    return share([r.onset_error < -EARLY_STEPS for r in runs if r.onset_error is not None])


def median_of(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def confusion(runs: Sequence[Judged]) -> Mapping[str, Mapping[str, int]]:
    """Per true cause how often each was said; a star marks an accepted answer other than the true one."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        star = "*" if run.cause_ok and run.predicted != run.cause else ""
        table[run.cause][run.predicted + star] += 1
    return table

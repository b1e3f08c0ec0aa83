"""Whether the gap grows, and where it would be at the end of the training that is planned.

An error that builds up in the state (weights without a master copy, moments that lose their low bits) is
small in any short run. A growing gap is therefore no pass even inside the margin: it is carried on in a
straight line. A rise counts if both the slope of the line and the second half against the first say so, each
at 97.5 % one-sided. Where the slope alone says so, and even its lower end is past the margin when carried on,
nothing is refused but the rise is left open.

Two healthy trainings part as well: every rounding is amplified, and their difference then wanders like a
random walk before it levels off. A short pair often rises by that alone. The rise is called growth only where
it is also too steady for that: the moves from one eighth of the pairs to the next have a mean above 0 by
Student's t, and those of the second half are not less than half as large. Else nobody can tell it from chance
yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.bootstrap import mean_band
from floatscope_diagnostics.compare.line import line_of
from floatscope_diagnostics.compare.noise import student_quantile
from floatscope_diagnostics.compare.settled import Settled

Float64 = NDArray[np.float64]

MIN_PAIRS = 100
CONFIDENCE = 0.95
WINDOWS = 8
STILL = 0.5  # of the mean move: what a rise that goes on keeps to the end
TIMES_AHEAD = 10.0
"""Without a planned length the line is carried on to so many times the steps that were compared: what a trial
of a tenth of a run leaves open."""


@dataclass(frozen=True)
class Drift:
    """The gap as a line over the judged steps.

    grows: it rose.  may_grow: it did by its line, not for certain by its halves, and the whole interval of
    the line carried on is past the margin.  steady: more than a random walk would.  per_1000, low, high: nats
    a thousand steps, with its interval.  now: the line at the last step.  to_step: where it is carried on to.
    ahead, ahead_low, ahead_high: nats there.  reaches_at: step at which the line reaches the margin, None if
    it does not rise.  halves: second half minus first, nats.
    """

    grows: bool
    may_grow: bool
    steady: bool
    per_1000: float
    low: float
    high: float
    now: float
    to_step: int
    ahead: float
    ahead_low: float
    ahead_high: float
    reaches_at: int | None
    halves: float


def drift_of(part: Settled, margin: float, *, planned_last_step: int | None) -> Drift | None:
    """The drift, None for too few pairs."""
    n = len(part.step)
    if n < MIN_PAIRS:
        return None
    first, last = int(part.step[0]), int(part.step[-1])
    line = line_of((part.step - first) / (last - first), part.gap)
    if line is None:
        return None
    low, high = line.slope_band(CONFIDENCE)
    one, two = (mean_band(half, confidence=CONFIDENCE) for half in (part.gap[: n // 2], part.gap[n // 2 :]))
    halves = two.mean - one.mean
    half_width = math.hypot(one.half, two.half)
    now = line.at(1.0)
    grows = low > 0.0 and halves > half_width and now > 0.0
    to_step = planned_last_step
    if to_step is None or to_step <= last:
        ahead_steps = int(TIMES_AHEAD * (part.last_step - part.first_step + 1))
        to_step = last if planned_last_step is not None else part.first_step + ahead_steps
    spans = (to_step - last) / (last - first)
    per = 1000.0 / (last - first)
    reaches = None
    if line.slope > 0.0 and now < margin:
        away = last + (margin - now) / line.slope * (last - first)
        reaches = math.ceil(away) if away < 2**53 else None
    return Drift(
        grows=grows,
        may_grow=not grows and low > 0.0 and now > 0.0 and now + low * spans > margin,
        steady=steady(part.gap),
        per_1000=line.slope * per,
        low=low * per,
        high=high * per,
        now=now,
        to_step=to_step,
        ahead=now + line.slope * spans,
        ahead_low=now + low * spans,
        ahead_high=now + high * spans,
        reaches_at=reaches,
        halves=halves,
    )


def steady(gap: Float64) -> bool:
    """Whether a rise of the gap [n >= WINDOWS] is more than that of two runs that part by chance."""
    moves = np.diff([float(part.mean()) for part in np.array_split(gap, WINDOWS)])
    mean, late = float(moves.mean()), float(moves[len(moves) // 2 :].mean())
    error = float(moves.std(ddof=1)) / math.sqrt(len(moves))
    sure = mean > student_quantile(0.5 + 0.5 * CONFIDENCE, len(moves) - 1.0) * error
    return sure and late > STILL * mean


def risen(gap: Float64) -> float:
    """Second half of the gap [n] minus the first, nats; n at least 2."""
    half = len(gap) // 2
    return float(gap[half:].mean() - gap[:half].mean())

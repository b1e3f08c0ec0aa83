"""What a loss difference costs: the tokens that make up for it, and the speed-up that is left.

Near the end of a curve the loss falls by beta nats per e-fold of tokens; a run that is d nats behind needs
exp(d / beta) times the tokens to reach the same loss, and is worth s exp(-d / beta) instead of its speed-up
s. beta is fitted on the baseline's own curve, on the judged steps, with its error, and holds for this
learning rate schedule only. A run that is ahead is not credited with it: max(d, 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.bootstrap import Band
from floatscope_diagnostics.compare.gate import Quality
from floatscope_diagnostics.compare.line import line_of
from floatscope_diagnostics.compare.noise import student_quantile
from floatscope_diagnostics.compare.settled import MAX_VALUES, Settled, averaged
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.throughput import Throughput

Float64 = NDArray[np.float64]

LATE_SHARE = 0.5  # of the judged steps, of which beta is fitted: the end counts
DRAWS = 4000
SEED = 20_819
TAIL = 0.05  # each side


@dataclass(frozen=True)
class Beta:
    """Nats per e-fold of tokens, its standard error and its degrees of freedom."""

    value: float
    error: float
    df: float

    @property
    def known(self) -> bool:
        """Whether the loss is shown to fall at all (95 %, one-sided)."""
        return self.value - student_quantile(0.95, self.df) * self.error > 0.0


def beta_of(base: Side, part: Settled) -> Beta | None:
    """Fits -dL/d ln(tokens) on the last half of the judged steps, or on all of them where the half does not
    show that the loss falls; None for too few steps.

    Tokens are in proportion to the steps since step 0 as long as each has as many, so that steps will do.
    """
    if not len(part.step):
        return None
    first, last = max(int(part.step[0]), 0), int(part.step[-1])
    late = _fitted(base, max(first, int(last - LATE_SHARE * part.span)), last)
    return late if late is None or late.known else _fitted(base, first, last)


def _fitted(base: Side, first: int, last: int) -> Beta | None:
    keep = (base.step >= first) & (base.step <= last) & np.isfinite(base.loss)
    width = max(math.ceil(int(keep.sum()) / MAX_VALUES), 1)
    line = line_of(averaged(np.log(base.step[keep] + 1.0), width), averaged(base.loss[keep], width))
    return None if line is None else Beta(-line.slope, line.error, line.df)


def quality_of(band: Band, beta: Beta, speed: Throughput | None) -> Quality:
    """Extra tokens and net speed-up with their intervals (90 %), errors of all three carried along."""
    draw = np.random.default_rng(SEED)
    spread = band.noise.long_run_sd / math.sqrt(band.noise.n)
    behind = np.maximum(band.mean + spread * draw.standard_normal(DRAWS), 0.0)
    steep = np.maximum(beta.value + beta.error * draw.standard_t(max(beta.df, 3.0), DRAWS), 1e-9)
    with np.errstate(over="ignore"):
        tokens = np.minimum(behind / steep, 50.0)
        point = min(max(band.mean, 0.0) / max(beta.value, 1e-9), 50.0)
        extra = 100.0 * np.expm1(np.quantile(tokens, (TAIL, 1.0 - TAIL)))
    net = low = high = None
    if speed is not None:
        picked = draw.choice(speed.logs, DRAWS)
        net = speed.speedup * math.exp(-point)
        low, high = (float(math.exp(q)) for q in np.quantile(picked - tokens, (TAIL, 1.0 - TAIL)))
        low, high = min(low, net), max(high, net)
    return Quality(
        extra_tokens_pct=100.0 * math.expm1(point),
        extra_tokens_low_pct=min(float(extra[0]), 100.0 * math.expm1(point)),
        extra_tokens_high_pct=max(float(extra[1]), 100.0 * math.expm1(point)),
        beta=beta.value,
        beta_error=beta.error,
        net_speedup=net,
        net_low=low,
        net_high=high,
    )

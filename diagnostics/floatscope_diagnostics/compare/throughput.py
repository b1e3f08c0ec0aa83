"""How much faster a run is, with an interval: ratio of median step times, by a block bootstrap.

Step times are skewed (evals, checkpoints, a slow loader), so medians are compared; the first steps, on which
kernels are chosen and compiled, are left out, and those on which a held-out loss was logged. Neighbouring
steps share a slow node or a busy network, so blocks are drawn (Künsch 1989). What the interval does not hold
is what differs from one job to the next: other nodes, another day.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.noise import Noise, noise_of, normal_quantile, student_quantile
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.traces import NONE, tokens_a_step

Float64 = NDArray[np.float64]

FIRST_STEPS = 20
MIN_STEPS = 50
OUTLIER_TIMES = 3.0  # of the median: an eval, a checkpoint or a stall; left out
RESAMPLES = 1000
MAX_VALUES = 2048
MIN_BLOCK, MAX_BLOCK_SHARE = 8, 0.1
SEED = 20_818
CONFIDENCE = 0.90
"""Two-sided, so that each end is a bound at 95 %."""


@dataclass(frozen=True, eq=False)
class Throughput:
    """speedup: throughput of the run over the baseline's, with its interval.  logs: float64 [RESAMPLES], the
    natural logarithm of its resamples.  run_s, base_s: median step times.  by_tokens: tokens a second were
    compared, since the tokens of a step differ.  steps: used of the shorter of both.  left_out: outliers.
    """

    speedup: float
    low: float
    high: float
    logs: Float64
    run_s: float
    base_s: float
    by_tokens: bool
    steps: int
    left_out: int


@dataclass(frozen=True)
class NoThroughput:
    """Why there is none, as code and in words."""

    why: str
    code: str = "no_step_time"


def throughput(run: Side, base: Side) -> Throughput | NoThroughput:
    """Compares step times over the steps that both runs have."""
    for side, name in ((run, "RUN"), (base, "BASELINE")):
        if emulated(side):
            return NoThroughput(
                f"{name} emulates its FP8 casts, so its step times are not those of FP8 hardware", "emulated"
            )
    cleaned = []
    left_out = 0
    first = max(int(run.step[0]), int(base.step[0]))
    last = min(int(run.step[-1]), int(base.step[-1]))
    for side, name in ((run, "RUN"), (base, "BASELINE")):
        if not len(side.traces.get("step_time_s", NONE).finite()):
            return NoThroughput(f"{name} logs no step time (step_time_s)")
        values, dropped = _cleaned(side, first, last)
        if len(values) < MIN_STEPS:
            return NoThroughput(
                f"{name} has {len(values):,} usable step times in steps {first:,} to {last:,}; "
                f"{MIN_STEPS} are needed beside the first {FIRST_STEPS}"
            )
        cleaned.append(values)
        left_out += dropped
    tokens = tokens_a_step(run.traces), tokens_a_step(base.traces)
    work, by_tokens = 1.0, False
    if tokens[0] is not None and tokens[1] is not None and abs(tokens[0] / tokens[1] - 1.0) > 0.001:
        work, by_tokens = tokens[0] / tokens[1], True
    draw = np.random.default_rng(SEED)
    medians = [_medians(values, draw) for values in cleaned]
    run_s, base_s = (float(np.median(values)) for values in cleaned)
    speedup = base_s / run_s * work
    centre = math.log(speedup)
    away = np.log(medians[1] / medians[0] * work) - centre
    logs = centre + away * _widening(away, [noise_of(np.log(values)) for values in cleaned])
    tail = 0.5 * (1.0 - CONFIDENCE)
    low, high = (float(np.exp(q)) for q in np.quantile(logs, (tail, 1.0 - tail)))
    steps = min(len(values) for values in cleaned)
    return Throughput(
        speedup, min(low, speedup), max(high, speedup), logs, run_s, base_s, by_tokens, steps, left_out
    )


def _widening(away: Float64, noises: Sequence[Noise]) -> float:
    """How much a bootstrap of few blocks is too narrow.

    As for the band of a mean (``mean_band``): Student's t of the effective sample size, and at least the
    error of the mean of an AR(1), which that of a median is not below for anything near a normal law.
    """
    half = 0.5 * float(np.subtract(*np.quantile(away, (0.95, 0.05))))
    t = student_quantile(0.95, max(min(noise.n_eff for noise in noises) - 1.0, 1.0))
    floor = t * math.hypot(*(noise.long_run_sd / math.sqrt(noise.n) for noise in noises))
    wider = t / normal_quantile(0.95)
    return max(wider, floor / half) if half > 0.0 else 1.0


def emulated(side: Side) -> bool:
    """Whether the run says of itself that it computes FP8 without FP8 hardware (the bundled trainer)."""
    said = side.run.config.get("precision")
    return isinstance(said, Mapping) and (said.get("precision"), said.get("backend")) == ("fp8", "emulated")


def _cleaned(side: Side, first: int, last: int) -> tuple[Float64, int]:
    """Step times [s] in a stretch without the run's first steps, evals and outliers; how many of these."""
    trace = side.traces["step_time_s"]
    start = int(trace.step[min(FIRST_STEPS, len(trace.step) - 1)])
    seen = trace.between(max(first, start), last).finite()
    evals = side.traces.get("eval_loss", NONE).step
    usable = (seen.value > 0.0) & ~np.isin(seen.step, evals)
    values = seen.value[usable]
    if not len(values):
        return values, 0
    typical = values <= OUTLIER_TIMES * float(np.median(values))
    return values[typical], int((~typical).sum())


def _medians(values: Float64, draw: np.random.Generator) -> Float64:
    """Medians of block resamples [RESAMPLES]; a long series is first read as medians of neighbours."""
    width = math.ceil(len(values) / MAX_VALUES)
    whole = len(values) // width * width
    short = np.median(values[:whole].reshape(-1, width), axis=1)
    count = len(short)
    longest = max(int(MAX_BLOCK_SHARE * count), 1)
    block = min(max(noise_of(short).block, MIN_BLOCK), longest)
    starts = draw.integers(0, count, size=(RESAMPLES, math.ceil(count / block)))
    at = (starts[:, :, None] + np.arange(block)) % count
    picked: Float64 = np.median(short[at.reshape(RESAMPLES, -1)], axis=1)
    return picked

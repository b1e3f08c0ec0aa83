"""Loss spikes, skipped steps and gradient norms of a run beside those of its baseline.

A spike is a loss far above its own recent level, counted once however long it lasts. Two counts are compared
by the exact conditional test of two Poisson rates (Przyborowski and Wilenski 1940): given both together, the
run's share is binomial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.gate import Gate, State
from floatscope_diagnostics.compare.judge import Comparison
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.traces import NONE, counted

Float64 = NDArray[np.float64]

AT_ONCE = 65_536
RECENT = 32  # steps of which the median is the level
SPIKE_TIMES = 8.0  # robust standard deviations of the loss around its level
SPIKE_NATS = 0.1  # at least
SURE, UNSURE = 0.001, 0.01  # one-sided p from which more spikes are a failure, and a doubt
SKIPPED_SHARE = 0.01  # of all steps: more is a failure if the baseline skips less than half as many
NORM_TIMES = 2.0  # a gradient norm so many times the baseline's is a doubt


@dataclass(frozen=True)
class Steadiness:
    """Of one run over the common steps. spikes: None where there are too few steps.  norm: median gradient
    norm.  norm_tail: its 99th percentile over the median.
    """

    steps: int
    spikes: int | None
    skipped: float | None
    nonfinite: int
    norm: float | None
    norm_tail: float | None


def steadiness(side: Side, first: int, last: int) -> Steadiness:
    """Counts over steps ``first`` to ``last``."""
    inside = (side.step >= first) & (side.step <= last)
    loss = side.loss[inside]
    norms = side.traces.get("grad_norm", NONE).between(first, last).finite().value
    norm = float(np.median(norms)) if len(norms) else None
    tail = float(np.quantile(norms, 0.99)) / norm if norm else None
    return Steadiness(
        steps=len(loss),
        spikes=spikes(loss[np.isfinite(loss)]),
        skipped=counted(side.traces.get("skipped_steps", NONE).between(first, last)),
        nonfinite=int((~np.isfinite(loss)).sum()),
        norm=norm,
        norm_tail=tail,
    )


def spikes(loss: Float64) -> int | None:
    """How often a loss [n], all finite, leaps far above the median of the RECENT before it."""
    n = len(loss)
    if n < 4 * RECENT:
        return None
    before = np.lib.stride_tricks.sliding_window_view(loss, RECENT)[:-1]
    parts = (before[k : k + AT_ONCE] for k in range(0, len(before), AT_ONCE))  # a median copies its windows
    above = loss[RECENT:] - np.concatenate([np.median(part, axis=1) for part in parts])
    spread = 1.4826 * float(np.median(np.abs(above - np.median(above))))
    high = above > max(SPIKE_TIMES * spread, SPIKE_NATS)
    at = np.flatnonzero(high)
    return int((np.diff(at) > RECENT).sum()) + 1 if len(at) else 0


def stability_gate(c: Comparison) -> Gate:
    """Whether the run is as steady as its baseline."""
    first, last = int(c.pairs.step[0]), int(c.pairs.step[-1])
    run, base = (steadiness(side, first, last) for side in (c.run, c.base))
    said: list[str] = []
    doubts: list[str] = []
    failures: list[str] = []
    value: float | None = None
    low: float | None = None
    if run.nonfinite or base.nonfinite:
        said.append(f"{run.nonfinite:,} losses not finite against {base.nonfinite:,}")
        if run.nonfinite > base.nonfinite:
            lasting = c.nonfinite is not None and c.nonfinite.side == "run" and c.nonfinite.lasting
            (failures if lasting else doubts).append("losses that are not finite")
    if run.spikes is not None and base.spikes is not None:
        value, low = (1000.0 * s.spikes / s.steps for s in (run, base) if s.spikes is not None)
        said.append(
            f"{value:.2g} loss spikes in 1,000 steps against {low:.2g} ({run.spikes} and {base.spikes})"
        )
        p = more_by_chance(run.spikes, base.spikes)
        if p < SURE and run.spikes >= 2 * base.spikes:
            failures.append("more loss spikes")
        elif p < UNSURE:
            doubts.append("more loss spikes")
    if run.skipped is not None and base.skipped is not None:
        said.append(f"{run.skipped:,.0f} skipped steps against {base.skipped:,.0f}")
        if run.skipped > SKIPPED_SHARE * run.steps and run.skipped > 2.0 * base.skipped:
            failures.append("more skipped steps")
    if run.norm is not None and base.norm:
        ratio = run.norm / base.norm
        said.append(f"median gradient norm {ratio:.2f} times the baseline's")
        if not 1.0 / NORM_TIMES < ratio < NORM_TIMES:
            doubts.append("another gradient norm")
    if not said:
        return Gate("stability", "not_checked", "Too few steps to count loss spikes.", unit="spikes/1000")
    looked = value is not None or None not in (run.skipped, base.skipped)
    state: State = "fail" if failures else "undecided" if doubts else "pass" if looked else "not_checked"
    if not looked:
        said.append("too few steps to count loss spikes")
    text = "; ".join(said)
    if failures or doubts:
        text = f"{', '.join(failures or doubts)}: {text}"
    return Gate(
        "stability",
        state,
        text[:1].upper() + text[1:] + ".",
        value,
        limit=low,
        unit="spikes/1000",
        next_step="A second pair from another seed, over more steps." if state == "undecided" else "",
    )


def more_by_chance(run: int, base: int) -> float:
    """One-sided p that of run + base events so many fall to the run, if both are as likely."""
    n = run + base
    if n == 0:
        return 1.0
    whole = math.lgamma(n + 1) - n * math.log(2.0)
    terms = (math.exp(whole - math.lgamma(i + 1) - math.lgamma(n - i + 1)) for i in range(run, n + 1))
    return min(math.fsum(terms), 1.0)

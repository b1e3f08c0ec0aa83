"""The held-out loss of both runs at the steps where both logged it."""

from __future__ import annotations

import math

import numpy as np

from floatscope_diagnostics.compare.bootstrap import mean_band
from floatscope_diagnostics.compare.gate import Gate, State
from floatscope_diagnostics.compare.settled import Settled
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.traces import NONE, on_common_steps
from floatscope_diagnostics.compare.words import nats, signed

MIN_EVALS = 6
CONFIDENCE = 0.90


def held_out_gate(run: Side, base: Side, part: Settled, margin: float) -> Gate:
    """Paired differences of eval_loss on the judged steps, against the margin.

    One evaluation after the other of one model is correlated: the interval is that of ``mean_band``, widened
    by Student's t of the effective sample size.
    """
    step, ours, theirs = on_common_steps(
        run.traces.get("eval_loss", NONE), base.traces.get("eval_loss", NONE)
    )
    if not len(step):
        return Gate(
            "held_out",
            "not_checked",
            "No held-out loss (eval_loss) is in both logs.",
            limit=margin,
            unit="nats",
        )
    if len(part.step):
        keep = step >= part.step[0]
        step, ours, theirs = step[keep], ours[keep], theirs[keep]
    if len(step) and not np.isfinite(ours[-1]) and np.isfinite(theirs[-1]):
        return Gate(
            "held_out", "fail", f"The held-out loss is not finite at step {step[-1]:,}; the baseline's is.",
            limit=margin, unit="nats",
        )  # fmt: skip
    good = np.isfinite(ours) & np.isfinite(theirs)
    gap = ours[good] - theirs[good]
    n = len(gap)
    if n < 2:
        return Gate(
            "held_out", "not_checked", "Fewer than two held-out losses past the warm-up are in both logs.",
            limit=margin, unit="nats",
        )  # fmt: skip
    band = mean_band(gap, confidence=CONFIDENCE)
    last = f"last, at step {step[good][-1]:,}: {signed(float(gap[-1]))}"
    text = f"{n:,} held-out losses, on average {signed(band.mean)} nats"
    state: State = "undecided"
    if n >= MIN_EVALS and math.isfinite(band.half):
        text += f" [{signed(band.low)}, {signed(band.high)}]"
        state = "pass" if band.high < margin else "fail" if band.low > margin else "undecided"
    said = {
        "pass": f"below the margin of {nats(margin)}",
        "fail": f"beyond the margin of {nats(margin)}",
    }.get(state, f"cannot be told from the margin of {nats(margin)}")
    return Gate(
        "held_out", state, f"{text} ({last}): {said}.",
        band.mean, band.low, band.high, margin, "nats",
        next_step="Evaluate both at more steps, on a larger fixed set." if state == "undecided" else "",
        blocks=False,
    )  # fmt: skip

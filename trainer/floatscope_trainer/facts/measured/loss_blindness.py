"""Watching loss, gradient norm and NaN is enough.

What people say
    Monitor loss jumps, the gradient norm and the NaN count; an FP8 fault will show there.
What is true
    The loss is nearly blind. The gradients of half of the linears can become exactly 0 in the cast and the
    loss of the next steps hardly moves, no NaN appears, and the run learns less from there on. Tensors show
    it in the same step.
How it is measured
    The bundled trainer, trained for 40 steps; then the gradients of all linears of the last block get a scale
    2^-24 of the right order, so that all of them underflow, for 20 steps. Loss against the same run without
    it; underflow of each tensor.
What to do
    Keep loss and norm, and watch underflow, overflow and scales of every tensor: floatscope.watch does, and
    floatscope diagnose reads its log (FS301).
Source
    Measured; the bundled trainer's gradient_underflow fault.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

from floatscope_trainer.facts.bundled import FAULT_AT, differences, healthy, trained
from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement

NOTICED_NATS = 0.1  # an alarm on the loss of single batches needs more: healthy batches differ by that much
SCALE = 2.0**-10


def measure() -> Measured:
    """Two runs of the bundled trainer."""
    clean = healthy()
    run = trained(f"gradient_underflow@{FAULT_AT}:blocks.1.*/grad_output*{SCALE}")
    before = clean.loss[FAULT_AT - 30 : FAULT_AT]
    spread = statistics.pstdev(b - a for a, b in pairwise(before))
    first = differences(run, clean)[:10]
    dead = sum(lost > 99 for lost in run.underflow_pct.values())
    dead_before = sum(lost > 99 for lost in clean.underflow_pct.values())
    worst = max(first)
    return Measured(
        figures=(
            Figure("gradients lost whole (> 99 % underflow)", dead, "tensors", (4, 4)),
            Figure("the same without the fault", dead_before, "tensors", (0, 0)),
            Figure("largest rise of the loss, 10 steps", worst, "nats"),
            Figure("mean rise of the loss, 10 steps", statistics.fmean(first), "nats"),
            Figure("change of the loss from step to step", spread, "nats"),
            Figure("steps with loss NaN or inf", run.nonfinite, published=(0, 0)),
        ),
        claimed=(
            Statement(
                "the loss rises above its usual change within 10 steps", worst > max(spread, NOTICED_NATS)
            ),
            Statement("NaN or inf appears", run.nonfinite > 0),
        ),
        true=(Statement("underflow shows every dead gradient in the same steps", dead == 4),),
    )


FACT = Fact("loss-blindness", "false", measure)

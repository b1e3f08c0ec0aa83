"""A wrong scale sends the loss to 1e6.

What people say
    Loss climbing to 1e6 within steps 3 to 10 means that scale calibration failed.
What is true
    With saturating casts a wrong scale is bounded: values clip at 448, the loss moves by a little to a nat or
    two. Without saturation the loss is NaN in the same step. A finite loss of 1e6 and more points at the
    optimizer: a second moment that was flushed to 0 (see adam-second-moment).
How it is measured
    The bundled trainer, trained for 40 steps; then inputs of one linear, and of all, are 16 times larger than
    their scales allow, for 20 steps with the scales frozen. Loss against the same run without it.
What to do
    Look at overflow and at the scale of the tensor (FS201, FS203), not at the loss. For an exploding loss
    look at the update-to-weight ratio and the optimizer state (FS422), then at the learning rate (FS421).
Source
    Measured; the bundled trainer's stale_scale and scale_frozen faults.
"""

from __future__ import annotations

import math

from floatscope_trainer.facts.bundled import FAULT_AT, STEPS, differences, healthy, trained
from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement

EXPLOSION = 1e6
BOUND_NATS = 6.0  # far above what was seen, far below an explosion


def measure() -> Measured:
    """Three runs of the bundled trainer."""
    clean = healthy()
    runs = {
        where: trained(f"stale_scale@{FAULT_AT}:{inputs}*16", f"scale_frozen@{FAULT_AT}:{inputs}")
        for where, inputs in (("one linear", "blocks.0.mlp.fc1/input"), ("all linears", "*/input"))
    }
    worst = {where: max(map(abs, differences(run, clean))) for where, run in runs.items()}
    highest = max(max(run.loss) for run in runs.values())
    nonfinite = sum(run.nonfinite for run in runs.values())
    return Measured(
        figures=(
            Figure("steps with the wrong scale", STEPS - FAULT_AT),
            *(
                Figure(f"largest change of the loss, {where}", value, "nats", (0, BOUND_NATS))
                for where, value in worst.items()
            ),
            Figure("highest loss", highest, "nats"),
            Figure("steps with loss NaN or inf", nonfinite, published=(0, 0)),
        ),
        claimed=(Statement("the loss reaches 1e6", highest >= EXPLOSION or math.isinf(highest)),),
        true=(
            Statement(f"the loss changes by less than {BOUND_NATS:g} nats", max(worst.values()) < BOUND_NATS),
            Statement("it stays finite", nonfinite == 0),
        ),
    )


FACT = Fact("wrong-scale-loss", "false", measure)

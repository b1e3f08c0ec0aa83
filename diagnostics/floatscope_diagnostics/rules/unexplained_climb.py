"""FS903 a loss that climbs without a known cause.

What it checks
    A loss that turns and climbs in a log that has neither the learning rate nor tensor statistics.
Why it matters
    The run is being lost, and what is logged cannot tell why: saying so, with what to log, beats a guess.
How it decides
    A fast average of the loss stands half a nat and four and a half of the noise's deviations above its
    lowest value for six rows, and no other rule has an explanation.
What excludes it
    A learning rate in the log (learning-rate divergence judges it); a loss that went up in one step (data
    shift, bad batch); values that are not finite.
Known false positives
    A curriculum that becomes harder little by little.
What to do
    Log lr, update_norm, eval_loss and the statistics of the tensors, go back before the turn and run again.
Source
    Who moves first: an update before the loss is the optimizer, a tensor before it the precision.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.placing import stepped
from floatscope_diagnostics.rule import (
    Alternative,
    Evidence,
    Finding,
    Need,
    Remedy,
    Rule,
    RunFacts,
    Symptoms,
    Window,
    about,
)

CLIMB_ROWS = 6
REMEDY = Remedy(
    "Log lr, update_norm, a fixed held-out batch (eval_loss) and amax, scale, overflow and underflow of the "
    "tensors, go back before the turn and run again.",
    {
        "transformer_engine": "debug feature LogFp8TensorStats",
        "torchao": "no setting: read amax and scale in hooks",
        "megatron": "--log-params-norm; --check-for-nan-in-loss-and-grad",
        "deepspeed": "log engine.get_lr() and engine.get_global_grad_norm()",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per climb that nothing in the log can explain."""
    if "lr" in run.scalars:
        return
    for s in symptoms.of("loss_climb"):
        if s.rows < CLIMB_ROWS or stepped(s, symptoms):
            continue
        grads = [
            g for n in ("grad_norm_jump", "grad_norm_shift") for g in symptoms.near(n, s.onset, after=64)
        ]
        yield about(
            s,
            cause="undetermined",
            symptom="divergence",
            severity="warning",
            confidence=0.5,
            onset_last=s.detected,
            summary=f"The loss turned about step {s.onset:,} and has climbed {s.peak:.2f} nats; what is "
            "logged does not tell why.",
            evidence=[
                Evidence("loss above its lowest level", s.peak_step, s.peak, "falling or flat"),
                *(
                    Evidence("grad_norm, log2 above its level", g.peak_step, g.peak, "within 3")
                    for g in grads[:1]
                ),
            ],
            alternatives=(
                Alternative("lr_divergence", 0.4 if grads else 0.3, "the learning rate is not logged"),
                Alternative("data_shift", 0.25, "no held-out loss is logged"),
                Alternative("optimizer_state_fault", 0.15, "no update size is logged"),
            ),
            remedy=REMEDY,
            decisive_test="Restart before the turn with a third of the rate: if the loss keeps falling it "
            "was the rate; if it turns on the same batches it is the data.",
        )


RULE = Rule("FS903", "unexplained_climb", ("undetermined",), (Need("loss"), Need("lr")), check)

"""FS903 a loss that climbs without a known cause.

What it checks
    A loss that turns and climbs, or leaps up for good, in a log that cannot tell why.
Why it matters
    The run is being lost, and what is logged cannot tell why: saying so, with what to log, beats a guess.
How it decides
    A fast average of the loss stands half a nat and four and a half of the noise's deviations above its
    lowest value for six rows, and no other rule has an explanation. Without tensor statistics the whole curve
    is judged: it left its best level for good by 1.5 times or more, or all that had been learned is lost (by
    1.3 times or more).
What excludes it
    With tensor statistics a learning rate in the log (learning-rate divergence judges it); a loss that went
    up in one step (data shift, bad batch); values that are not finite.
Known false positives
    A curriculum that becomes harder little by little.
What to do
    Log lr, update_norm, eval_loss and the statistics of the tensors, go back before the turn and run again.
Source
    Who moves first: an update before the loss is the optimizer, a tensor before it the precision.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.curve_shapes.telling import covered_by_nonfinite, is_notable, of_curve, times
from floatscope_diagnostics.placing import observed, stepped
from floatscope_diagnostics.rule import (
    Alternative,
    Evidence,
    Finding,
    Need,
    Remedy,
    Rule,
    RunFacts,
    Severity,
    Symptoms,
    Window,
    about,
)
from floatscope_diagnostics.thresholds import Threshold

CLIMB_ROWS = 6
# nobody lets a run go on from there
CRITICAL = Threshold(
    "critical_times",
    "times the best level",
    1.5,
    1.05,
    100.0,
    "In a log without statistics of tensors, a loss that ends so far above its best is critical.",
)
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
    if run.curves_only:
        yield from _from_curves(symptoms, run)
        return
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


def _from_curves(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    for s in symptoms.of("curve_divergence"):
        if s.extra.get("rate_jump"):
            continue  # see learning-rate divergence
        factor, lost = s.extra.get("factor", 1.0), s.extra.get("above_start", 0.0) > 0
        severity: Severity = "info"
        if is_notable(s):
            severity = (
                "critical"
                if factor >= CRITICAL.of(run) and not covered_by_nonfinite(s, symptoms)
                else "warning"
            )
        grads = [
            g
            for n in ("grad_norm_jump", "grad_norm_shift")
            for g in symptoms.near(n, s.onset, before=8, after=64)
        ]
        rate = "at an unchanged rate" if "lr" in run.scalars else "the learning rate is not logged"
        yield of_curve(
            s,
            cause="undetermined",
            symptom="divergence",
            severity=severity,
            confidence=0.5,
            onset_last=max(s.onset, s.detected or s.onset),
            summary=f"The {s.peak_tensor} rose {times(s)} from step {s.onset:,} on and has not come back"
            + (": all that had been learned is lost." if lost else "."),
            evidence=[
                Evidence(
                    str(s.peak_tensor), s.peak_step, s.peak, f"near {s.expected or 0:.4g}, falling or flat"
                ),
                *(observed(g) for g in grads[:1]),
            ],
            alternatives=(
                Alternative("lr_divergence", 0.45 if grads else 0.35, rate),
                Alternative("data_shift", 0.25, "no held-out loss is logged"),
                Alternative("optimizer_state_fault", 0.15, "no update size is logged"),
            ),
            remedy=REMEDY,
            decisive_test="Restart before the rise with a third of the rate: if the loss keeps falling it "
            "was the rate; if it turns on the same batches it is the data.",
        )


RULE = Rule(
    "FS903",
    "unexplained_climb",
    ("undetermined",),
    (Need("loss"), Need("lr")),
    check,
    thresholds=(CRITICAL,),
)

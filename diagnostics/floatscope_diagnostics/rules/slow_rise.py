"""FS904 a loss that drifts upwards.

What it checks
    A loss that creeps up over a long part of the log while it should fall.
Why it matters
    No single step stands out, so nobody looks; weeks later the run is worse than it was.
How it decides
    On the whole curve of a run without tensor statistics: a running median stands 3 % and six of its own
    deviations above its lowest level, over at least 12 points and an eighth of the log up to its end, and the
    last third of that stretch lies above its first.
What excludes it
    A held-out loss that went on falling meanwhile (harder data); a learning rate that rises (a cyclic
    schedule); a rise that lost less than a fortieth of what had been gained; a loss that jumped.
Known false positives
    A curriculum that becomes harder little by little, without a held-out loss in the log.
What to do
    Log a fixed held-out batch, the learning rate and the statistics of the tensors; go back to the turn.
Source
    Run-level drift without a baseline is the weakest evidence there is (loss residuals wander with the data),
    so the cause stays open. Healthy curves of the benchmark stay below half of the limits.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.curve_shapes.telling import covered_by_nonfinite, is_notable, of_curve, times
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
)

REMEDY = Remedy(
    "Evaluate a fixed held-out batch on the checkpoint before the turn and on the last one. If it got worse, "
    "go back before the turn and run again with a lower rate or in BF16, with statistics of the tensors.",
    {
        "transformer_engine": "debug feature LogFp8TensorStats",
        "torchao": "no setting: read amax and scale in hooks",
        "megatron": "--log-params-norm; --lr; --bf16",
        "deepspeed": "log engine.get_lr() and engine.get_global_grad_norm()",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per curve that creeps up."""
    for s in symptoms.of("curve_drift"):
        if s.extra.get("rate_jump") or covered_by_nonfinite(s, symptoms):
            continue
        yield of_curve(
            s,
            cause="undetermined",
            symptom="drift_up",
            severity="warning" if is_notable(s) else "info",
            confidence=0.5,
            onset_last=max(s.onset, s.detected or s.onset),
            summary=f"The {s.peak_tensor} has drifted up {times(s)} since about step {s.onset:,}.",
            evidence=[Evidence(str(s.peak_tensor), s.peak_step, s.peak, f"below {s.expected or 0:.4g}")],
            alternatives=(
                Alternative("quantization_drift", 0.3, "no statistics of tensors are logged"),
                Alternative("lr_divergence", 0.3, "it rises slowly"),
                Alternative("data_shift", 0.25, "no held-out loss is logged"),
            ),
            remedy=REMEDY,
            decisive_test="Run 200 steps from before the turn in BF16 and at half the rate: the one that "
            "keeps falling names the cause.",
        )


RULE = Rule("FS904", "slow_rise", ("undetermined",), (Need("loss"), Need("eval_loss"), Need("lr")), check)

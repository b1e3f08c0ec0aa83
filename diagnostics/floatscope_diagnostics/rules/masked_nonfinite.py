"""FS603 masked non-finite values.

What it checks
    NaN or Inf in a tensor while the loss stays finite, a loss of exactly 0, or steps that are skipped without
    a word.
Why it matters
    Something (nan_to_num, a saturating cast, a skip) turns the value into 0 or the format's maximum: the run
    goes on, learns wrong, and every NaN check on the loss is green. An Inf also freezes the FP8 scale for a
    whole amax history.
How it decides
    Counts of non-finite values before the cast are above 0 while loss and gradient norm are finite in the
    same and the next step. No threshold.
What excludes it
    A loss that is not finite in the same or the next step; a scale that was not finite before.
Known false positives
    Masks that add minus infinity to logits on purpose, when the masked tensor itself is logged.
What to do
    Remove the masking and find the operation that makes the value.
Source
    Public reports: DeepSpeed#5347, trl#6668, maxtext#3721, TE#3550. Measured: one Inf in an activation costs
    0.005 nats.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.placing import bad_values
from floatscope_diagnostics.precision import fitting
from floatscope_diagnostics.rule import (
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

USUAL_LOSS = 0.05  # losses that live near 0 (reinforcement learning, memorised data) may reach it
FP8 = Remedy(
    "Take out nan_to_num and silent skips, then find the operation in front of this tensor that "
    "makes the value. With delayed "
    "scaling zero its amax history: an Inf freezes the scale until it leaves.",
    {
        "transformer_engine": "Float8CurrentScaling() does not remember the Inf; casts "
        "saturate, so count Inf before the cast",
        "torchao": "clamp before the cast hides Inf: count it before",
        "megatron": "--check-for-nan-in-loss-and-grad, --check-for-large-grads",
        "deepspeed": "log engine.skipped_steps; bf16 skips are silent",
    },
)
PLAIN = Remedy(
    "Take out nan_to_num and silent skips, then find the operation in front of this tensor that makes the "
    "value.",
    {
        "transformer_engine": "no setting: nothing is cast to FP8 in this run",
        "torchao": "no setting: nothing is cast to FP8 in this run",
        "megatron": "--check-for-nan-in-loss-and-grad, --check-for-large-grads",
        "deepspeed": "log engine.skipped_steps; bf16 skips are silent",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per stretch of non-finite values that never reach the loss."""
    if "loss" not in run.scalars:
        return
    for s in symptoms.of("nonfinite_forward"):
        if symptoms.near("loss_nonfinite", s.onset, after=1) or symptoms.active(
            "loss_nonfinite", s.onset, slack=1
        ):
            continue
        if symptoms.near("scale_nonfinite", s.onset, before=1, after=0):
            continue
        what = "Inf" if s.extra.get("inf") else "NaN"
        yield about(
            s,
            cause="masked_nonfinite",
            symptom="nonfinite",
            severity="critical" if s.rows > 1 else "warning",
            confidence=0.92 if s.rows > 1 else 0.85,
            order="forward",
            summary=f"{what} in {s.tensor} since step {s.onset:,} never reaches the loss: "
            "something hides it.",
            evidence=[
                bad_values(s),
                Evidence("loss", s.onset, "finite", "NaN, if nothing hid it"),
            ],
            remedy=fitting(run, FP8, PLAIN),
            decisive_test="Replay the step with masking off and casts that do not saturate: the "
            "loss becomes NaN.",
        )
    for z in symptoms.of("loss_zero"):
        was_high = (z.expected or 0.0) > USUAL_LOSS
        if (z.rows > 1 and was_high) or symptoms.near("grad_norm_nonfinite", z.onset, before=1, after=1):
            yield about(
                z,
                cause="masked_nonfinite",
                symptom="frozen_loss",
                severity="warning",
                confidence=0.75,
                summary=f"The loss is exactly 0 from step {z.onset:,} on: loggers print 0.0 for "
                "a loss that was NaN.",
                evidence=[Evidence("loss", z.onset, 0.0, "above 0")],
                remedy=fitting(run, FP8, PLAIN),
                decisive_test="Print the loss before the logger touches it.",
            )


RULE = Rule(
    "FS603",
    "masked_nonfinite",
    ("masked_nonfinite",),
    (Need("nan_count", ("input", "output")), Need("loss")),
    check,
)

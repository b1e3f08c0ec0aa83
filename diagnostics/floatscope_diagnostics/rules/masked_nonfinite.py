"""FS603 masked non-finite values.

What it checks
    NaN or Inf in a tensor while the loss stays finite, a loss of exactly 0 or none at all, a gradient norm
    that repeats its digits.
Why it matters
    Something (nan_to_num, a saturating cast, a skip) turns the value into 0 or the format's maximum: the run
    goes on, learns wrong, and every NaN check on the loss is green. An Inf also freezes the FP8 scale for a
    whole amax history.
How it decides
    Counts of non-finite values before the cast are above 0 while loss and gradient norm are finite in the
    same and the next step. Or the loss is exactly 0, or missing, from some step on; or the gradient norm is
    the same number at every step, for example the root of 2 or 3. No threshold.
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

from floatscope_diagnostics.curve_shapes.telling import of_curve
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

CLIPPED_AT = 1.0  # the usual largest norm: where the logged one is the clipped one, it repeats
# Of the square to a whole number: 1.41421356 and 1.7320508 were seen, norms of 2 and 3 ones.
ROOT_TOLERANCE = 1e-5
PRINTED = 1e4  # norms with at most four decimals say nothing by repeating
USUAL_LOSS = 0.05  # losses that live near 0 (reinforcement learning, memorised data) may reach it
FP8 = Remedy(
    "Take out nan_to_num and silent skips, then find the operation in front of this tensor that makes the "
    "value. With delayed scaling zero its amax history: an Inf freezes the scale until it leaves.",
    {
        "transformer_engine": "Float8CurrentScaling() does not remember the Inf; casts saturate, so count "
        "Inf before the cast",
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
    if run.curves_only:
        yield from _from_curves(symptoms, run)
        return
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

    yield from _repeats(symptoms, run)
    yield from _missing(symptoms, run)


def _from_curves(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """A loss that is 0 or left out for good, and gradients of constants under a loss that still moves."""
    told = {0.0: "and the gradient norm is missing", 1.0: "and so is the gradient norm",
            2.0: "while the gradient norm is not finite", 3.0: "while the gradient norm is not"}  # fmt: skip
    lost = symptoms.of("curve_loss_zero", "curve_loss_gone")
    for s in lost:
        zero = s.signal == "curve_loss_zero"
        what = f"The loss is exactly 0 from step {s.onset:,} on, {told[s.extra.get('grad', 0.0)]}: loggers "
        what += "print 0.0 for a loss that was NaN."
        if not zero:
            what = f"The loss is missing from step {s.onset:,} on while the other numbers go on: loggers "
            what += "leave out a loss that was NaN."
        yield of_curve(
            s,
            cause="masked_nonfinite",
            symptom="nonfinite",
            severity="warning",
            confidence=0.75,
            summary=what,
            evidence=[Evidence("loss", s.onset, 0.0 if zero else None, "a number above 0 at every step")],
            remedy=PLAIN,
            decisive_test="Print the loss before the logger touches it.",
        )
    if not lost and not symptoms.of("curve_frozen"):
        yield from _repeats(symptoms, run)


def _repeats(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """The same digits of the gradient norm step after step: every gradient was replaced by a constant."""
    for g in symptoms.of("grad_norm_constant"):
        if any(
            symptoms.active(name, g.onset, slack=2) for name in ("lr_zero", "grad_norm_zero", "no_labels")
        ):
            continue
        root = abs(g.value**2 - round(g.value**2)) < ROOT_TOLERANCE and g.value > CLIPPED_AT
        lost = any(
            symptoms.active(name, g.onset, slack=3)
            for name in ("loss_zero", "loss_missing", "loss_nonfinite")
        )
        if abs(g.value - CLIPPED_AT) < ROOT_TOLERANCE and not lost:
            continue  # a norm logged behind the clipping
        if not lost and abs(g.value * PRINTED - round(g.value * PRINTED)) < ROOT_TOLERANCE:
            continue  # few printed digits repeat by chance
        yield about(
            g,
            cause="masked_nonfinite",
            symptom="frozen_loss" if lost else "nonfinite",
            severity="warning",
            confidence=0.85 if root or lost else 0.5,
            summary=f"The gradient norm is exactly {g.value:.7g} at every step since {g.onset:,}: gradients "
            "that were not finite have been replaced by constants.",
            evidence=[Evidence("grad_norm", g.onset, g.value, "changes from step to step")],
            remedy=fitting(run, FP8, PLAIN),
            decisive_test="Print the gradients of one weight before anything touches them: they are NaN.",
        )


def _missing(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """The other scalars go on without a loss."""
    for m in symptoms.of("loss_missing"):
        if symptoms.near("nonfinite_forward", m.onset, before=2, after=2):
            continue
        yield about(
            m,
            cause="masked_nonfinite",
            symptom="frozen_loss",
            severity="warning",
            confidence=0.7,
            summary=f"The loss is missing from step {m.onset:,} on while the other numbers go on: loggers "
            "leave out a loss that was NaN.",
            evidence=[Evidence("loss", m.onset, None, "a number at every step")],
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

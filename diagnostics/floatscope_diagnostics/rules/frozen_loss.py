"""FS905 a loss that repeats itself.

What it checks
    Whether the loss is the same to the last digit step after step.
Why it matters
    Nothing is learned or nothing is measured: weights that no longer move, a batch that is never replaced, or
    a logger that repeats its last value.
How it decides
    On the whole curve of a run without tensor statistics: the last 16 points or more are equal in three
    significant digits or more; six points suffice where the gradient norm repeats itself as well, and of a
    number with fewer digits it takes 64, with a gradient norm that repeats itself.
What excludes it
    A loss of exactly 0 (masked non-finite values); a level that equal logits explain (dead logits).
Known false positives
    A logger that prints a running mean over the whole run.
What to do
    Print one parameter's sum before and after a step, and the ids of two batches in a row.
Source
    Invariant: a sum over thousands of tokens does not repeat its digits.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.curve_shapes.telling import of_curve
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
    "Stop and look: does a parameter change in a step, is the batch another one, does the logged number come "
    "from this step?",
    {
        "transformer_engine": "no setting",
        "torchao": "no setting",
        "megatron": "--log-params-norm shows whether parameters move",
        "deepspeed": "check skipped steps: engine.skipped_steps",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per loss that has stopped changing."""
    for s in symptoms.of("curve_frozen"):
        norm = s.extra.get("norm", 0.0) > 0
        yield of_curve(
            s,
            cause="undetermined",
            symptom="frozen_loss",
            severity="warning",
            confidence=0.5,
            summary=f"The loss is exactly {s.value:.6g} at each of the last {s.rows:,} points, since step "
            f"{s.onset:,}" + (", and the gradient norm repeats itself as well." if norm else "."),
            evidence=[
                Evidence("loss", s.onset, s.value, "changes from step to step"),
                *(
                    [Evidence("grad_norm", s.last, "the same digits", "changes from step to step")]
                    if norm
                    else []
                ),
            ],
            alternatives=(
                Alternative("plateau", 0.35, "the weights may not move: rate 0, frozen or skipped updates"),
                Alternative("masked_nonfinite", 0.3, "a logger may repeat its last value"),
            ),
            remedy=REMEDY,
            decisive_test="Print the sum of one weight and the loss before the logger touches it, for three "
            "steps: the one that does not change is at fault.",
        )


RULE = Rule("FS905", "frozen_loss", ("undetermined",), (Need("loss"), Need("grad_norm")), check)

"""FS425 dead logits.

What it checks
    A loss that is exactly the logarithm of the vocabulary size with a gradient of exactly 0.
Why it matters
    All logits are equal: the model outputs nothing and learns nothing, yet nothing looks broken to a NaN
    check.
How it decides
    The loss repeats the same digits for three steps and equals ln(vocabulary), or repeats while the gradient
    norm is 0 and there are labels.
What excludes it
    A learning rate of 0, a batch without labels, a loss that changes in its last digits.
Known false positives
    Loggers that print two digits make a flat loss look constant; the gradient of exactly 0 decides then.
What to do
    Look at the output layer: an unloaded or zeroed head, a wrong tie of embeddings, a mask that removes
    everything.
Source
    Public report Automodel#1980: loss ln V, gradient 0, and the build was green.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

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

LEAP_LOG2 = 3.0  # no update moves a weight's largest element that far
LOG_VOCAB_TOLERANCE = 0.002  # nats; logs print four digits
FP8 = Remedy(
    "Check the output layer: loaded weights, embedding tie, logit scale or mask. Go back to the "
    "last clean step.",
    {
        "transformer_engine": "keep the head out of te.autocast",
        "torchao": "exclude the head in module_filter_fn",
        "megatron": "check --untie-embeddings-and-output-weights against the checkpoint",
        "deepspeed": "check that the head's weights were gathered and loaded",
    },
)
PLAIN = Remedy(
    FP8.text,
    {
        "transformer_engine": "no setting: nothing is cast to FP8 in this run",
        "torchao": "no setting: nothing is cast to FP8 in this run",
        "megatron": FP8.settings["megatron"],
        "deepspeed": FP8.settings["deepspeed"],
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per stretch of constant loss without gradient."""
    for s in symptoms.of("loss_constant"):
        loss, log_v = s.extra.get("loss", math.nan), s.extra.get("log_vocab", math.nan)
        at_log_v = abs(loss - log_v) < LOG_VOCAB_TOLERANCE
        no_grad = symptoms.near("grad_norm_zero", s.onset, before=2, after=3)
        if symptoms.active("lr_zero", s.onset, slack=2) or symptoms.active("no_labels", s.onset, slack=2):
            continue
        if not at_log_v and not no_grad:
            continue
        leapt = [j for j in symptoms.near("amax_jump", s.onset, before=2, after=1) if j.value > LEAP_LOG2]
        if any(t.endswith("/weight") for j in leapt for t in j.first):
            continue  # a weight that went first took the logits with it, see corrupted weight
        yield about(
            s,
            cause="dead_logits",
            symptom="frozen_loss",
            severity="critical",
            confidence=0.97 if at_log_v and no_grad else 0.85 if at_log_v else 0.65,
            summary=f"The loss is exactly {loss:.4f}{' = ln(vocabulary)' if at_log_v else ''} at every step "
            f"since {s.onset:,}: all logits are equal and nothing is learned.",
            evidence=[
                Evidence("loss", s.onset, loss, "changes from step to step"),
                *(Evidence("grad_norm", g.onset, 0.0, "above 0") for g in no_grad[:1]),
            ],
            remedy=fitting(run, FP8, PLAIN),
            decisive_test="Print the largest and smallest logit of one batch: they are equal.",
        )


RULE = Rule("FS425", "dead_logits", ("dead_logits",), (Need("loss"), Need("grad_norm")), check)

"""FS303 update stagnation.

What it checks
    Share of weights whose stored value did not change in the optimizer step.
Why it matters
    Updates below half a unit in the last place of a BF16 weight round away. The loss flattens early, mostly
    when the learning rate decays, and looks like convergence.
How it decides
    The unchanged share of nearly all weights rises far above its level while the learning rate is not 0 and
    gradients are healthy. A learning rate of 0 (plateau) and gradients that are 0 exclude it; so does, weight
    by weight, a gradient of exactly 0 or one that is no longer there (a norm that is frozen or not used).
What excludes it
    A learning rate of 0 (plateau), gradients that are exactly 0 (of the run, or of the weight), weights that
    have no gradient any more, skipped steps.
Known false positives
    Embedding rows that are rarely used do not change in most steps; the level before the onset already
    has them.
What to do
    Keep FP32 master weights, or use stochastic rounding or Kahan summation for BF16 weights.
Source
    Measured: BF16 weights realise 37 % of an update of 1e-3 of the weight, 9 % of 3e-4, 0.3 % of 1e-5. With
    stochastic rounding the loss gap vanished.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from floatscope_diagnostics.thresholds import Threshold

REMEDY = Remedy(
    "Keep FP32 master weights (or the lost bits of BF16 weights), or round stochastically. Go back to the "
    "last clean step if the loss has flattened.",
    {
        "transformer_engine": "FusedAdam(..., master_weights=True) or store_param_remainders=True",
        "torchao": "torchao.optim.AdamW8bit(..., bf16_stochastic_round=True)",
        "megatron": "--use-distributed-optimizer with --main-params-dtype fp32 (the default)",
        "deepspeed": '"bf16": {"enabled": true} keeps FP32 master weights; do not train raw bf16 parameters',
    },
)

# One embedding or normalisation weight at the end of a decay: rare rows and values near 1 round away first,
# by up to 18 % with FP32 weights at a rate of 1e-7; raw BF16 weights lose 60 % and more, in all tensors.
FEW_TENSORS = 2
SMALL = Threshold(
    "unchanged_pct",
    "%",
    25.0,
    0.0,
    100.0,
    "Where one or two tensors stand still, a smaller share of their weights is a note.",
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per stretch of updates that round away."""
    for s in symptoms.of("unchanged"):
        if symptoms.active("lr_zero", s.onset, slack=2) or symptoms.active(
            "grad_norm_zero", s.onset, slack=2
        ):
            continue
        yield about(
            s,
            cause="update_stagnation",
            symptom="plateau",
            severity="info" if s.peak < SMALL.of(run) and len(s.tensors) <= FEW_TENSORS else "warning",
            confidence=0.92 if len(s.tensors) > 1 else 0.7,
            tensors=s.first if len(s.tensors) <= FEW_TENSORS else (),
            order="forward" if len(s.tensors) <= FEW_TENSORS else None,
            summary=f"Since step {s.onset:,} up to {s.peak:.0f} % of the weights keep their stored value in "
            f"a step ({len(s.tensors)} tensors): the updates round away.",
            evidence=[Evidence("unchanged_pct", s.peak_step, s.peak, "near 0", s.peak_tensor)],
            remedy=REMEDY,
            decisive_test="Keep an FP32 copy of one weight for 50 steps: if it moves and the "
            "stored weight does not, it is proven.",
        )


RULE = Rule(
    "FS303",
    "update_stagnation",
    ("update_stagnation",),
    (Need("unchanged_pct", ("weight",)),),
    check,
    thresholds=(SMALL,),
)

"""FS403 attention logit growth.

What it checks
    Whether the gradients that enter one attention layer's query-key-value projection spread over more and
    more orders of magnitude, or its weights grow away from all others.
Why it matters
    Attention logits that grow turn the softmax into a hard choice: most of its gradient becomes tiny, a few
    entries large. The loss shows it late and then explodes.
How it decides
    The underflow of grad_output of a single attention projection creeps up step after step while its scale
    and headroom are right and no other layer follows; or the largest query-key weight rises step after step.
What excludes it
    Several layers at once; idle or clipping scales; a rate, update or loss that jumped before; a gradient
    that leaps in one step instead of creeping (operation fault).
Known false positives
    A layer whose keys are re-initialised or un-frozen grows at first, too.
What to do
    Normalise queries and keys, clip the query-key weights, or cap the logits.
Source
    Measured: logits of one layer growing by 1.06 a step show in the underflow of its qkv gradient after 16
    steps, in the loss not at all within 52.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatscope_diagnostics.growth import attention_weights, of_warm_up
from floatscope_diagnostics.placing import abrupt
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
    proof_after,
    shared,
)

ATTENTION = re.compile(r"(qkv|q_proj|k_proj|query|key|\bwq\b|\bwk\b|attn|attention)", re.IGNORECASE)
MAX_LAYERS = 1
GROWTH_ROWS = 3
LEAPS = ("gradient_apart", "underflow_step")  # from one step to the next: no growth
QUICK_ROWS = 128
LEAP_LOG2 = 3.0
MOVERS = ("lr_jump", "norm_jump", "update_jump", "loss_jump", "resumed")
REMEDY = Remedy(
    "Bound the attention logits: normalise queries and keys, clip their weights (threshold 100), cap the "
    "logits, or lower the learning rate.",
    {
        "transformer_engine": "qk_norm_type='RMSNorm' in MultiheadAttention and TransformerLayer",
        "megatron": "--qk-layernorm; --qk-clip; --log-max-attention-logit to watch it",
        "torchao": "no setting: change the attention module",
        "deepspeed": "no setting: change the attention module",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding when a single attention projection's gradient spreads, or its weights grow."""
    yield from _weights(symptoms)
    for s in symptoms.of("underflow", "underflow_trend"):
        layers = {t.rpartition("/")[0] for t in s.first}
        gradients = [t for t in s.tensors if t.endswith("/grad_output")]
        if len(layers) > MAX_LAYERS or len(gradients) != len(s.tensors):
            continue
        if not all(ATTENTION.search(layer) for layer in layers):
            continue
        if symptoms.active("headroom_up", s.onset, slack=4) or symptoms.active("clipping", s.onset, slack=4):
            continue
        leaps = [a for n in LEAPS for a in symptoms.near(n, s.onset, before=8, after=8)]
        if any(abrupt(a) and shared(a, s) for a in leaps):
            continue  # see operation fault
        onset = int(s.extra.get("creep", s.onset))
        yield about(
            s,
            cause="logit_growth",
            symptom="drift_up",
            severity="warning",
            confidence=0.78,
            onset=onset,
            onset_last=s.onset,
            order="backward",
            summary=f"The gradient of {s.tensor} spreads out: {s.peak:.0f} % of it rounds to zero with a "
            "correct scale. Its attention logits are growing.",
            evidence=[Evidence("underflow_pct", s.peak_step, s.peak, "near its own level", s.peak_tensor)],
            remedy=REMEDY,
            decisive_test="Log the largest attention logit of this layer for 20 steps: it grows "
            "from step to step.",
        )


def _weights(symptoms: Symptoms) -> Iterator[Finding]:
    for s in symptoms.of("amax_jump", "amax_trend"):
        layers = {t.rpartition("/")[0] for t in s.tensors}
        if (
            not attention_weights(s)
            or len(layers) > MAX_LAYERS
            or s.rows < GROWTH_ROWS
            or of_warm_up(s, symptoms)
        ):
            continue
        quick = (s.detected or s.onset) - s.onset <= QUICK_ROWS * symptoms.stride
        if s.value >= LEAP_LOG2 or not quick or (s.signal == "amax_jump" and s.peak < s.value + 1.0):
            continue  # a leap is a corrupted weight; one that only stays larger does not grow
        if any(m.onset <= s.onset <= m.last + 64 for m in symptoms.of(*MOVERS)):
            continue
        yield about(
            s,
            cause="logit_growth",
            symptom="drift_up",
            severity="warning",
            confidence=0.8,
            detected=proof_after(s, GROWTH_ROWS, symptoms),
            order="forward",
            summary=f"{s.tensor} grows since step {s.onset:,} and no other layer does: {2**s.peak:.3g} times "
            "its level. Query and key weights that grow make attention logits that grow.",
            evidence=[Evidence("log2 amax above its level", s.peak_step, s.peak, "below 0.6", s.peak_tensor)],
            remedy=REMEDY,
            decisive_test="Log the largest attention logit of this layer for 20 steps: it grows "
            "from step to step.",
        )


RULE = Rule("FS403", "logit_growth", ("logit_growth",), (Need("underflow_pct", ("grad_output",)),), check)

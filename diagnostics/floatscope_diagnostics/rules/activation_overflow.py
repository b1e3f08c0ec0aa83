"""FS402 activation overflow.

What it checks
    Whether a forward value passes the largest number of its own 16-bit format (65,504 for FP16).
Why it matters
    The forward itself makes Inf: lowering the loss scale cannot help, it only halves for nothing.
How it decides
    The amax of an FP16 input or output comes within 7 % of the format's maximum, or non-finite values begin
    right behind a tensor that was that large. Formats with a scale are excluded: there the scale decides.
What excludes it
    A format with a scale of its own; a growth that stays below 93 % of the largest number.
Known false positives
    Attention masks written as the most negative FP16 number are large by design: exclude such tensors
    from the log.
What to do
    Run the layer in BF16 or FP32, or clamp its output.
Source
    Reported for T5 in FP16: the second feed-forward output reaches 66,246, the loss scale halves uselessly
    afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.placing import bad_values
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
    shared,
)

BEFORE_ROWS = 3
GROWTH_ROWS = 64
REMEDY = Remedy(
    "Run this layer in BF16 or FP32, or clamp its output below the format's maximum. Lowering "
    "the loss scale does not help.",
    {
        "transformer_engine": "params_dtype=torch.bfloat16",
        "torchao": "torch.autocast(dtype=torch.bfloat16)",
        "megatron": "--bf16 instead of --fp16",
        "deepspeed": '"bf16": {"enabled": true} instead of "fp16"',
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per tensor that reaches its format's limit."""
    for s in symptoms.of("near_limit"):
        if all(t.endswith("/weight") for t in s.tensors):
            continue  # see activation outlier growth
        nan = [
            n
            for n in symptoms.near("nonfinite_forward", s.onset, after=64)
            if n.onset <= s.last + BEFORE_ROWS
        ]
        onset = min([s.onset, *(n.onset for n in nan[:1]), *(g.onset for g in _growth(s, symptoms))])
        yield about(
            s,
            cause="activation_overflow",
            symptom="nonfinite" if nan else "overflow",
            severity="critical" if nan else "warning",
            confidence=0.93 if nan else 0.8,
            onset=onset,
            order="forward",
            lasting=True if nan else None,
            summary=f"{s.tensor} reaches {s.peak:,.0f}, the limit of "
            f"{run.formats.get(s.tensor or '', 'its format')} is 65,504"
            f"{f': NaN from step {nan[0].onset:,} on' if nan else ''}.",
            evidence=[
                Evidence("amax", s.peak_step, s.peak, "below 61,000", s.peak_tensor),
                *(bad_values(n) for n in nan[:1]),
            ],
            remedy=REMEDY,
            decisive_test="Compute this one output in FP32 on the same batch: a value above "
            "65,504 proves it.",
        )


def _growth(s: Symptom, symptoms: Symptoms) -> list[Symptom]:
    """The same tensor's way up to the limit, if it was quick."""
    near = [
        g for name in ("amax_jump", "amax_trend") for g in symptoms.near(name, s.onset, before=GROWTH_ROWS)
    ]
    return [g for g in near if s.onset <= g.last + BEFORE_ROWS and shared(s, g)]


RULE = Rule(
    "FS402", "activation_overflow", ("activation_overflow",), (Need("amax", ("input", "output")),), check
)

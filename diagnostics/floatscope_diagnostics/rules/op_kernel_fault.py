"""FS601 kernel or operation fault: NaN.

What it checks
    Whether one operation makes NaN or Inf out of clean numbers.
Why it matters
    No recipe and no data filter helps; the first bad step destroys the weights, and a checkpoint written
    after it is lost.
How it decides
    In the backward: the gradient of one weight is not finite while all activations, all gradients that enter
    it and all scales are clean; the first in backward order is named. In the forward: the first bad tensor
    lies inside the network, nothing before it was bad, clipped or wrongly scaled.
What excludes it
    A tensor, gradient, scale or loss that was not finite before; missing labels; an overflow that a dynamic
    loss scale answers by halving; clipping or a value at the format's limit in front of it.
Known false positives
    A layer that is not logged may have been the first; the operation named is then the next one that is.
What to do
    Run that one operation in BF16 or with another backend, and report the shape; block the checkpoint written
    after it.
Source
    Public reports: marin#7271 (one weight gradient of an FP8 GEMM), pytorch#150859, TE#2905.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.operation_remedy import operation_remedy
from floatscope_diagnostics.placing import bad_values
from floatscope_diagnostics.rule import (
    Evidence,
    Finding,
    Need,
    Rule,
    RunFacts,
    Symptoms,
    Window,
    about,
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """Findings from a bad weight gradient and from a bad forward value inside the network."""
    for s in symptoms.of("nonfinite_weight_grad"):
        if _dirty_before(s, symptoms) or symptoms.near("loss_scale_cut", s.onset, after=1):
            continue  # an overflow of a dynamic loss scale: it drops the step and halves
        yield about(
            s,
            cause="op_kernel_fault",
            symptom="nonfinite",
            severity="critical",
            confidence=0.92 if len(s.first) <= 2 else 0.62,
            order="backward",
            lasting=True,
            summary=f"The weight gradient of {s.tensor} is not finite at step {s.onset:,} although "
            "everything that goes into it is: the operation is at fault.",
            evidence=[Evidence("grad_norm", s.onset, "not finite", "finite", s.tensor)],
            remedy=operation_remedy(run),
            decisive_test="Recompute this weight gradient in FP32 from the saved input and "
            "grad_output: finite proves the kernel.",
        )
    for s in symptoms.of("nonfinite_forward"):
        entry = run.forward_order[0] if run.forward_order else None
        if s.tensor is None or s.tensor == entry or _explained(s, symptoms):
            continue
        yield about(
            s,
            cause="op_kernel_fault",
            symptom="nonfinite",
            severity="critical",
            confidence=0.66,
            order="forward",
            lasting=True,
            summary=f"{s.tensor} is the first tensor that is not finite at step {s.onset:,}, behind clean "
            "inputs and a correct scale: the operation before it is at fault.",
            evidence=[bad_values(s)],
            remedy=operation_remedy(run),
            decisive_test="Recompute the operation in front of this tensor in FP32 from its "
            "saved inputs: finite proves the kernel.",
        )


def _dirty_before(s: Symptom, symptoms: Symptoms) -> bool:
    signals = (
        "nonfinite_forward",
        "nonfinite_grad",
        "nonfinite_weight",
        "loss_nonfinite",
        "no_labels",
        "scale_nonfinite",
    )
    return any(
        e.rank == s.rank and e.segment == s.segment and e.onset <= s.onset for e in symptoms.of(*signals)
    )


def _explained(s: Symptom, symptoms: Symptoms) -> bool:
    earlier = ("nonfinite_weight_grad", "nonfinite_weight", "grad_norm_nonfinite", "nonfinite_grad")
    if any(e.rank == s.rank and e.onset < s.onset for e in symptoms.of(*earlier)):
        return True
    same = ("clipping", "scale_nonfinite", "scale_reset", "scale_high", "near_limit", "nonfinite_weight")
    return any(symptoms.near(name, s.onset, before=2) for name in same)


RULE = Rule(
    "FS601",
    "op_kernel_fault",
    ("op_kernel_fault",),
    (Need("nan_count", ("input", "output")), Need("grad_norm", ("weight",))),
    check,
)

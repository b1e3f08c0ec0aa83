"""FS601 kernel or operation fault.

What it checks
    Whether one operation makes NaN or Inf out of clean numbers.
Why it matters
    No recipe and no data filter helps; the first bad step destroys the weights, and a checkpoint written
    after it is lost.
How it decides
    In the backward: the gradient of one weight is not finite while all activations, all gradients that enter
    it and all scales are clean; the first in backward order is named. In the forward: the first bad tensor
    lies inside the network, nothing before it was bad, clipped or wrongly scaled.
What to do
    Run that one operation in BF16 or with another backend, and report the shape; block the checkpoint written
    after it.
Source
    Public reports: marin#7271 (one weight gradient of an FP8 GEMM), pytorch#150859, TE#2905.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
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

MOVERS = (
    "lr_jump", "norm_jump", "update_jump", "weights_jump", "clipping", "scale_high", "scale_low",
    "scale_reset",
    "scale_nonfinite", "sqnr_drop_all", "underflow", "unchanged", "loss_constant", "grad_norm_zero",
    "amax_trend",
)  # fmt: skip
HELD_OUT_SHARE = 0.35  # of the training loss's step; less is the model following new data
REMEDY = Remedy(
    "Run this operation (for a weight gradient: the wgrad GEMM of this layer) in BF16 or on "
    "another backend, restore the last "
    "clean checkpoint and block the one written since.",
    {
        "transformer_engine": "debug feature DisableFP8GEMM for this layer and GEMM; "
        "NVTE_FUSED_ATTN=0 or NVTE_FLASH_ATTN=0 to "
        "change the attention backend",
        "torchao": "exclude the layer in module_filter_fn; run without torch.compile",
        "megatron": "--rerun-mode validate_results; --no-gradient-accumulation-fusion",
        "deepspeed": "switch fused kernels off one by one",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """Findings from a bad weight gradient and from a bad forward value inside the network."""
    yield from _shifts(symptoms, run)
    yield from _breaks(symptoms, run)
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
            summary=f"The weight gradient of {s.tensor} is not finite at step {s.onset:,} "
            "although everything that goes into it is: "
            "the operation is at fault.",
            evidence=[Evidence("grad_norm", s.onset, "not finite", "finite", s.tensor)],
            remedy=REMEDY,
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
            summary=f"{s.tensor} is the first tensor that is not finite at step {s.onset:,}, "
            "behind clean inputs and a correct "
            "scale: the operation before it is at fault.",
            evidence=[Evidence("nan_count + inf_count", s.onset, s.value, "0", s.tensor)],
            remedy=REMEDY,
            decisive_test="Recompute the operation in front of this tensor in FP32 from its "
            "saved inputs: finite proves the kernel.",
        )


def _shifts(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """The loss steps up together with the held-out loss on a fixed batch: not the data, but no number says
    where."""
    for s in symptoms.of("loss_shift"):
        held_out = [
            h
            for h in symptoms.near("eval_jump", s.onset, before=2, after=16)
            if h.value > HELD_OUT_SHARE * s.value
        ]
        if not held_out or any(symptoms.near(name, s.onset, before=24, after=8) for name in MOVERS):
            continue
        yield about(
            s,
            cause="op_kernel_fault",
            symptom="spike_not_recovered",
            severity="warning",
            confidence=0.63,
            onset_last=s.detected,
            summary=f"The loss stepped up by {s.peak:.2f} nats about step {s.onset:,} on "
            "training and held-out data alike, "
            "with no precision fault: an operation computes something else.",
            evidence=[
                Evidence("loss above its level", s.peak_step, s.peak, f"{s.expected or 0:.3g}"),
                Evidence("eval_loss above its level", held_out[0].peak_step, held_out[0].peak, "unchanged"),
            ],
            remedy=REMEDY,
            decisive_test="Compare each layer's output with an FP32 reference on one batch: the "
            "first that differs is it.",
        )


def _breaks(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """The run parts from its baseline from one step to the next and no tensor, scale or update moved."""
    looked = ("input", "sqnr_db") in run.stats
    for s in symptoms.of("paired_break"):
        if any(symptoms.near(name, s.onset, before=4, after=2) for name in MOVERS):
            continue
        yield about(
            s,
            cause="op_kernel_fault",
            symptom="spike_not_recovered",
            severity="warning",
            confidence=0.66 if looked else 0.5,
            summary="The loss parts from the baseline on the same batches from one step to the "
            f"next: {s.value:.3f} nats at "
            f"step {s.onset:,}, with no precision fault. An operation computes something else.",
            evidence=[Evidence("loss minus baseline", s.onset, s.value, f"{s.expected or 0:.4f} as before")],
            remedy=REMEDY,
            decisive_test="Compare each layer's output of both runs on one batch: the first "
            "that differs is it.",
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

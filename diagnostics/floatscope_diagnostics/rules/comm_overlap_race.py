"""FS602 communication race.

What it checks
    Whether a weight itself becomes NaN or Inf although activations, gradients and the last update were
    finite; whether weight gradients are wrong in some steps and right in the steps between.
Why it matters
    A buffer that is read or reused before its collective is done destroys parameters or halves gradients; it
    comes and goes with overlap flags and the number of GPUs, and neither loss nor gradient norm shows it.
How it decides
    The first non-finite value of the run is in a weight, with a finite forward and backward in the step
    before. Or gradients come and go: the norm of a weight's gradient leaves what its input and grad_output
    give, by more than all layers moved together in that step, in one layer after the other, and is back in
    line in between; or the share of exactly zero gradients leaves its level three times in 16 steps and
    returns each time.
What excludes it
    A share of zeros or a misfit that stays (accumulation precision, a faulty operation); underflow, a wrong
    scale, no labels or skipped steps at the same time; NaN in an activation or gradient first; hard batches,
    in which all layers' gradients leave what goes into them at once.
Known false positives
    Experts of a mixture that get no token in some steps look like zeros that come and go. A second process
    that writes into the gradients (a hook that drops some) does the same.
What to do
    Switch communication overlap off, one flag after the other; upgrade.
Source
    Public reports: Megatron-LM#2272, Megatron-Bridge#1255 and #2403. Measured: half of a layer's gradient
    lost or doubled in three layers of ten leaves the loss within its noise for 70 steps.
"""

from __future__ import annotations

from collections.abc import Iterator

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
)

TOGETHER_ROWS = 16  # both signs of the same race
REMEDY = Remedy(
    "Switch overlap of communication and compute off, restore the last clean checkpoint, and "
    "replay on one GPU.",
    {
        "transformer_engine": "ub_overlap_ag=False, ub_overlap_rs=False",
        "torchao": "FSDP2 with reshard_after_forward=True and no custom prefetch",
        "megatron": "without --overlap-grad-reduce, --overlap-param-gather, --tp-comm-overlap",
        "deepspeed": '"overlap_comm": false',
    },
)
BEFORE = (
    "nonfinite_forward",
    "nonfinite_grad",
    "nonfinite_weight_grad",
    "loss_nonfinite",
    "grad_norm_nonfinite",
)
FLICKERS = ("zero_grad_flicker", "weight_grad_flicker")
EXCLUDING = (
    "underflow",
    "headroom_up",
    "clipping",
    "scale_nonfinite",
    "scale_reset",
    "scale_high",
    "no_labels",
    "amax_zero",
    "nonfinite_grad",
    "nonfinite_forward",
    "lr_jump",
    "norm_jump",
    "loss_jump",
    "loss_shift",
    "rms_step",
    "gradients_step",
    "underflow_always",
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding when the first bad value is in a weight, one when gradients come and go."""
    yield from _come_and_go(symptoms)
    for s in symptoms.of("nonfinite_weight"):
        if any(e.rank == s.rank and e.onset < s.onset for e in symptoms.of(*BEFORE)):
            continue
        if symptoms.near("amax_jump", s.onset, before=4) or len(s.first) > 4:
            continue
        yield about(
            s,
            cause="comm_overlap_race",
            symptom="nonfinite",
            severity="critical",
            confidence=0.66 if run.world_size > 1 else 0.5,
            order="forward",
            lasting=True,
            summary=f"{s.tensor} itself is not finite at step {s.onset:,}, although the step before was "
            "finite in forward, backward and update.",
            evidence=[bad_values(s)],
            remedy=REMEDY,
            decisive_test="Replay with all overlap flags off: if it stays finite, a buffer was "
            "used too early.",
        )


def _come_and_go(symptoms: Symptoms) -> Iterator[Finding]:
    seen: list[int] = []
    for s in symptoms.of(*FLICKERS):
        if any(abs(s.onset - other) <= TOGETHER_ROWS * symptoms.stride for other in seen):
            continue
        proof = s.onset if s.detected is None else s.detected
        length = (proof - s.onset) // symptoms.stride
        if any(symptoms.near(name, s.onset, before=12, after=length + 2) for name in EXCLUDING):
            continue
        seen.append(s.onset)
        both = [
            e
            for name in FLICKERS
            for e in symptoms.near(name, s.onset, before=TOGETHER_ROWS, after=2 * TOGETHER_ROWS)
            if e.rank == s.rank
        ]
        zeros = next((e for e in both if e.signal == FLICKERS[0]), None)
        misfit = next((e for e in both if e.signal == FLICKERS[1]), None)
        many = misfit is not None and len({t.rpartition("/")[0] for t in misfit.tensors}) > 1
        if zeros is None and not many:
            continue
        evidence = []
        if zeros is not None:
            normal = f"near {zeros.expected or 0:.1f} in every step"
            evidence.append(Evidence("zero_grad_pct", zeros.peak_step, zeros.peak, normal))
        if misfit is not None:
            evidence.append(
                Evidence(
                    "log2 grad_norm against input and grad_output", misfit.peak_step, misfit.peak,
                    "within 0.4 of its level", misfit.peak_tensor,
                )
            )  # fmt: skip
        yield about(
            s,
            cause="comm_overlap_race",
            symptom="underflow" if zeros is not None else "rank_split",
            severity="warning",
            confidence=0.85 if zeros is not None and misfit is not None else 0.7,
            order="backward",
            onset=min(e.onset for e in both),
            detected=min(e.detected or e.onset for e in both),
            lasting=True,
            tensors=(),
            summary=f"Since step {min(e.onset for e in both):,} weight gradients are wrong in some steps and "
            "right in the steps between, although what goes into them is healthy: a buffer is read before "
            "it is full.",
            evidence=evidence,
            remedy=REMEDY,
            decisive_test="Replay ten steps with all overlap flags off: if every step is right, a buffer was "
            "used too early.",
        )


RULE = Rule(
    "FS602",
    "comm_overlap_race",
    ("comm_overlap_race",),
    (Need("nan_count", ("weight",)), Need("grad_norm", ("weight",)), Need("zero_grad_pct")),
    check,
)

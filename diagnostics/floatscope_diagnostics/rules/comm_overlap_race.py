"""FS602 communication race.

What it checks
    Whether a weight itself becomes NaN or Inf although activations, gradients and the last update were
    finite.
Why it matters
    A buffer that is read or reused before its collective is done destroys parameters; it comes and goes with
    overlap flags and the number of GPUs.
How it decides
    The first non-finite value of the run is in a weight, with a finite forward and backward in the step
    before.
What to do
    Switch communication overlap off, one flag after the other; upgrade.
Source
    Public reports: Megatron-LM#2272, Megatron-Bridge#1255 and #2403.
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


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding when the first bad value is in a weight."""
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
            summary=f"{s.tensor} itself is not finite at step {s.onset:,}, although the step "
            "before was finite in forward, backward "
            "and update.",
            evidence=[Evidence("nan_count + inf_count", s.onset, s.value, "0", s.tensor)],
            remedy=REMEDY,
            decisive_test="Replay with all overlap flags off: if it stays finite, a buffer was "
            "used too early.",
        )


RULE = Rule("FS602", "comm_overlap_race", ("comm_overlap_race",), (Need("nan_count", ("weight",)),), check)

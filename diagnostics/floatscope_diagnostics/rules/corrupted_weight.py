"""FS902 corrupted weight.

What it checks
    A weight whose largest element leaps by eight times or more in one step that no update explains.
Why it matters
    A flipped bit, a bad copy or a stray write: with per-tensor scaling the one element takes the whole range,
    and every other weight of the tensor becomes 0 in the next cast. NaN follows within a few steps, or
    nothing is seen at all.
How it decides
    amax of a weight jumps by three octaves or more while update size, parameter norm and learning rate are as
    before. An optimizer step moves all weights of a tensor by little, never one by that much. Which of
    hardware or software did it the numbers do not tell, so the cause stays undetermined with both hypotheses.
What excludes it
    A rate, an update or a parameter norm that moved first; a value that is gone after a step or two (an
    outlier at the cast).
Known false positives
    Weights that are edited on purpose while training (merging, pruning, surgery on the vocabulary).
What to do
    Restore the last clean checkpoint, replay on other hardware, compare parameter hashes over ranks.
Source
    Measured: bit 30 of one weight gives an amax spike at once, all other weights flushed one step later, NaN
    after three.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.placing import whole_tensor
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
    about,
)

LEAP_LOG2 = 3.0  # weights of clean runs rise by at most 0.2 octaves in a step
MAX_WEIGHTS = 2
SPIKE_ROWS = 2  # a corrupted weight stays
MOVERS = ("lr_jump", "norm_jump", "update_jump", "weights_jump", "loss_jump")

IN_ONE_STEP = (
    Alternative("rank_divergence", 0.5, "other ranks' weights are not in the log"),
    Alternative("op_kernel_fault", 0.3, "the update before it was of normal size"),
)
IN_A_GAP = (
    Alternative("activation_outlier_growth", 0.6, "what it did between the logged steps is not known"),
    Alternative("rank_divergence", 0.4, "other ranks' weights are not in the log"),
)
REMEDY = Remedy(
    "Restore the last clean checkpoint, run memory and GPU diagnostics on the node, and compare parameter "
    "hashes over ranks.",
    {
        "transformer_engine": "no setting helps",
        "torchao": "no setting helps",
        "megatron": "--rerun-mode validate_results; --check-weight-hash-across-dp-replicas-interval 100",
        "deepspeed": "no setting helps",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per leap of a weight that no update explains."""
    for s in symptoms.of("amax_jump"):
        weights = tuple(t for t in s.first if t.endswith("/weight"))
        if not weights or len(weights) > MAX_WEIGHTS or s.value < LEAP_LOG2:
            continue
        if whole_tensor(s, symptoms):
            continue  # the whole weight, not one element: see stale scale saturation
        if any(m.onset < s.onset for name in MOVERS for m in symptoms.near(name, s.onset, before=2)):
            continue
        if not s.open and s.rows <= SPIKE_ROWS and not symptoms.near("nonfinite_forward", s.onset, after=4):
            continue  # the value is gone again: an outlier at the cast, see amax history poisoning
        flushed = [u for u in symptoms.near("underflow", s.onset, after=3) if set(u.tensors) & set(weights)]
        yield about(
            s,
            cause="undetermined",
            symptom="overflow",
            severity="critical" if flushed else "warning",
            confidence=0.85,
            tensors=weights,
            order="forward",
            summary=_told(weights[0], s, run),
            evidence=[
                Evidence("log2 amax above its level", s.onset, s.value, "below 0.6", weights[0]),
                *(
                    Evidence("underflow_pct", u.peak_step, u.peak, "near 0", u.peak_tensor)
                    for u in flushed[:1]
                ),
            ],
            alternatives=IN_ONE_STEP if run.stats_every == 1 else IN_A_GAP,
            remedy=REMEDY,
            decisive_test="Replay the step from the last checkpoint on another node: if the leap is gone it "
            "was the hardware.",
        )


def _told(weight: str, s: Symptom, run: RunFacts) -> str:
    if run.stats_every == 1:
        return (
            f"The largest element of {weight} leaped {2**s.value:,.3g} times at step {s.onset:,} without an "
            "update that explains it: the weight is corrupted, by a bit flip or a stray write."
        )
    return (
        f"The largest element of {weight} is {2**s.value:,.3g} times its level at step {s.onset:,}; not "
        "every step is logged: it grew away or was corrupted."
    )


RULE = Rule("FS902", "corrupted_weight", ("undetermined",), (Need("amax", ("weight",)),), check)

"""FS501 rank divergence.

What it checks
    Whether ranks that held the same weights no longer do.
Why it matters
    Each rank trains another model from then on: nothing is NaN, the loss of one rank looks healthy, and the
    checkpoint holds one of them. The causes are silent data corruption, a missing reduction or a faulty card.
How it decides
    By hash, where ranks log one: ranks of the same tensor, pipeline and expert coordinates had the same
    param_hash once and have not at a later step. The onset is then the step after the last on which they had
    it, or the first on which something else differs. A rank is named where the others are the majority.
    Else weight amax, update size or parameter norm were equal on all ranks for at least eight steps and
    differ for two in a row. No threshold beyond the printed digits. Data-parallel ranks whose hash never was
    the same get a warning.
What excludes it
    Tensors and hashes that never were equal over ranks (sharded ones); other coordinates along a dimension
    that splits the weights; differences in the last printed digit; ranks that log different steps.
Known false positives
    Expert or tensor parallel weights that happen to be equal at the start and are not meant to stay so.
    Training in which replicas are meant to part for a while (local SGD).
What to do
    Find the rank that left the others, run diagnostics on its card, restore all ranks from the last clean
    checkpoint.
Source
    Megatron-LM's rerun_state_machine.py follows the same logic. Measured: noise on one rank's gradients shows
    in no global number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
from floatscope_diagnostics.thresholds import Threshold

APART = Threshold(
    "gradient_log2",
    "octaves",
    2.0,
    2.0,
    32.0,
    "The gradient norm of one rank must leave the others by so much; weights that part need no threshold.",
)
REMEDY = Remedy(
    "Compare parameter hashes of all ranks, drain the node that differs (DCGM diagnostics), restore all "
    "ranks from the last clean checkpoint.",
    {
        "transformer_engine": "DelayedScaling(reduce_amax=True) keeps scales equal over ranks",
        "torchao": "torch.distributed.tensor checks: compare local shards of replicated parameters",
        "megatron": "--rerun-mode validate_results; --check-weight-hash-across-dp-replicas-interval 100",
        "deepspeed": "compare engine.module.state_dict() hashes over ranks",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding when shared weights part, one when a rank's gradient leaves the others."""
    yield from _outliers(symptoms, run)
    hashes = symptoms.of("hashes_part")
    parts = symptoms.of("weights_part")
    for s in hashes:
        yield _by_hash(s, [p for p in parts if _is_same_split(s, p)])
    for s in symptoms.of("hashes_never_equal"):
        yield _never_equal(s)
    for s in parts:
        if any(_is_same_split(h, s) for h in hashes):
            continue
        yield about(
            s,
            cause="rank_divergence",
            symptom="rank_split",
            severity="critical",
            confidence=0.93,
            lasting=True,
            order="forward" if s.first else None,
            summary=f"Ranks no longer hold the same weights since step {s.onset:,}"
            f"{f', first in {s.first[0]}' if s.first else ''}.",
            evidence=[_difference(s)],
            remedy=REMEDY,
            decisive_test="Hash all parameters on every rank after this step: the hashes differ.",
        )


def _is_same_split(by_hash: Symptom, by_value: Symptom) -> bool:
    """Whether a difference in values is what the hashes show as well. Hashes are taken more seldom."""
    first = min(by_hash.onset, int(by_hash.extra.get("last_equal", -1.0)) + 1)
    return by_value.segment == by_hash.segment and first <= by_value.onset <= by_hash.last


def _difference(s: Symptom) -> Evidence:
    return Evidence("relative difference over ranks", s.peak_step, s.peak, "0", s.peak_tensor)


def _by_hash(s: Symptom, seen: list[Symptom]) -> Finding:
    """seen: differences in values that belong to it; they may tell the step and the tensor more closely."""
    rank = int(s.extra.get("rank", -1.0))
    nearest = min(seen, key=lambda p: p.onset, default=None)
    proof = s.last if s.detected is None else s.detected
    onset = s.onset if nearest is None else min(max(s.onset, nearest.onset), proof)
    first = nearest.first if nearest is not None else ()
    who = f"Rank {rank} no longer holds" if rank >= 0 else "Ranks no longer hold"
    whose = " as the others" if rank >= 0 else ""
    last = int(s.extra.get("last_equal", -1.0))
    known = f" The last step on which they were equal to the bit is {last:,}." if last >= 0 else ""
    found = about(
        s,
        cause="rank_divergence",
        symptom="rank_split",
        severity="critical",
        confidence=0.97,
        lasting=True,
        onset=onset,
        detected=proof if nearest is None or nearest.detected is None else min(proof, nearest.detected),
        onset_first=s.onset if onset > s.onset else None,
        tensors=first or None,
        order="forward" if first else None,
        summary=f"{who} the same weights{whose} since step {onset:,}"
        f"{f', first in {first[0]}' if first else ''}.{known}",
        evidence=[
            Evidence("ranks whose param_hash differs", s.peak_step, s.peak, "0"),
            *([] if nearest is None else [_difference(nearest)]),
        ],
        remedy=REMEDY,
        decisive_test="Load the last checkpoint before this step on all ranks and repeat the steps after it: "
        "a rank whose hash differs again has a faulty card or another program, else the fault was passing.",
    )
    return replace(found, rank=rank) if rank >= 0 else found


def _never_equal(s: Symptom) -> Finding:
    return about(
        s,
        cause="rank_divergence",
        symptom="rank_split",
        severity="warning",
        confidence=0.6,
        summary=f"Data-parallel ranks hold different weights, from step {s.onset:,} or before: their "
        "param_hash was never the same.",
        evidence=[Evidence("different param_hash among the ranks", s.peak_step, s.peak, "1")],
        remedy=REMEDY,
        decisive_test="Compare the initial weights of all ranks: without a broadcast they differ.",
    )


def _outliers(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    for s in symptoms.of("rank_outlier"):
        if s.peak < APART.of(run):
            continue
        rank = int(s.extra.get("rank", 0))
        found = about(
            s,
            cause="rank_divergence",
            symptom="rank_split",
            severity="warning",
            confidence=0.7,
            order="backward",
            summary=f"The gradient of rank {rank} is {2**s.peak:,.3g} times out of line with the other ranks "
            f"since step {s.onset:,}.",
            evidence=[
                Evidence("log2 spread of local_grad_norm above its level", s.peak_step, s.peak, "below 2")
            ],
            remedy=REMEDY,
            decisive_test="Give this rank's batch to another rank: if the gradient stays with "
            "the rank it is the card.",
        )
        yield replace(found, rank=rank)


RULE = Rule(
    "FS501",
    "rank_divergence",
    ("rank_divergence",),
    (Need("param_hash"), Need("amax", ("weight",)), Need("update_ratio", ("weight",)), Need("param_norm")),
    check,
    needs_ranks=True,
    thresholds=(APART,),
)

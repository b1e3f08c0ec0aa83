"""FS501 rank divergence.

What it checks
    Whether ranks that held the same weights no longer do.
Why it matters
    Each rank trains another model from then on: nothing is NaN, the loss of one rank looks healthy, and the
    checkpoint holds one of them. The causes are silent data corruption, a missing reduction or a faulty card.
How it decides
    Weight amax, update size or parameter norm were equal on all ranks for at least eight steps and differ for
    two in a row. No threshold beyond the printed digits. Tensors that never were equal (sharded ones) are not
    compared.
What excludes it
    Tensors that never were equal over ranks (sharded ones); differences in the last printed digit; ranks
    that log different steps.
Known false positives
    Expert or tensor parallel weights that happen to be equal at the start and are not meant to stay so.
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
    yield from _outliers(symptoms)
    for s in symptoms.of("weights_part"):
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
            evidence=[Evidence("relative difference over ranks", s.peak_step, s.peak, "0", s.peak_tensor)],
            remedy=REMEDY,
            decisive_test="Hash all parameters on every rank after this step: the hashes differ.",
        )


def _outliers(symptoms: Symptoms) -> Iterator[Finding]:
    for s in symptoms.of("rank_outlier"):
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
    (Need("amax", ("weight",)), Need("update_ratio", ("weight",)), Need("param_norm")),
    check,
    needs_ranks=True,
)

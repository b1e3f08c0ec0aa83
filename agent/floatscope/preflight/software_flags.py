"""Settings of torch that change sums of products: they must be the same in runs that are compared."""

from __future__ import annotations

from collections.abc import Mapping

from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted


def flag_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """Sums of products, and determinism. Fast accumulation of FP8 is a matter of ``distribution_checks``."""
    del wanted
    flags = facts.torch.get("flags")
    flags = flags if isinstance(flags, Mapping) else None
    return [_accumulation(facts, flags), _determinism(facts, flags)]


def _accumulation(facts: Facts, flags: Mapping[str, object] | None) -> Check:
    name, why = "software.accumulation", "BF16 GEMMs of the baseline change with them; both runs must agree"
    source = "torch 2.13, torch.backends.cuda.matmul"
    if flags is None:
        return Check(name, "software", "unknown", _unread(facts), why, "ask torch in the training", source)
    read = (
        f"BF16 sums may be reduced in BF16: {flags.get('allow_bf16_reduced_precision_reduction')},"
        f" FP16 in FP16: {flags.get('allow_fp16_reduced_precision_reduction')}, TF32:"
        f" {flags.get('allow_tf32')}, float32_matmul_precision {flags.get('float32_matmul_precision')}"
        " (in this process; the training may set others)"
    )
    return Check(name, "software", "pass", read, why, "", source)


def _determinism(facts: Facts, flags: Mapping[str, object] | None) -> Check:
    name, why = "software.determinism", "both runs of a comparison must agree in it"
    source = "torch 2.13, notes on randomness; Transformer Engine 2.20.2, docs/envvars.rst"
    if flags is None:
        return Check(name, "software", "unknown", _unread(facts), why, "ask torch in the training", source)
    set_to = {
        key: facts.environment.get(key, "not set")[:60]
        for key in ("CUBLAS_WORKSPACE_CONFIG", "NVTE_ALLOW_NONDETERMINISTIC_ALGO")
    }
    words = ", ".join(f"{key} {value}" for key, value in set_to.items())
    read = f"deterministic algorithms {flags.get('deterministic')}, {words} (in this process)"
    if flags.get("deterministic") is True and set_to["CUBLAS_WORKSPACE_CONFIG"] == "not set" and facts.gpus:
        do = "export CUBLAS_WORKSPACE_CONFIG=:4096:8"
        why = "torch asks cuBLAS for determinism and raises without that variable"
        return Check(name, "software", "warn", read, why, do, source)
    return Check(name, "software", "pass", read, why, "", source)


def _unread(facts: Facts) -> str:
    return f"torch was not asked: {facts.failed.get('torch', 'no reason known')}"

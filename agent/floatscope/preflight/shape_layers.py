"""Which linear layers of a model compute in FP8, which do not and why, and their share of the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floatscope.model_shapes.gemm import Gemm, gemm_shapes
from floatscope.model_shapes.shape import ModelConfigError, ModelShape
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.framework_conversion import left_by_accelerate
from floatscope.preflight.shape_rules import (
    SIXTEEN_BIT,
    Violation,
    out_of_fp8,
    rules_for,
    violations,
)


@dataclass(frozen=True)
class Layer:
    """One kind of linear layer and what becomes of it.

    why_not: why it is not in FP8, "" if it is.  share: of the FLOPs of all linear layers, forward and
    backward. An ``error`` among the violations means that the first step raises.
    """

    gemm: Gemm
    in_fp8: bool
    why_not: str
    share: float
    broken: tuple[Violation, ...]


def layers_of(facts: Facts, wanted: Wanted) -> list[Layer]:
    """Every linear of the wanted model; none without a model.

    Raises:
        ModelConfigError: the parallelism does not fit the model.
    """
    if wanted.model is None:
        return []
    gemms = gemms_of(wanted.model, wanted)
    rules = rules_for(facts, wanted)
    left = left_by_accelerate(gemms, wanted) if wanted.library == "accelerate" else {}
    work = [_work(gemm, wanted.model) for gemm in gemms]
    total = sum(work) or 1.0
    found = []
    for gemm, own in zip(gemms, work, strict=True):
        why = out_of_fp8(gemm, wanted) or left.get(gemm.name, "")
        broken = () if why else tuple(violations(gemm, rules, tokens=tokens_known(wanted)))
        if not why and wanted.recipe in SIXTEEN_BIT:
            why = f"the recipe {wanted.recipe} has no FP8"
        stopping = next((one for one in broken if one.rule.effect != "slower" and one.rule.certain), None)
        if stopping is not None:
            why = str(stopping)
        found.append(Layer(gemm, not why, why, own / total, broken))
    return found


def layer_rows(facts: Facts, wanted: Wanted) -> list[dict[str, Any]]:
    """The rows of preflight's document, one for each kind of linear layer.

    tokens is null where the batch was not said, and for experts the mean. None where the parallelism does not
    fit the model, as `shape_checks` says.
    """
    try:
        layers = layers_of(facts, wanted)
    except ModelConfigError:
        return []
    return [
        {
            "name": one.gemm.name,
            "kind": one.gemm.kind,
            "count": one.gemm.count,
            "k": one.gemm.k,
            "n": one.gemm.n,
            "tokens": one.gemm.tokens if tokens_known(wanted) else None,
            "in_fp8": one.in_fp8,
            "why_not": one.why_not,
            "flops_share_pct": round(100 * one.share, 2),
        }
        for one in layers
    ]


def tokens_known(wanted: Wanted) -> bool:
    """Whether the batch was said, so that T is known."""
    return wanted.micro_batch > 0 and wanted.sequence > 0


def gemms_of(model: ModelShape, wanted: Wanted) -> tuple[Gemm, ...]:
    """The model's GEMMs as wanted; with a batch of one sequence of 4,096 tokens where none was said, of which
    T must then not be used.

    Raises:
        ModelConfigError: the parallelism does not fit the model.
    """
    known = tokens_known(wanted)
    return gemm_shapes(
        model,
        micro_batch=wanted.micro_batch if known else 1,
        sequence=wanted.sequence if known else 4096,
        parallelism=wanted.parallelism,
    )


def _work(gemm: Gemm, model: ModelShape) -> float:
    """Multiplications of all layers of this kind for one token of the batch."""
    share = model.experts_per_token / model.experts if gemm.kind == "expert" and model.experts else 1.0
    return float(gemm.k) * gemm.n * gemm.count * share

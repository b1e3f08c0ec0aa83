"""Whether the shape of a linear lets it run in a recipe: preflight's rules, so that both say the same."""

from __future__ import annotations

from functools import cache

from floatscope.hardware.gpus import GpuModel
from floatscope.model_shapes.gemm import Gemm
from floatscope.model_shapes.shape import Parallelism
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.shape_rules import Rule, rules_for, violations


def fits(gemm: Gemm, gpu: GpuModel, recipe: str, library: str, cut: Parallelism) -> bool:
    """Whether no rule about K, N and T keeps it from running in the recipe. Tokens of experts are padded;
    rules whose breach only costs time are not asked.
    """
    return not violations(gemm, list(_rules(gpu, recipe, library, cut)), tokens=True)


@cache
def _rules(gpu: GpuModel, recipe: str, library: str, cut: Parallelism) -> tuple[Rule, ...]:
    facts = Facts(gpus=(GpuFacts(0, gpu.name, gpu.capability, arch=gpu.arch),))
    wanted = Wanted(recipe=recipe, library=library, parallelism=cut)
    return tuple(rule for rule in rules_for(facts, wanted) if rule.effect != "slower")

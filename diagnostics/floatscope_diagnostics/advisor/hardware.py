"""Which recipes a GPU can run, as far as an advice must know it; ``floatscope preflight`` knows the rest.

The capabilities are those of the plan's table of recipes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from floatscope.hardware.gpus import GpuModel
from floatscope_diagnostics.advisor.advice import NotDecided
from floatscope_diagnostics.advisor.evidence import SHORT_RECIPES
from floatscope_diagnostics.plan.recipes import Recipe, recipe_table

NEEDED_BY_ALL = (8, 9)
"""Compute capability of the oldest NVIDIA GPUs with FP8: a run in FP8 has it already."""


def allowed_on(gpu: GpuModel, recipes: Sequence[str]) -> tuple[str, ...]:
    """The recipes (short names) without those that the GPU cannot run under any library."""
    return tuple(recipe for recipe in recipes if _runs(gpu, recipe))


def hardware_note(targets: Iterable[str]) -> NotDecided | None:
    """For an advice made without a named GPU: what its targets need. None if all GPUs with FP8 do."""
    needs = []
    for short in sorted(set(targets)):
        for recipe in _of(short)[:1]:
            if tuple(recipe.needs["nvidia"][0]) > NEEDED_BY_ALL:
                needs.append(f"{short} {recipe.refused}")
    if not needs:
        return None
    return NotDecided(
        "hardware",
        f"Not known: the GPU. {'; '.join(needs)}. floatscope preflight on the machine says what it can run.",
    )


def _runs(gpu: GpuModel, short: str) -> bool:
    found = _of(short)
    return not found or any(not recipe.why_not(gpu) for recipe in found)


def _of(short: str) -> list[Recipe]:
    """Recipes of the plan with this short name: one of Transformer Engine, one of torchao, or none."""
    return [one for one in recipe_table().recipes if SHORT_RECIPES.get(one.key) == short]

"""The preflight of a process that trains: nothing is imported, started or initialised there for its sake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.gathering import gather_facts
from floatscope.preflight.pure_parts import pure_parts
from floatscope.preflight.recipe_matrix import rules_of
from floatscope.preflight.run import run_light
from floatscope.probes.gpu import load_pynvml
from floatscope.protocol.names import RECIPES

_MODULES = {"transformer_engine": ("transformer_engine",), "torchao": ("torchao",)}


def gather_here(uses_nvml: bool) -> Callable[[], Facts]:
    """Reads the facts of this process; NVML only where the agent's own GPU probe uses it too."""

    def gather() -> Facts:
        return gather_facts(light=True, nvml=load_pynvml() if uses_nvml else None)

    return gather


def examine_here(facts: Facts, recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document for what the probes know of the run's recipe."""
    name = str(recipe.get("name") or "")
    casts = {key: recipe[key] for key in ("saturating_cast", "cast_probe") if key in recipe}
    if name not in RECIPES:
        return run_light(facts, Wanted(), pure_parts(), casts=casts).to_json()
    library = rules_of(name, "")
    if library and not any(module in sys.modules for module in _MODULES[library]):
        parts = {**pure_parts(), "recipe": lambda facts, wanted: _by_whom(name, library)}
        return run_light(facts, Wanted(), parts, casts=casts).to_json()
    if library == "transformer_engine" and "megatron.core" in sys.modules:
        library = "megatron"
    return run_light(facts, Wanted(recipe=name, library=library), pure_parts(), casts=casts).to_json()


def _by_whom(recipe: str, library: str) -> Sequence[Check]:
    """An emulation, or a library that is not known here: the rules of another one would say nothing of it."""
    return [
        Check(
            "recipe.library",
            "recipe",
            "unknown",
            f"{recipe}, but {library} is not loaded in this process: something else casts to FP8",
            "what a GPU and its software must have for a recipe depends on the library that runs it",
            "nothing, if FP8 is emulated here; else look at what that library asks for",
        )
    ]

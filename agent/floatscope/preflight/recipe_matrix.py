"""Which recipes this machine's GPUs run, through which library: the check that decides."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.gpu_visible import used_gpus
from floatscope.preflight.table_conditions import Situation, arch_of, capability_of
from floatscope.preflight.table_reading import Answer, Row, answers, gpu_label, read_table, row_of, worst
from floatscope.preflight.versions import text_of
from floatscope.protocol.names import RECIPES

NO_GPU = "no GPU could be read here, so nothing is known of it"

_AO_RECIPES = ("ao_tensorwise", "ao_rowwise")
_PLAIN = ("bf16", "fp32", "fp16_amp", "custom")
_DISTRIBUTIONS = {"transformer_engine": "transformer-engine", "torchao": "torchao", "torch": "torch"}


def recipe_matrix(facts: Facts) -> dict[str, tuple[Status, str]]:
    """Every recipe of the protocol -> status on this machine and why. Through torchao for the recipes of its
    own, else through Transformer Engine. Source: tables/recipes.json, row by row.
    """
    return {recipe: _cell(facts, recipe) for recipe in RECIPES}


def recipe_check(facts: Facts, wanted: Wanted) -> list[Check]:
    """The chosen recipe on this machine's GPUs, one check; none without a recipe."""
    if not wanted.recipe:
        return []
    library = rules_of(wanted.recipe, wanted.library)
    by_gpu = [(gpu, _answers(facts, wanted.recipe, library, gpu)) for gpu in used_gpus(facts)]
    found = [answer for _, told in by_gpu for answer in told] or _on_no_gpu(facts, wanted.recipe, library)
    status = worst([answer.status for answer in found])
    told = _told(found, status)
    through = f" through {library}" if library else ""
    return [
        Check(
            "recipe.gpu",
            "recipe",
            status,
            f"{wanted.recipe}{through}; " + ("; ".join(_gpu(gpu) for gpu, _ in by_gpu) or "no GPU"),
            "; ".join(answer.why for answer in told) or NO_GPU,
            "" if status == "pass" else "; ".join(dict.fromkeys(a.do for a in told if a.do)) or _ELSEWHERE,
            "; ".join(dict.fromkeys(answer.source for answer in told)) or "tables/recipes.json",
        )
    ]


_LOOK = "run a forward and a backward pass of one layer: only that proves anything"
_MACHINE = "run preflight on the machine that trains"
_ELSEWHERE = f"run preflight where the GPUs are; there {_LOOK}"


def rules_of(recipe: str, library: str) -> str:
    """Whose rules count: "transformer_engine", "torchao", "torch", or "" where the recipe needs none.

    Megatron-LM and accelerate train FP8 through Transformer Engine, except torchao's own recipes.
    """
    if recipe in _PLAIN:
        return ""
    if library in ("torchao", "torch"):
        return library
    return "torchao" if recipe in _AO_RECIPES else "transformer_engine"


@cache
def recipe_rows() -> tuple[Row, ...]:
    """The rows of tables/recipes.json."""
    return tuple(row_of(entry) for entry in read_table("recipes")["rows"])


def _cell(facts: Facts, recipe: str) -> tuple[Status, str]:
    library = rules_of(recipe, "")
    found = [a for gpu in used_gpus(facts) for a in _answers(facts, recipe, library, gpu)]
    if not found:
        return ("not_applicable" if recipe == "custom" else "unknown"), f"{NO_GPU}; {_MACHINE}"
    status = worst([answer.status for answer in found])
    why = "; ".join(answer.why for answer in _told(found, status))
    lacking = _lacking(facts, library) if library and status in ("pass", "warn") else ""
    if lacking:
        return "fail", f"the GPU runs it, but {lacking}" if status == "pass" else f"{lacking}; {why}"
    return status, why


def _lacking(facts: Facts, library: str) -> str:
    """What keeps the library from running at all here, "" for nothing known."""
    name = _DISTRIBUTIONS[library]
    if text_of(facts, name) == "":
        return f"{name} is not installed"
    tried = facts.libraries.get("te_import") if library == "transformer_engine" else None
    if isinstance(tried, Mapping) and tried.get("state") == "failed":
        return f"{name} is installed and cannot be imported"
    return ""


def _answers(facts: Facts, recipe: str, library: str, gpu: GpuFacts) -> list[Answer]:
    found = answers(recipe_rows(), Situation(facts, recipe, library, gpu))
    if any(answer.row for answer in found):
        return found
    why = f"no rule is known for {recipe} through {library or 'torch'} on {_gpu(gpu)}"
    return [Answer("", "unknown", why, _LOOK, "tables/recipes.json")]


def _on_no_gpu(facts: Facts, recipe: str, library: str) -> list[Answer]:
    """What fails on any GPU: a recipe that the library does not have, or an older version of it."""
    told = answers(recipe_rows(), Situation(facts, recipe, library))
    return [answer for answer in told if answer.status == "fail"]


def _gpu(gpu: GpuFacts) -> str:
    capability = capability_of(gpu)
    known = f"compute capability {capability[0]}.{capability[1]}" if capability else arch_of(gpu)
    return f"{gpu_label(gpu)} ({known or 'compute capability not read'})"


def _told(found: list[Answer], status: Status) -> list[Answer]:
    """The answers that decide, then others that warn: a silent fault is told beside a loud one."""
    first = [answer for answer in found if answer.status == status]
    more = [answer for answer in found if answer.status not in (status, "pass", "not_applicable")]
    return list({answer.why: answer for answer in [*first, *more]}.values())

"""The rules of libraries and recipes about sizes of linear layers, from the table "shapes"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from floatscope.model_shapes.gemm import Gemm
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.table_conditions import Situation, all_hold
from floatscope.preflight.table_reading import read_table

Effect = Literal["error", "skipped", "slower"]
SIXTEEN_BIT = ("bf16", "fp32", "fp16_amp")
_OF_TORCHAO = ("ao_tensorwise", "ao_rowwise")
_WORDS = {"k": "K (features in)", "n": "N (features out)", "t": "T (tokens)"}


@dataclass(frozen=True)
class Rule:
    """Multiples that K, N and T must be.

    effect: what follows otherwise: "error" at the first step, "skipped": the layer stays in 16 bit, "slower".
    certain: False where it depends on a GPU that is not known.
    """

    id: str
    multiples: Mapping[str, int]
    effect: Effect
    why: str
    source: str
    certain: bool = True


@dataclass(frozen=True)
class Violation:
    """A dimension of a layer that is no multiple.

    also: the multiple that all rules together ask of it which do not only cost speed.  padded: the next size
    that suits them all, so that a layer padded as told does not break the next rule.
    """

    rule: Rule
    dimension: str
    value: int
    multiple: int
    also: int = 1

    @property
    def padded(self) -> int:
        step = math.lcm(self.multiple, self.also)
        return -(-self.value // step) * step

    def __str__(self) -> str:
        named = _WORDS[self.dimension]
        text = f"{named} = {self.value:,} is no multiple of {self.multiple}; padded: {self.padded:,}"
        return text if self.multiple % self.also == 0 else f"{text}, since other rules ask for {self.also}"


def library_of(wanted: Wanted) -> str:
    """Whose GEMMs compute: Megatron and accelerate use Transformer Engine's, or torchao's by recipe."""
    if wanted.recipe in _OF_TORCHAO:
        return "torchao"
    if wanted.library in ("", "megatron", "accelerate"):
        return "transformer_engine"
    return wanted.library


def rules_for(facts: Facts, wanted: Wanted) -> list[Rule]:
    """The rules that hold for what is wanted on this machine."""
    library, found = library_of(wanted), []
    for entry in read_table("shapes")["rules"]:
        if library not in entry["library"] or not _recipe_fits(entry, wanted):
            continue
        if entry.get("only") == "tensor_parallel" and wanted.parallelism.tensor < 2:
            continue
        certain = _on_gpu(entry, facts, wanted)
        if certain is not False:
            found.append(
                Rule(
                    entry["id"],
                    entry["multiples"],
                    entry["effect"],
                    entry["why"],
                    entry["source"],
                    certain is True,
                )
            )
    return found


def expert_rule(wanted: Wanted) -> tuple[int, str, str]:
    """(multiple of each expert's tokens, what to do, source)."""
    library = library_of(wanted)
    for entry in read_table("shapes")["experts"]:
        if library in entry["library"] and _recipe_fits(entry, wanted):
            return entry["multiple"], entry["do"], entry["source"]
    return 16, "pad each expert's tokens to 16", read_table("shapes")["source"]


def out_of_fp8(gemm: Gemm, wanted: Wanted) -> str:
    """Why a library never computes this layer in FP8, "" if it does."""
    libraries = {wanted.library or library_of(wanted), library_of(wanted)}
    if wanted.library in ("megatron", "accelerate"):
        libraries.discard("transformer_engine")
    for entry in read_table("shapes")["stays_out"]:
        if not libraries & set(entry["library"]):
            continue
        if gemm.kind in entry.get("kinds", ()) or gemm.name.endswith(tuple(entry.get("names", ())) or "\0"):
            why: str = entry["why"]
            return why
    return ""


def violations(gemm: Gemm, rules: list[Rule], *, tokens: bool) -> list[Violation]:
    """The dimensions of a layer that break a rule. tokens: whether T is known; an expert's never is."""
    values = {"k": gemm.k, "n": gemm.n}
    if tokens and gemm.kind != "expert":
        values["t"] = gemm.tokens
    return [
        Violation(rule, dimension, values[dimension], multiple, _asked(rules, dimension))
        for rule in rules
        for dimension, multiple in rule.multiples.items()
        if dimension in values and values[dimension] % multiple
    ]


def _asked(rules: list[Rule], dimension: str) -> int:
    return math.lcm(*(one.multiples.get(dimension, 1) for one in rules if one.effect != "slower"))


def _recipe_fits(entry: Mapping[str, Any], wanted: Wanted) -> bool:
    return "*" in entry["recipe"] or wanted.recipe in entry["recipe"]


def _on_gpu(entry: Mapping[str, Any], facts: Facts, wanted: Wanted) -> bool | None:
    """Whether it holds on one of the GPUs; None where none is known."""
    if "capability" not in entry:
        return True
    condition = ({"capability": entry["capability"]},)
    gpus = facts.gpus or (None,)
    answers = [all_hold(condition, Situation(facts, wanted.recipe, gpu=gpu)) for gpu in gpus]
    return True if True in answers else None if None in answers else False

"""Predictions against published runs: what the error bars of a plan rest on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from floatscope.hardware.gpu_lookup import find_gpu
from floatscope.hardware.gpus import GpuModel
from floatscope.hardware.roofline import bf16_seconds
from floatscope.model_shapes.reading import from_fields, read_model
from floatscope.model_shapes.shape import ModelShape, Parallelism
from floatscope_diagnostics.plan.gemms import How, smallest_expert, speedup
from floatscope_diagnostics.plan.memory import memory, state_bytes
from floatscope_diagnostics.plan.rates import Rates, rates_of
from floatscope_diagnostics.plan.recipes import BF16, Recipe, recipe_table
from floatscope_diagnostics.plan.setup import Setup, with_rest
from floatscope_diagnostics.plan.step_time import step_time

GIB = 2**30
GB = 1e9

TARGETS = {
    "state_gb": 0.10,
    "state_difference_gib": 0.10,
    "activations_saved_pct": 0.10,
    "activations_left_pct": 0.25,
    "memory_ratio": 0.04,
    "tokens_per_s": 0.25,
    "mixture_tokens_per_s": 0.25,
    "speedup": 0.15,
    "layer_speedup": 0.25,
}
"""Largest relative error by kind; a peak must lie inside the interval of a plan instead."""


@dataclass(frozen=True)
class Case:
    """One published number and the set-up it belongs to; see published.json."""

    id: str
    kind: str
    published: float
    source: str
    gpu: GpuModel
    setup: Setup
    shape: ModelShape | None
    recipe: Recipe | None
    sets: str
    reason: str
    note: str
    rates: Rates
    raw: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A case and what is predicted for it. lower, upper: of a peak's interval, else
    None; its predicted value is the sum of parts.  inside: the target is
    met. error: relative, of the predicted value; for tokens/s of the step time, positive where too long.
    """

    case: Case
    predicted: float
    upper: float | None
    error: float
    inside: bool
    lower: float | None = None


def run_checks() -> tuple[Outcome, ...]:
    """All published cases, predicted."""
    return tuple(outcome(case) for case in published_cases())


def outcome(case: Case) -> Outcome:
    """One case, predicted."""
    if case.kind == "peak_gib":
        found = memory(_shape(case), case.gpu, case.setup, case.recipe)
        lower, estimate, upper = found.lower / GIB, found.estimate / GIB, found.upper / GIB
        inside = lower <= case.published <= upper
        return Outcome(case, estimate, upper, estimate / case.published - 1, inside, lower)
    predicted = _PREDICT[case.kind](case)
    rate = case.kind.endswith("tokens_per_s")
    ratio = case.published / predicted if rate else predicted / case.published
    error = ratio - 1
    return Outcome(case, predicted, None, error, abs(error) <= TARGETS[case.kind])


@cache
def published_cases() -> tuple[Case, ...]:
    """The cases of published.json."""
    table = _table()
    return tuple(_case(row, table["sources"]) for row in table["cases"])


def not_usable() -> tuple[Mapping[str, str], ...]:
    """Published runs that cannot be checked, each with the reason."""
    return tuple(_table()["not_usable"])


@cache
def _table() -> Mapping[str, Any]:
    text = files("floatscope_diagnostics.plan").joinpath("published.json").read_text("utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table


def _case(row: Mapping[str, Any], sources: Mapping[str, str]) -> Case:
    recipes = {one.key: one for one in recipe_table().recipes}
    key = row.get("recipe", BF16)
    shape = None
    gpu = replace(find_gpu(row["gpu"]), **row.get("gpu_changes", {}))
    setup = _setup(row, row["gpus"])
    if "config" in row:
        shape = from_fields(row["config"], source="published.json", name=row["id"])
    elif "model" in row:
        shape = read_model(row["model"])
    return Case(
        id=row["id"],
        kind=row["kind"],
        published=float(row["published"]),
        source=sources[row["source"]],
        gpu=gpu,
        setup=setup,
        shape=shape,
        recipe=None if key == BF16 else recipes[key],
        sets=row.get("sets", ""),
        reason=row.get("reason", ""),
        note=row.get("note", ""),
        rates=_rates(gpu, setup, shape, row),
        raw=row,
    )


def _rates(gpu: GpuModel, setup: Setup, shape: ModelShape | None, row: Mapping[str, Any]) -> Rates:
    rates = rates_of(gpu, stack=setup.stack, gpus_per_node=row.get("gpus_per_node"))
    return rates if shape is None or not shape.experts else rates.of_mixture(smallest_expert(shape, setup))


def _setup(row: Mapping[str, Any], gpus: int) -> Setup:
    words = dict(row["setup"])
    cut = with_rest(gpus, Parallelism(**words.pop("parallelism", {})))
    return Setup(gpus=gpus, parallelism=cut, **words)


def _shape(case: Case) -> ModelShape:
    assert case.shape is not None, f"{case.id} names no model"
    return case.shape


def _state(case: Case) -> float:
    return state_bytes(_shape(case), case.gpu, case.setup, case.recipe) / GB


def _state_difference(case: Case) -> float:
    after = _setup(case.raw, case.raw["gpus_after"])
    shape, gpu, recipe = _shape(case), case.gpu, case.recipe
    return (state_bytes(shape, gpu, case.setup, recipe) - state_bytes(shape, gpu, after, recipe)) / GIB


def _activations(case: Case, setup: Setup) -> float:
    return memory(_shape(case), case.gpu, setup, None).part("activations")


def _saved(case: Case) -> float:
    selective = replace(case.setup, recompute="selective")
    return 100 * (1 - _activations(case, selective) / _activations(case, case.setup))


def _left(case: Case) -> float:
    cut = replace(case.setup.parallelism, sequence=True)
    both = replace(case.setup, recompute="selective", parallelism=cut)
    return 100 * _activations(case, both) / _activations(case, case.setup)


def _memory_ratio(case: Case) -> float:
    shape, base = _shape(case), replace(case.setup, fp8_all_gather=False)
    low = memory(shape, case.gpu, case.setup, case.recipe).estimate
    return low / memory(shape, case.gpu, base, None).estimate


def _tokens(case: Case) -> float:
    found = step_time(_shape(case), case.gpu, case.setup, case.rates, case.recipe)
    return found.tokens_per_s_per_gpu


def _speedup(case: Case) -> float:
    shape, rates = _shape(case), case.rates
    base = step_time(shape, case.gpu, replace(case.setup, fp8_all_gather=False), rates, None)
    return base.seconds / step_time(shape, case.gpu, case.setup, rates, case.recipe).seconds


def _layer(case: Case) -> float:
    """Of linears one after the other; those that widen follow a norm."""
    recipe, gpu = case.recipe, case.gpu
    assert recipe is not None
    tokens = case.raw["tokens"]
    base = low = 0.0
    for k, n in case.raw["layer"]:
        each = bf16_seconds(tokens, k, n, gpu)
        how = How(after_norm=n > k)
        base += each
        low += each / speedup(tokens, k, n, gpu, recipe, how)
    return base / low


_PREDICT: Mapping[str, Callable[[Case], float]] = {
    "state_gb": _state,
    "state_difference_gib": _state_difference,
    "activations_saved_pct": _saved,
    "activations_left_pct": _left,
    "memory_ratio": _memory_ratio,
    "tokens_per_s": _tokens,
    "mixture_tokens_per_s": _tokens,
    "speedup": _speedup,
    "layer_speedup": _layer,
}

"""The tables: every entry has a source, every GPU a family, no price is shipped; what each GPU can run."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from floatscope.hardware.gpu_lookup import find_gpu, gpu_models
from floatscope.model_shapes.reading import read_model
from floatscope.preflight.facts import Facts, GpuFacts
from floatscope.preflight.recipe_matrix import recipe_matrix
from floatscope.protocol.names import RECIPES
from floatscope_diagnostics.plan.planning import Wish, make_plan
from floatscope_diagnostics.plan.rates import rates_of
from floatscope_diagnostics.plan.recipes import recipe_table
from tests.diagnostics.plan.setups import setup_of

NVIDIA = {"fp8_delayed_scaling", "fp8_current_scaling", "ao_tensorwise", "ao_rowwise"}


def table(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files("floatscope_diagnostics.plan").joinpath(name).read_text("utf-8"))
    return found


def test_every_recipe_is_one_the_protocol_knows_and_has_a_source() -> None:
    for one in recipe_table().recipes:
        assert one.key in RECIPES
        assert one.source
        assert one.refused


@pytest.mark.parametrize("gpu", gpu_models(), ids=lambda gpu: gpu.name)
def test_every_gpu_has_rates_and_an_answer_for_every_recipe(gpu: Any) -> None:
    rates = rates_of(gpu)
    assert rates.source
    assert 0 < rates.step <= 1
    assert rates.verified == bool(rates.calibrated_on)
    for one in recipe_table().recipes:
        assert one.why_not(gpu) or one.casts.peak_tflops(gpu)


@pytest.mark.parametrize(
    ("gpu", "can"),
    [
        ("A100", set()),
        ("L40S", NVIDIA),
        ("H100", NVIDIA | {"fp8_block_scaling"}),
        ("B200", NVIDIA | {"fp8_block_scaling", "mxfp8", "nvfp4"}),
        ("RTX 5090", NVIDIA | {"fp8_block_scaling"}),
        ("MI300X", {"ao_tensorwise", "ao_rowwise"}),
        ("MI355X", {"ao_tensorwise", "ao_rowwise", "mxfp8"}),
    ],
)
def test_which_gpu_runs_which_recipe(gpu: str, can: set[str]) -> None:
    found = find_gpu(gpu)
    assert {one.key for one in recipe_table().recipes if not one.why_not(found)} == can


@pytest.mark.parametrize("gpu", gpu_models(), ids=lambda gpu: gpu.name)
def test_what_preflight_fails_for_the_gpu_alone_is_not_planned(gpu: Any) -> None:
    installed = {"transformer-engine": "2.20.2", "torchao": "0.18.0"}
    card = GpuFacts(0, gpu.name, gpu.capability, arch=gpu.arch)
    found = recipe_matrix(Facts(gpus=(card,), versions=installed))
    planned = {one.key for one in recipe_table().recipes if not one.why_not(gpu)}
    assert not {key for key in planned if found[key][0] == "fail"}


def test_converted_and_foreign_formats_are_told() -> None:
    by_key = {one.key: one for one in recipe_table().recipes}
    assert "MXFP8" in by_key["fp8_block_scaling"].notes(find_gpu("B200"))[0]
    assert "FNUZ" in by_key["ao_tensorwise"].notes(find_gpu("MI300X"))[0]
    assert by_key["ao_rowwise"].notes(find_gpu("H100")) == ()


def test_a_converted_recipe_is_planned_only_where_it_is_asked_for() -> None:
    model, setup = read_model("llama-3-8b"), setup_of(8)
    for name, there in (("H100", True), ("B200", False), ("RTX 5090", False)):
        gpu = find_gpu(name)
        plan = make_plan(model, gpu, setup, rates_of(gpu), Wish())
        assert ("fp8_block_scaling" in {one.key for one in plan.plans}) is there
        assert any("converts to MXFP8" in why for _, why in plan.refused) is not there
        asked = make_plan(model, gpu, setup, rates_of(gpu), Wish(recipes=("block",)))
        assert [one.key for one in asked.plans] == ["bf16", "fp8_block_scaling"]


def test_pcie_cards_have_slow_links() -> None:
    assert rates_of(find_gpu("H100 PCIe")).link_gb_s == 64
    assert rates_of(find_gpu("H100 SXM")).link_gb_s == 450
    assert rates_of(find_gpu("H100 SXM"), link_gb_s=100.0).link_gb_s == 100


@pytest.mark.parametrize("name", ["recipes.json", "rates.json", "published.json"])
def test_no_price_is_shipped(name: str) -> None:
    def keys(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for inner in value.values() for key in keys(inner)}
        return {key for inner in value for key in keys(inner)} if isinstance(value, list) else set()

    assert not {key for key in keys(table(name)) if "price" in key or "cost" in key}

"""What stands in more than one table says the same in all of them."""

from __future__ import annotations

from typing import Any

import pytest

from floatscope.hardware.gpu_lookup import gpu_models
from floatscope.hardware.gpus import GpuModel
from floatscope.preflight.recipe_matrix import recipe_matrix
from floatscope.preflight.smoke_formats import MAX
from floatscope.protocol.formats import FORMATS
from floatscope_diagnostics.plan.recipes import recipe_table
from floatscope_diagnostics.whatif.grids import grids
from tests.agent.preflight.machines import gpu, machine

NVIDIA = [one for one in gpu_models() if one.capability is not None]


@pytest.mark.parametrize("model", NVIDIA, ids=lambda one: one.name)
def test_a_plan_and_a_preflight_agree_on_what_a_gpu_can_run(model: GpuModel) -> None:
    assert model.capability is not None
    newest: dict[str, Any] = {
        "torch": "2.13.0",
        "cuda": "13.0",
        "cublaslt": "13.1.0",
        "versions": {"torchao": "0.18.0"},
    }
    found = recipe_matrix(machine(gpu(model.name, model.capability), **newest))
    for recipe in recipe_table().recipes:
        assert (found[recipe.key][0] == "fail") == bool(recipe.why_not(model)), recipe.key


def test_formats_have_the_same_limits_everywhere() -> None:
    common = {name: grid for name, grid in grids().items() if name in FORMATS}
    assert {"e4m3", "e5m2", "bf16"} <= common.keys()
    for name, grid in common.items():
        known = FORMATS[name]
        assert (grid.max, grid.smallest) == (known.max_finite, known.min_subnormal), name
        assert (2.0**grid.min_exponent, 2.0**-grid.mantissa_bits) == (known.min_normal, known.eps), name
    assert {name: grids()[name].max for name in MAX} == MAX

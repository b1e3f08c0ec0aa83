"""What the agent asks of a machine for the recipe that its probes found."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from floatscope.preflight.light import examine_here, gather_here
from floatscope.protocol.preflight_field import preflight_field
from tests.agent.preflight.machines import gpu, machine

H100 = machine(gpu())
DELAYED = {"name": "fp8_delayed_scaling", "saturating_cast": True, "amax_history_len": 16}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts empty modules of these names into the process, and takes all others of FP8 libraries out."""
    for name in ("transformer_engine", "torchao", "megatron.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def load(*names: str) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))

    return load


def recipe_check(document: Any) -> dict[str, str]:
    found = preflight_field(document, field="document")
    return next(one for one in found["checks"] if one["area"] == "recipe")


def test_a_recipe_is_checked_for_the_library_that_is_loaded(loaded: Any) -> None:
    loaded("transformer_engine")
    found = examine_here(H100, DELAYED)
    assert (recipe_check(found)["status"], found["decision"]) == ("pass", "pass")
    assert found["wanted"]["library"] == "transformer_engine"
    assert found["casts"] == {"saturating_cast": True}
    assert recipe_check(examine_here(H100, {"name": "mxfp8"}))["status"] == "fail"
    loaded("megatron.core")
    assert examine_here(H100, DELAYED)["wanted"]["library"] == "megatron"


def test_an_emulated_recipe_is_not_held_against_a_library_that_is_not_there(loaded: Any) -> None:
    found = examine_here(H100, {"name": "mxfp8"})
    assert recipe_check(found)["name"] == "recipe.library"
    assert found["decision"] == "unknown"
    loaded("transformer_engine")
    assert recipe_check(examine_here(H100, {"name": "ao_rowwise"}))["name"] == "recipe.library"


def test_without_a_recipe_of_ours_the_machine_alone_is_checked(loaded: Any) -> None:
    for recipe in ({}, {"name": "own"}, {"name": None}, {"name": 3}):
        found = examine_here(H100, recipe)
        assert found["wanted"]["recipe"] == ""
        assert found["decision"] == "pass"
    assert recipe_check(examine_here(H100, {"name": "bf16"}))["status"] == "pass"


def test_nvml_is_left_alone_where_the_probe_is_off() -> None:
    assert "not asked" in gather_here(False)().nvml

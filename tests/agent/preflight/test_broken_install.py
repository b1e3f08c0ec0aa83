"""What is installed and does not start, or has damaged metadata, passes nowhere and is never "absent"."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from floatscope.preflight.cast_probe import probe
from floatscope.preflight.document import Preflight
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.gathering_torch import read_torch
from floatscope.preflight.machine import machine_checks
from floatscope.preflight.recipe_matrix import recipe_matrix
from floatscope.preflight.smoke_run import smoke
from tests.agent.preflight.machines import gpu, machine

OF_TE = Wanted(recipe="fp8_current_scaling")
OF_TORCHAO = Wanted(recipe="ao_tensorwise")
BROKEN_TE = {"te_import": {"state": "failed", "error": "ImportError: x.so: undefined symbol: _ZN3c10"}}


def whole(facts: Facts, wanted: Wanted) -> Preflight:
    checks = tuple(machine_checks(facts, wanted))
    recipes = {} if wanted.recipe else recipe_matrix(facts)
    return Preflight("2026-11-30T00:00:00Z", facts, wanted, checks, recipes)


def status_of(name: str, found: Preflight) -> str:
    return next((one.status for one in found.checks if one.name == name), "")


@pytest.mark.parametrize(
    ("error", "status"), [("OSError: libcudart.so.12", "fail"), ("no answer within 60 s", "unknown")]
)
def test_a_torch_that_does_not_start_is_no_pass(error: str, status: str) -> None:
    ready = machine(gpu())
    broken = replace(ready, torch={}, failed={"torch": error, "torch_import": error})
    found = whole(broken, OF_TE)
    assert status_of("software.torch_import", found) == status
    assert found.decision == status
    assert status_of("software.torch_import", whole(ready, OF_TE)) == ""


def test_a_broken_torch_is_found_by_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open')")
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.syspath_prepend(tmp_path)
    assert "libcudart" in read_torch(may_import=True).failed["torch_import"]
    assert probe() == {}
    rows, (check,) = smoke(Facts(), Wanted())
    assert (rows, check.status) == ([], "unknown")
    assert "libcudart" in check.read


def test_a_broken_transformer_engine_stops_its_own_recipes_only() -> None:
    facts = machine(gpu(), versions={"torchao": "0.18.0", "triton": "3.6.0"}, libraries=BROKEN_TE)
    assert whole(facts, OF_TE).decision == "fail"
    other = whole(facts, OF_TORCHAO)
    assert (status_of("software.te_import", other), other.decision) == ("warn", "warn")
    none_chosen = whole(facts, Wanted())
    assert none_chosen.recipes["fp8_current_scaling"][0] == "fail"
    assert none_chosen.recipes["ao_tensorwise"][0] == "pass"
    assert none_chosen.decision == "warn"


def test_without_any_fp8_library_nothing_can_train_in_fp8() -> None:
    found = whole(machine(gpu(), te=None), Wanted())
    assert found.decision == "fail"
    assert found.recipes["bf16"][0] == "pass"


def test_damaged_metadata_is_not_read_as_absent() -> None:
    facts = machine(gpu(), te=None, failed={"transformer-engine": "its metadata has no version"})
    check = next(one for one in whole(facts, OF_TE).checks if one.name == "software.transformer_engine")
    assert check.status == "unknown"
    assert "its metadata has no version" in check.read

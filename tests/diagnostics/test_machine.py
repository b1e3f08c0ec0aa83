"""What a preflight that came with a run adds to its verdict, and what it must not change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_diagnostics.machine import Machine
from floatscope_diagnostics.machine_hints import BECOMES_NAN, FAST_SUMS, SATURATES, hinted
from floatscope_diagnostics.rule import Finding, Remedy
from tests.diagnostics.case import Case, diagnose
from tests.diagnostics.cases import masked_nonfinite

FINDING = Finding(
    cause="masked_nonfinite",
    symptom="nonfinite",
    severity="warning",
    confidence=0.9,
    onset=3,
    detected=3,
    summary="said",
    evidence=(),
    remedy=Remedy("Do this."),
    decisive_test="",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
KEYS = ("checks", "casts", "gpus", "versions")


def preflight(**fields: Any) -> dict[str, Any]:
    return {"schema": "floatscope.preflight/1", "decision": "pass", "checks": [], **fields}


def check(name: str, status: str, read: str) -> dict[str, str]:
    return {"name": name, "area": "distribution", "status": status, "read": read, "why": "", "do": ""}


@pytest.mark.parametrize(("saturates", "said"), [(True, SATURATES), (False, BECOMES_NAN), (None, "")])
def test_what_a_cast_does_is_said_where_it_matters(saturates: bool | None, said: str) -> None:
    machine = Machine.of(preflight(casts={} if saturates is None else {"saturating_cast": saturates}))
    assert hinted(FINDING, machine).remedy.text == f"Do this. {said}".strip()
    other = replace(FINDING, cause="plateau")
    assert hinted(other, machine) is other


def test_fast_accumulation_is_named_where_sums_lose_terms() -> None:
    fast = check("distribution.fast_accumulation", "warn", "K = 14,336 on Hopper")
    sums = replace(FINDING, cause="accumulation_precision")
    machine = Machine.of(preflight(checks=[fast]))
    assert hinted(sums, machine).remedy.text == f"Do this. {FAST_SUMS}: K = 14,336 on Hopper."
    assert hinted(sums, Machine.of(preflight(checks=[fast | {"status": "pass"}]))) is sums


@pytest.mark.parametrize(
    ("te", "capability", "recipe", "known"),
    [
        ("2.18.0", [12, 0], {"name": "nvfp4"}, True),
        ("2.9.0+abc", [12, 1], {"name": "nvfp4"}, True),
        ("2.19.0", [12, 0], {"name": "nvfp4"}, False),
        ("2.18.0", [10, 0], {"name": "nvfp4"}, False),
        ("2.18.0", [12, 0], {"name": "mxfp8"}, False),
        ("2.18.0", [12, 0], {"name": "nvfp4", "disable_stochastic_rounding": True}, False),
        ("", [12, 0], {"name": "nvfp4"}, False),
    ],
)
def test_the_defect_is_known_by_version_gpu_and_recipe(
    te: str, capability: list[int], recipe: dict[str, Any], known: bool
) -> None:
    machine = Machine.of(
        preflight(versions={"transformer-engine": te}, gpus=[{"name": "x", "capability": capability}])
    )
    assert machine.zeroes_fp4_gradients(recipe) is known


def test_what_fails_is_noted_with_the_verdict_and_nothing_else_of_it_changes() -> None:
    case = masked_nonfinite.CASES[0]
    plain = diagnose(case)
    failing = preflight(
        checks=[
            check("gpu.ecc", "fail", "2 uncorrected errors"),
            check("framework.accelerate.conversion", "warn", "12 layers stay in BF16"),
            check("software.nccl", "warn", "2.20"),
        ]
    )
    told = diagnose(Case(case.name, {**case.info, "preflight": failing}, case.rows))
    assert told["source"].pop("notes") == [
        "preflight, gpu.ecc: 2 uncorrected errors",
        "preflight, framework.accelerate.conversion: 12 layers stay in BF16",
    ]
    plain["source"].pop("notes")
    assert told == plain


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, JSON)))
def test_whatever_a_document_holds_it_is_read(document: dict[str, Any]) -> None:
    machine = Machine.of(document)
    machine.zeroes_fp4_gradients({"name": "nvfp4"})
    assert len(machine.notes()) <= 3

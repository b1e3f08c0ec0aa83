"""The composition: what a part that raises, hangs or says nothing becomes, and what is decided."""

from __future__ import annotations

import time
from typing import Any

import pytest

from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.run import Parts, run_light, run_preflight
from floatscope.preflight.summary import sentence
from floatscope.protocol.preflight_field import preflight_field
from tests.agent.preflight.made import FACTS, check, parts, preflight


def broken(*_: Any) -> Any:
    raise OSError("no such device\nsecond line")


def hangs(*_: Any) -> Any:
    time.sleep(3)


def test_a_part_that_raises_is_an_unknown_check_that_names_it() -> None:
    made = parts(check("a", "pass"), casts=broken, smoke=broken, layers=broken, recipes=broken)
    found = run_preflight(Wanted(), made)
    own = {one.name: one for one in found.checks if one.area == "preflight"}
    assert list(own) == ["preflight.casts", "preflight.smoke", "preflight.layers", "preflight.recipes"]
    assert {one.status for one in own.values()} == {"unknown"}
    assert "OSError: no such device second line" in own["preflight.casts"].read
    assert found.checks[0].name == "a"


def test_without_facts_the_checks_still_run_and_the_answer_is_open() -> None:
    found = run_preflight(Wanted(), Parts(gather=broken, checks={"own": lambda f, w: [check("a", "pass")]}))
    assert [one.name for one in found.checks] == ["a", "preflight.facts"]
    assert found.decision == "unknown"
    assert found.facts.failed["facts"].startswith("OSError")


def test_a_part_that_hangs_is_left_behind() -> None:
    began = time.monotonic()
    found = run_preflight(Wanted(), parts(check("a", "pass"), smoke=hangs, casts=broken), limit_s=0.3)
    assert time.monotonic() - began < 2
    assert "no answer within" in next(one.read for one in found.checks if one.name == "preflight.smoke")


@pytest.mark.parametrize(
    ("statuses", "decision"),
    [
        (("pass", "not_applicable"), "pass"),
        (("pass", "warn"), "warn"),
        (("pass", "unknown"), "warn"),
        (("fail", "warn", "unknown"), "fail"),
        ((), "unknown"),
        (("not_applicable",), "unknown"),
    ],
)
def test_the_worst_check_decides(statuses: tuple[Status, ...], decision: str) -> None:
    assert preflight([check(str(i), s) for i, s in enumerate(statuses)]).decision == decision


def test_without_a_recipe_one_that_runs_is_enough() -> None:
    def decided(**recipes: Status) -> str:
        made = preflight(
            [check("a", "pass")], wanted=Wanted(), recipes={k: (v, "") for k, v in recipes.items()}
        )
        assert (made.decision == "fail") == ("cannot train here" in sentence(made))
        return made.decision

    assert decided(fp8_delayed_scaling="fail", mxfp8="fail", bf16="pass") == "fail"
    assert decided(fp8_delayed_scaling="pass", mxfp8="fail") == "pass"
    assert decided(fp8_delayed_scaling="fail", mxfp8="unknown", bf16="pass") == "unknown"


def test_unknown_is_not_pass_where_it_decides() -> None:
    good = check("a", "pass")
    assert preflight([good, check("recipe.gpu", "unknown", "recipe")]).decision == "unknown"
    assert preflight([good, check("preflight.machine", "unknown", "preflight")]).decision == "unknown"
    assert preflight([good, check("gpu.xid", "unknown", "gpu")]).decision == "warn"
    assert preflight([check("a", "pass")], facts=Facts()).decision == "unknown"
    assert preflight([check("a", "fail")], facts=Facts()).decision == "fail"


def test_the_document_is_one_that_a_run_may_carry() -> None:
    found = run_preflight(
        Wanted(),
        parts(
            check("a", "warn", do="mend"),
            recipes=lambda facts: {"mxfp8": ("fail", "needs 10.x")},
            casts=lambda facts, wanted: ({"saturating_cast": True}, [check("casts.e4m3", "pass", "casts")]),
            smoke=lambda facts, wanted: ([{"format": "e4m3", "relative_error": float("nan")}], []),
        ),
    )
    document = preflight_field(found.to_json(), field="document")
    assert document["recipes"] == {"mxfp8": {"status": "fail", "why": "needs 10.x"}}
    assert document["counts"] == {"pass": 1, "warn": 1, "fail": 0, "unknown": 0, "not_applicable": 0}
    assert document["versions"]["cuda"] == "12.9"
    assert document["gemm"][0]["relative_error"] == "NaN"
    assert document["gpus"] == [
        {"name": FACTS.gpus[0].name, "capability": [9, 0], "memory_bytes": 80 * 2**30}
    ]
    assert set(document["seconds"]) >= {"facts", "own", "casts", "smoke", "recipes"}


def test_the_agents_own_asks_only_pure_checks_and_survives_them() -> None:
    def raises(facts: Facts, wanted: Wanted) -> list[Check]:
        raise KeyError("x")

    found = run_light(FACTS, Wanted(), {"good": lambda f, w: [check("a", "pass")], "bad": raises}, casts={})
    assert [one.name for one in found.checks] == ["a", "preflight.bad"]
    assert found.to_json()["light"] is True

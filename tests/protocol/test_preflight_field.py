"""A preflight that comes with a run: kept as it came, bounded, and what is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.preflight.fitting import fitting
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.preflight_field import MAX_CHARS, preflight_field
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps

CHECK = {"name": "gpu.recipe", "area": "recipe", "status": "pass", "read": "9.0", "why": "w", "do": ""}
GOOD: dict[str, Any] = {
    "schema": "floatscope.preflight/1",
    "decision": "pass",
    "checks": [CHECK],
    "counts": {"pass": 1},
    "versions": {"torch": "2.13.0"},
    "gpus": [{"name": "H100", "capability": [9, 0]}],
    "later": {"kept": [1, None]},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=10,
)


def test_it_goes_with_the_run_and_a_later_one_replaces_it() -> None:
    run = RunInfo.from_json({"name": "r", "preflight": GOOD})
    assert run.to_json() == {"name": "r", "preflight": GOOD}
    later = RunInfo.from_json({"preflight": GOOD | {"decision": "fail"}})
    assert run.merged(later).preflight["decision"] == "fail"
    assert run.merged(RunInfo(name="s")).preflight == GOOD
    assert "preflight" not in RunInfo.from_json({"name": "r"}).to_json()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": "floatscope.verdict/1"}, "run.preflight.schema"),
        ({"decision": "maybe"}, "run.preflight.decision"),
        ({"checks": {}}, "run.preflight.checks"),
        ({"checks": [CHECK, 3]}, "run.preflight.checks[1]"),
        ({"checks": [CHECK | {"status": "good"}]}, "run.preflight.checks[0].status"),
        ({"checks": [CHECK | {"read": 3}]}, "run.preflight.checks[0].read"),
        ({"checks": [CHECK] * 2001}, "run.preflight.checks"),
        ({"versions": {"torch": 2}}, "run.preflight.versions['torch']"),
        ({"versions": []}, "run.preflight.versions"),
        ({"gpus": {}}, "run.preflight.gpus"),
        ({"note": "x" * MAX_CHARS}, "run.preflight"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ProtocolError) as error:
        RunInfo.from_json({"preflight": {**GOOD, **change}})
    assert error.value.field == field


def test_absurd_nesting_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ProtocolError):
        preflight_field(GOOD | {"casts": {"x": deep}}, field="p")


@pytest.mark.parametrize("count", [1, 900, 2000])
def test_a_document_that_is_too_large_loses_its_least_telling_parts(count: int) -> None:
    loud = CHECK | {"name": "bad", "status": "fail", "do": "mend it"}
    quiet = CHECK | {"why": "y" * 400}
    found = fitting(GOOD | {"checks": [loud, *[quiet] * (count - 1)]})
    assert found is not None
    assert len(dumps(found)) <= MAX_CHARS
    assert found["checks"][0] == loud
    assert ("left_out" in found) is (count > 1)


def test_what_is_no_preflight_goes_with_no_run() -> None:
    assert fitting({"schema": "other"}) is None
    assert fitting(GOOD | {"note": "x" * MAX_CHARS}) is None


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries({}, optional={key: JSON for key in (*GOOD, "casts", "layers")}), st.booleans())
def test_any_json_is_taken_or_refused(found: dict[str, Any], starts_good: bool) -> None:
    try:
        kept = preflight_field({**(GOOD if starts_good else {}), **found}, field="p")
    except ProtocolError:
        return
    assert RunInfo.from_json({"preflight": kept}).preflight == kept or "nan" in repr(kept).lower()


def test_what_fails_stays_when_even_what_is_loud_does_not_fit() -> None:
    unknown = [{"name": f"u{i}", "status": "unknown", "read": "r" * 2000} for i in range(400)]
    loud = [{"name": "slow", "status": "warn"}, {"name": "broken", "status": "fail"}]
    found = fitting(GOOD | {"checks": [*unknown, *loud]})
    assert found is not None
    assert [one["name"] for one in found["checks"][:3]] == ["broken", "slow", "u0"]
    assert "checks" in found["left_out"]

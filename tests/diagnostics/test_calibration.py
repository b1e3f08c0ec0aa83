"""Confidences: what they rest on, that they add up, and that doubt is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope_diagnostics.calibration import (
    AS_STATED,
    BASIS,
    HIGHEST,
    LOWEST,
    Calibration,
    CalibrationError,
    fitted,
)
from floatscope_diagnostics.certainty import settle
from floatscope_diagnostics.clues import Clues
from floatscope_diagnostics.differential import BY_SYMPTOM, LOOKALIKE, TEST_BETWEEN, TEST_OF, deciding_test
from floatscope_diagnostics.rule import FAMILY_OF, Alternative, Evidence, Finding, Remedy

FOUND = Finding(
    cause="gradient_underflow", symptom="underflow", severity="warning", confidence=0.9, onset=10,
    detected=12,
    summary="Gradients round to zero.", evidence=(Evidence("underflow_pct", 12, 60.0, "near 3"),),
    remedy=Remedy("Scale them."), decisive_test="Run them in BF16.", rule="FS301",
)  # fmt: skip
RIVAL = Alternative("scale_state_fault", 0.8, "weaker evidence", test="Recompute the scale.", rule="FS203")
DOUBT = replace(AS_STATED, basis=BASIS, intercept=-2.5)


def test_the_packaged_calibration_says_where_it_comes_from() -> None:
    fit = fitted()
    assert fit.basis == BASIS
    assert fit.provenance["split"] == "calibrate"
    assert fit.provenance["runs"] > 100
    assert min(fit.provenance["seeds"]) >= 2000
    assert fit is fitted()


def test_json_and_back() -> None:
    fit = replace(fitted(), elsewhere={"FS301/gradient_underflow": {"logit_growth": 0.25}})
    assert Calibration.from_json(fit.to_json()) == fit


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schema", "other/1", "schema"),
        ("intercept", "high", "intercept"),
        ("intercept", float("nan"), "intercept"),
        ("weights", [1.0], "weights"),
        ("groups", {"FS301/x": True}, r"groups\[FS301/x\]"),
        ("elsewhere", {"FS301/x": {"moon": 0.5}}, "not a cause: moon"),
        ("other", None, "other"),
    ],
)
def test_a_damaged_file_is_refused_by_field(field: str, value: Any, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        Calibration.from_json({**fitted().to_json(), field: value})


@given(
    st.floats(0, 1), st.floats(0, 1), st.integers(0, 9), st.booleans(),
    st.sampled_from(["FS301/gradient_underflow", "FS999/unknown"]),
)  # fmt: skip
def test_a_probability_for_any_clues(
    stated: float, rival: float, signals: int, earlier: bool, group: str
) -> None:
    rule, cause = group.split("/")
    p = fitted().probability(Clues(rule, cause, stated, rival=rival, signals=signals, earlier=earlier))
    assert LOWEST <= p <= HIGHEST


def total(finding: Finding) -> float:
    return finding.confidence + sum(a.confidence for a in finding.alternatives)


@given(
    st.floats(0.05, 0.99),
    st.lists(st.tuples(st.sampled_from(sorted(FAMILY_OF)), st.floats(0, 1)), max_size=4),
    st.sampled_from(sorted(FAMILY_OF)),
    st.sampled_from(sorted(BY_SYMPTOM)),
    st.sampled_from([0.0, -2.5, 2.0]),
)
def test_confidences_add_up_and_doubt_names_two_causes_and_a_test(
    stated: float, rivals: list[tuple[str, float]], cause: str, symptom: str, shift: float
) -> None:
    alternatives = tuple({c: Alternative(c, p, "why") for c, p in rivals if c != cause}.values())
    claim = replace(FOUND, cause=cause, symptom=symptom, confidence=stated, alternatives=alternatives)
    answer = settle(claim, replace(DOUBT, intercept=shift))
    assert total(answer) <= 1.0 + 1e-9
    assert answer.alternatives
    assert answer.cause not in [a.cause for a in answer.alternatives]
    assert "undetermined" not in [a.cause for a in answer.alternatives]
    if answer.cause == "undetermined":
        assert answer.confidence < 0.6
        assert len(answer.alternatives) == 2
        assert answer.alternatives[0].confidence >= answer.alternatives[1].confidence
        assert answer.decisive_test
    else:
        assert answer.confidence >= 0.6
        assert answer.cause == cause


@pytest.mark.parametrize("stated", [0.3, 0.45, 0.59])
def test_a_claim_that_lacks_a_sign_is_never_raised(stated: float) -> None:
    """Whatever the library showed: there everything is logged."""
    for fit in (fitted(), replace(AS_STATED, basis=BASIS, intercept=4.0)):
        clues = Clues(rule="FS412", cause="data_shift", stated=stated)
        assert fit.probability(clues) <= stated
        assert settle(replace(FOUND, confidence=stated), fit).cause == "undetermined"


def test_below_the_threshold_the_test_is_one_between_the_two() -> None:
    answer = settle(replace(FOUND, alternatives=(RIVAL,)), DOUBT)
    assert answer.cause == "undetermined"
    assert {a.cause for a in answer.alternatives} == {"gradient_underflow", "scale_state_fault"}
    assert answer.decisive_test == TEST_BETWEEN[frozenset({"gradient_underflow", "scale_state_fault"})]
    assert answer.remedy.text.startswith("Run the deciding test first. If it points to gradient_underflow:")
    assert "The cause is not certain" in answer.summary


def test_two_causes_without_a_common_test_bring_their_own() -> None:
    text = deciding_test("gradient_underflow", "stall", own={"gradient_underflow": "Run them in BF16."})
    assert text == f"For gradient underflow: Run them in BF16. For stall: {TEST_OF['stall']}"


def test_a_sure_answer_keeps_its_test_and_names_what_it_is_not() -> None:
    answer = settle(replace(FOUND, alternatives=(RIVAL,)), AS_STATED)
    assert (answer.cause, answer.confidence) == ("gradient_underflow", 0.9)
    assert answer.decisive_test == FOUND.decisive_test
    assert answer.alternatives[0].cause == "scale_state_fault"


def test_what_the_library_showed_is_weighed_beside_what_the_rules_say() -> None:
    seen = replace(AS_STATED, elsewhere={"FS301/gradient_underflow": {"logit_growth": 0.6}})
    assert settle(FOUND, seen).alternatives[0].cause == "logit_growth"


def test_a_note_is_left_as_it_is() -> None:
    note = replace(FOUND, severity="info", confidence=0.4)
    assert settle(note, DOUBT) == note


def test_the_differential_covers_every_cause() -> None:
    causes = set(FAMILY_OF) - {"undetermined"}
    assert set(TEST_OF) == set(LOOKALIKE) == causes
    assert {c for pair in TEST_BETWEEN for c in pair} <= causes
    assert {c for pair in BY_SYMPTOM.values() for c in pair} <= causes
    assert all(LOOKALIKE[c] != c for c in causes)

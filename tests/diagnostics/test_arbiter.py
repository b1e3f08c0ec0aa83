"""One incident, one finding: which explanation of an earlier one covers a later one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floatscope_diagnostics.arbiter import MEMORY_ROWS, judge
from floatscope_diagnostics.rule import Finding, Remedy

ALL_RANKS = -1


def finding(
    cause: str, onset: int, *, rank: int | None = 0, last: int | None = None, confidence: float = 0.8
) -> Finding:
    return Finding(
        cause=cause,
        symptom="overflow",
        severity="warning",
        confidence=confidence,
        onset=onset,
        detected=onset,
        summary=f"{cause} at {onset}",
        evidence=(),
        remedy=Remedy("look"),
        decisive_test="look again",
        rank=rank,
        last=last,
        key=(onset, onset, cause),
    )


def causes(*candidates: Finding) -> list[str]:
    return [f.cause for f in judge(candidates).findings]


@pytest.mark.parametrize(
    ("cause_rank", "effect_rank", "explained"),
    [(0, 0, True), (0, 1, False), (ALL_RANKS, 1, True), (0, ALL_RANKS, True), (None, 1, True)],
)
def test_a_cause_on_one_rank_explains_nothing_on_another(
    cause_rank: int | None, effect_rank: int, explained: bool
) -> None:
    cause = finding("op_kernel_fault", 100, rank=cause_rank)
    effect = finding("stale_scale_saturation", 110, rank=effect_rank)
    assert causes(cause, effect) == [cause.cause] + [effect.cause] * (not explained)


def test_what_begins_long_after_a_cause_ended_is_another_incident() -> None:
    cause = finding("op_kernel_fault", 100, last=105)
    for onset, explained in ((105 + MEMORY_ROWS, True), (106 + MEMORY_ROWS, False)):
        effect = finding("stale_scale_saturation", onset)
        assert causes(cause, effect) == [cause.cause] + [effect.cause] * (not explained)


def test_a_consequence_never_explains_its_cause() -> None:
    assert causes(finding("stall", 100), finding("op_kernel_fault", 110)) == ["stall", "op_kernel_fault"]


@pytest.mark.parametrize("surer", ["data_shift", "stall"])
def test_of_two_that_begin_together_the_surer_is_named_and_the_other_an_alternative(surer: str) -> None:
    pair = [finding(c, 100, confidence=0.9 if c == surer else 0.7) for c in ("data_shift", "stall")]
    found = judge(pair).findings
    assert [f.cause for f in found] == [surer]
    assert {"data_shift", "stall"} <= {surer, *(a.cause for a in found[0].alternatives)}


@pytest.mark.parametrize("first_kind", ["frozen", "recompute"])
def test_one_cause_seen_twice_is_told_from_its_onset_on(first_kind: str) -> None:
    first = replace(finding("scale_state_fault", 100, confidence=0.8), kind=first_kind)
    later = replace(finding("scale_state_fault", 175, confidence=0.95), kind="frozen")
    (found,) = judge([first, later]).findings
    assert (found.onset, found.kind) == (100, "frozen")
    assert "at 100" in found.summary
    assert ("at 175" in found.summary) == (first_kind != "frozen")

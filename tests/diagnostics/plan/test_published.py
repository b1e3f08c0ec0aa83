"""Predictions against publications: the targets, and that every miss has its reason."""

from __future__ import annotations

import pytest

from floatscope.hardware.gpu_lookup import gpu_models
from floatscope_diagnostics.plan.check_report import KINDS, check_document, summary
from floatscope_diagnostics.plan.checks import TARGETS, Outcome, not_usable, run_checks
from floatscope_diagnostics.plan.rates import rates_of


@pytest.fixture(scope="module")
def outcomes() -> tuple[Outcome, ...]:
    return run_checks()


def test_every_case_has_a_source_a_known_kind_and_its_own_name(outcomes: tuple[Outcome, ...]) -> None:
    assert len({one.case.id for one in outcomes}) == len(outcomes)
    for one in outcomes:
        assert one.case.source
        assert one.case.kind in KINDS
        assert one.case.kind == "peak_gib" or one.case.kind in TARGETS
    assert all(row["why"] for row in not_usable())


def test_a_target_that_is_missed_has_a_reason(outcomes: tuple[Outcome, ...]) -> None:
    silent = [one.case.id for one in outcomes if not one.inside and not one.case.reason]
    assert silent == []


def test_most_cases_that_set_nothing_meet_their_target(outcomes: tuple[Outcome, ...]) -> None:
    found = summary(outcomes)
    for kind, least in (("peak_gib", 1.0), ("tokens_per_s", 0.9), ("speedup", 0.9), ("state_gb", 1.0)):
        assert found[kind]["inside"] >= least * found[kind]["cases"], kind
    assert found["tokens_per_s"]["cases"] >= 55
    assert found["mixture_tokens_per_s"]["inside"] >= 9
    assert found["tokens_per_s"]["median_abs_error_pct"] < 12
    assert found["speedup"]["median_abs_error_pct"] < 7


def test_sharded_state_is_within_10_pct(outcomes: tuple[Outcome, ...]) -> None:
    named = {one.case.id: one for one in outcomes}
    for name in ("zero-7.5b-stage0", "zero-7.5b-stage1", "zero-7.5b-stage2", "zero-7.5b-stage3"):
        assert abs(named[name].error) <= 0.02
    assert -0.10 <= named["titan-8b-8-to-128"].error <= 0
    assert named["korthikanti-gpt-3-175b-selective"].predicted == pytest.approx(70.2, abs=0.1)


def test_a_share_of_the_roofline_is_set_by_the_case_it_names(outcomes: tuple[Outcome, ...]) -> None:
    named = {one.case.id: one for one in outcomes}
    stacks = ("torchtitan", "megatron")
    calibrated = {rates_of(gpu, stack=one).calibrated_on for gpu in gpu_models() for one in stacks} - {""}
    assert len(calibrated) == 6
    for name in calibrated:
        assert named[name].case.sets.startswith("step share")
        assert abs(named[name].error) < 0.02


def test_the_document_has_every_case_and_no_case_twice_in_the_summary(outcomes: tuple[Outcome, ...]) -> None:
    document = check_document(outcomes)
    assert document["schema"] == "floatscope.plan_check/1"
    assert len(document["cases"]) == len(outcomes)
    counted = sum(int(row["cases"]) for row in document["summary"].values())
    assert counted == sum(not one.case.sets for one in outcomes)


def test_the_interval_of_a_mixture_holds_the_published_ones(outcomes: tuple[Outcome, ...]) -> None:
    for one in outcomes:
        if one.case.kind == "mixture_tokens_per_s":
            rates = one.case.rates
            assert 1 - rates.step_band <= 1 / (1 + one.error) <= 1 + rates.step_over, one.case.id

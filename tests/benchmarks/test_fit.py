"""Fitting the calibration: shrinkage, choice of the form, where the truth lay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.diagnosis.fit import (
    ALL,
    FORMS,
    SLOPE,
    Logistic,
    Sample,
    Score,
    choose,
    cross_validated,
    elsewhere,
    isotonic,
    samples_of,
)
from benchmarks.diagnosis.outcome import Judged
from floatscope_diagnostics.calibration import BASIS, HIGHEST
from floatscope_diagnostics.clues import Clues

SURE = Clues(rule="FS201", cause="stale_scale_saturation", stated=0.8)
RARE = replace(SURE, rule="FS301", cause="gradient_underflow")


def samples(clues: Clues, *, right: int, wrong: int, truth: str = "op_kernel_fault") -> list[Sample]:
    return [
        *(Sample(clues, True, clues.cause, k % 5) for k in range(right)),
        *(Sample(clues, False, truth, k % 5) for k in range(wrong)),
    ]


def test_many_runs_move_the_confidence_to_the_share_that_was_right() -> None:
    fit = Logistic(SLOPE, 1.0).parameters(samples(SURE, right=190, wrong=10))
    assert fit.probability(SURE) == pytest.approx(0.95, abs=0.02)
    assert fit.basis == BASIS


def test_a_rule_seen_in_three_runs_is_not_taken_for_infallible_or_useless() -> None:
    often = samples(SURE, right=180, wrong=20)
    lucky = Logistic(SLOPE, 1.0).parameters([*often, *samples(RARE, right=3, wrong=0)]).probability(RARE)
    unlucky = Logistic(SLOPE, 1.0).parameters([*often, *samples(RARE, right=0, wrong=3)]).probability(RARE)
    assert 0.8 < lucky < 0.95
    assert 0.2 < unlucky < 0.7


def test_never_wrong_is_not_certain_the_less_so_the_rarer() -> None:
    def sure(runs: int) -> float:
        return Logistic(SLOPE, 1.0).parameters(samples(SURE, right=runs, wrong=0)).probability(SURE)

    assert 0.8 < sure(4) < sure(40) <= HIGHEST


def test_a_rule_never_seen_gets_what_the_average_rule_gets() -> None:
    fit = Logistic(SLOPE, 1.0).parameters(samples(SURE, right=190, wrong=10))
    assert fit.groups.keys() == {"FS201/stale_scale_saturation"}
    assert 0.7 < fit.probability(RARE) <= fit.probability(SURE)


def test_without_parameters_the_stated_confidence_stays() -> None:
    assert Logistic(()).fit(samples(SURE, right=1, wrong=9))(SURE) == 0.8


def test_cross_validation_holds_whole_seeds_out() -> None:
    score = cross_validated(samples(SURE, right=90, wrong=10), Logistic(SLOPE).fit)
    assert score.brier == pytest.approx(0.09, abs=0.01)
    assert score.ece < 0.08
    with pytest.raises(ValueError, match="no alarm"):
        cross_validated([], isotonic)


def test_of_equally_good_forms_the_best_calibrated_is_taken() -> None:
    scored = [
        (FORMS[0], Score(brier=0.10, error=0.01, ece=0.001)),
        (FORMS[2], Score(brier=0.060, error=0.01, ece=0.05)),
        (FORMS[-1], Score(brier=0.065, error=0.01, ece=0.02)),
    ]
    assert choose(scored)[0] is FORMS[-1]


def test_isotonic_pools_what_goes_down() -> None:
    low, high = replace(SURE, stated=0.6), replace(SURE, stated=0.9)
    model = isotonic([*samples(low, right=9, wrong=1), *samples(high, right=7, wrong=3)])
    assert model(low) == model(high) == pytest.approx(0.8)


def test_where_the_truth_lay_is_drawn_to_nothing_by_few_runs() -> None:
    shares = elsewhere([*samples(SURE, right=5, wrong=4), *samples(SURE, right=0, wrong=1, truth="healthy")])
    assert shares == {"FS201/stale_scale_saturation": {"op_kernel_fault": 0.5}}


def test_only_alarms_that_name_a_cause_and_are_not_judged_twice_are_samples() -> None:
    run = Judged(
        run="small-bf16-s12-n2000/x", case="c", cause="stall", split="tune", held_back=False, recipe="bf16",
        flavour="plain", healthy_steps=0, resampled_steps=9, predicted="stall", family="hardware",
        accepted=frozenset({"stall"}), false_alarms=({"id": "early", "clues": SURE},),
        alarms=(
            {"id": "early", "clues": SURE},
            {"id": "a", "clues": replace(SURE, cause="stall")},
            {"id": "b", "clues": replace(SURE, cause="undetermined")},
            {"id": "c", "clues": SURE},
        ),
    )  # fmt: skip
    found = samples_of([run])
    assert [(s.clues.cause, s.right, s.fold) for s in found] == [
        ("stall", True, 2),
        ("stale_scale_saturation", False, 2),
    ]
    assert all(name in ALL or name == "slope" for name in SURE.features())

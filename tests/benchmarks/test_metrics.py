"""Numbers over judged runs, against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.diagnosis.__main__ import enough
from benchmarks.diagnosis.metrics import (
    Share,
    confusion,
    f1_by_cause,
    false_alarms,
    macro_f1,
    onset_right,
    poisson_upper,
    share,
)
from benchmarks.diagnosis.outcome import Judged, outside
from benchmarks.diagnosis.report import by_group, confusion_table, mistakes, table

FINDING: dict[str, Any] = {
    "id": "f", "cause": "stall", "kind": None, "rule": "FS502", "severity": "warning", "confidence": 0.8,
    "onset_step": 4, "detected_step": 5, "tensor": None, "layer": None, "affected_tensors": 0,
    "evidence": [{"signal": "step_time_s", "tensor": None, "step": 5, "value": 2.0, "expected": "near 0.3"}],
}  # fmt: skip


def healthy(*, steps: int = 1000, alarms: int = 0) -> Judged:
    return Judged(
        run="r", case="healthy", cause="healthy", split="tune", held_back=False, recipe="bf16",
        flavour="plain", healthy_steps=steps, resampled_steps=0, false_alarms=(FINDING,) * alarms,
        predicted="stall" if alarms else "healthy", family="none", cause_ok=not alarms, family_ok=not alarms,
    )  # fmt: skip


def faulty(cause: str, said: str, *, ok: bool | None = None, **more: Any) -> Judged:
    run = replace(healthy(steps=0), case=cause, cause=cause, predicted=said, abrupt=True)
    right = cause == said if ok is None else ok
    return replace(run, cause_ok=right, family_ok=right, resampled_steps=100, **more)


@pytest.mark.parametrize(("count", "limit"), [(0, 2.9957), (1, 4.7439), (3, 7.7537), (10, 16.9622)])
def test_the_poisson_limit_is_the_textbook_one(count: int, limit: float) -> None:
    """Values: half the 95 % quantile of chi squared with 2 (count + 1) degrees of freedom."""
    assert poisson_upper(count) == pytest.approx(limit, abs=1e-3)


def test_no_alarm_gives_the_rule_of_three() -> None:
    alarms = false_alarms([healthy(steps=200_000)])
    assert alarms.per_million == 0
    assert alarms.bound_per_million == pytest.approx(3e6 / 200_000, rel=0.01)


def test_alarms_are_counted_per_finding_and_resampled_steps_apart() -> None:
    runs = [
        healthy(steps=500),
        healthy(steps=500, alarms=2),
        faulty("stall", "stall", false_alarms=(FINDING,)),
    ]
    alarms = false_alarms(runs)
    assert (alarms.runs, alarms.runs_with_alarm, alarms.steps, alarms.alarms) == (2, 1, 1000, 2)
    assert (alarms.resampled_steps, alarms.resampled_alarms) == (100, 1)
    assert alarms.per_million == pytest.approx(2000)


def test_nothing_judged_gives_no_rate() -> None:
    assert false_alarms([]).per_million is None
    assert false_alarms([]).bound_per_million is None
    assert macro_f1([]) is None


def test_f1_counts_what_was_missed_and_what_was_claimed() -> None:
    runs = [faulty("a", "a"), faulty("a", "b"), faulty("b", "b"), faulty("b", "b")]
    assert f1_by_cause(runs) == {"a": pytest.approx(2 / 3), "b": pytest.approx(4 / 5)}
    assert macro_f1(runs) == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_an_accepted_answer_counts_as_the_true_one() -> None:
    runs = [faulty("a", "undetermined", ok=True)]
    assert f1_by_cause(runs) == {"a": 1.0}
    assert confusion(runs) == {"a": {"undetermined*": 1}}


def test_share_leaves_out_what_does_not_apply() -> None:
    assert share([True, None, False, True]) == Share(right=2, total=3)
    assert share([None]).percent is None


@pytest.mark.parametrize(("step", "error"), [(7, -3), (10, 0), (12, 0), (15, 3)])
def test_the_onset_error_is_zero_inside_the_window(step: int, error: int) -> None:
    assert outside(step, 10, 12) == error


def test_onset_is_scored_on_abrupt_faults_only() -> None:
    slow = replace(faulty("a", "a", onset_error=30), abrupt=False)
    assert onset_right([faulty("a", "a", onset_error=2), faulty("a", "a", onset_error=-3), slow]) == Share(
        1, 2
    )


def test_the_tables_print_without_a_fault_and_with_one() -> None:
    runs = [healthy(), healthy(alarms=1), faulty("stall", "stall", delay=1, lead=math.inf, alarms=(FINDING,))]
    text = "\n".join([*table("all", runs), *confusion_table(runs), *by_group(runs, of="recipe")])
    assert "healthy runs with an alarm                    1/2" in text
    assert "loss never moves while watched              1" in text
    assert "median distance of the onset (noticed), steps -" in text
    late = [faulty("a", "a", onset_error=error) for error in (-3, 0, 1)]
    assert "median distance of the onset (noticed), steps 1.0" in "\n".join(table("x", late))
    assert "\n".join(table("none", [healthy()]))


def test_the_mistakes_name_the_run_the_rule_the_step_and_the_evidence() -> None:
    text = "\n".join(mistakes([healthy(alarms=1), faulty("a", "b", alarms=(FINDING,))]))
    assert "1 x stall (FS502)" in text
    assert "detected 5" in text
    assert "step_time_s  at 5: 2.0 (expected near 0.3)" in text
    assert "true a (a), said b" in text


def test_the_floor_counts_right_causes_and_false_alarms(capsys: pytest.CaptureFixture[str]) -> None:
    good = [replace(healthy(), cause_ok=True), replace(healthy(), cause_ok=True)]
    assert enough(good, percent=100) == 0
    assert enough([*good, replace(healthy(), cause_ok=False)], percent=70) == 1
    assert enough([*good, replace(healthy(alarms=1), cause_ok=True)], percent=70) == 1
    said = capsys.readouterr().err
    assert "66.7 %" in said
    assert "1 false alarms" in said

"""The findings in the decision: what refuses, what keeps it open, what is only said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from floatscope_diagnostics.compare.casts import LossyCast, lossy_casts
from floatscope_diagnostics.compare.go import decide
from floatscope_diagnostics.compare.health import Health, Warned, health_of
from floatscope_diagnostics.compare.judge import Comparison, Settings, compare
from floatscope_diagnostics.compare.side import Side
from tests.diagnostics.compare.logs import Rows, rows_of
from tests.diagnostics.compare.pairs import USUAL, WELL, falling, pair, rows, side

CLIPS = {
    "severity": "warning", "state": "confirmed", "summary": "fc1/input clips.", "onset_step": 7,
    "cause": "stale_scale_saturation", "remedy": {"text": "Use current scaling. Or a margin."},
}  # fmt: skip


def judged(*findings: dict[str, Any], tensors: int = 30) -> Health:
    found = health_of({"status": "any", "findings": list(findings), "source": {"tensors": tensors}})
    assert found is not None
    return found


def test_an_open_critical_finding_is_a_no_go_whatever_the_loss_says() -> None:
    ill = Health("critical", ("scales are frozen since step 300",))
    go = decide(pair(), USUAL, health=(ill, WELL[1]))
    assert go.verdict == "no_go"
    assert "scales are frozen" in go.gate("fp8_health").sentence


def test_casts_that_were_not_read_are_no_pass() -> None:
    assert decide(pair(), USUAL, health=WELL).verdict == "go"
    go = decide(replace(pair(), casts=None), USUAL, health=WELL)
    assert (go.verdict, go.gate("fp8_health").state) == ("not_yet", "not_checked")
    assert "FP8 health" in go.sentence
    assert "statistics of tensors" in go.next_step
    ill = Health("critical", ("scales are frozen since step 300",))
    assert decide(replace(pair(), casts=None), USUAL, health=(ill, WELL[1])).verdict == "no_go"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "not_yet"),
        ({"state": "raised"}, "not_yet"),
        ({"cause": "undetermined", "alternatives": [{"cause": "gradient_underflow"}]}, "not_yet"),
        ({"cause": "undetermined", "alternatives": [{"cause": "bad_batch"}, "odd"]}, "go"),
        ({"cause": "plateau"}, "go"),
        ({"cause": None, "alternatives": 3, "remedy": 3}, "go"),
        ({"state": "recovered"}, "go"),
        ({"severity": "info"}, "go"),
    ],
)
def test_an_open_warning_of_the_precision_keeps_it_open(changes: dict[str, Any], verdict: str) -> None:
    go = decide(pair(), USUAL, health=(judged({**CLIPS, **changes}), WELL[1]))
    assert go.verdict == verdict
    gate = go.gate("fp8_health")
    if verdict == "go":
        assert gate.state == "pass"
        return
    assert (gate.state, go.more_steps) == ("undecided", None)
    assert "fault of the number formats is open: fc1/input clips (since step 7)." in go.sentence
    assert go.next_step == "Use current scaling; then train the pair again."


def test_what_the_baseline_has_as_well_is_not_of_the_precision() -> None:
    go = decide(pair(), USUAL, health=(judged(CLIPS), judged(CLIPS)))
    assert go.verdict == "go"
    assert go.sentence.endswith("Look at the open warning first: fc1/input clips (since step 7).")
    assert "Over by the end: fc1/input clips" in decide(
        pair(), USUAL, health=(judged({**CLIPS, "state": "recovered"}), WELL[1])
    ).gate("fp8_health").sentence  # fmt: skip


def test_more_steps_do_not_repair_a_fault() -> None:
    go = decide(pair(0.0, n=400, noise=0.15), USUAL, health=(judged(CLIPS), WELL[1]))
    assert (go.verdict, go.more_steps) == ("not_yet", None)
    assert "do not decide the loss" in go.sentence
    assert "and a fault of the number formats is open" in go.sentence
    assert "more steps" not in go.next_step


def test_curves_alone_show_no_fault_of_a_cast() -> None:
    go = decide(pair(), USUAL, health=(judged(tensors=0), judged(tensors=0)))
    assert go.verdict == "go"
    assert go.gate("fp8_health").state == "not_checked"
    assert "Faults of the number formats were not looked for" in go.sentence
    ill = judged({**CLIPS, "severity": "critical"}, tensors=0)
    assert decide(pair(), USUAL, health=(ill, WELL[1])).verdict == "no_go"


def test_an_unjudged_run_is_no_healthy_one() -> None:
    go = decide(pair(), USUAL)
    assert (go.verdict, go.gate("fp8_health").state) == ("not_yet", "not_checked")
    assert "diagnose" in go.next_step


def cast_log(sqnr_db: float, *, from_step: int = 100, until: int = 10**9, fmt: str = "e4m3") -> Side:
    """800 steps; statistics in every fifth. One tensor's SQNR falls to what is asked for."""
    made: Rows = rows(falling(800, 5), seconds=0.7)
    for row in made[::5]:
        bad = from_step <= row["step"] < until
        row["tensors"] = {
            "a.fc1/input": {"amax": 1.0, "sqnr_db": sqnr_db if bad else 31.0},
            "a.fc2/input": {"amax": 1.0, "sqnr_db": 31.5},
        }
    tensors = {"a.fc1/input": {"format": fmt}, "a.fc2/input": {"format": fmt}}
    return side(made, label="run", info={"recipe": {"name": "fp8_current_scaling"}, "tensors": tensors})


def compared(run: Side) -> Comparison:
    return compare(run, side(rows(falling(800, 5), seconds=1.0), label="base"), Settings())


def test_a_cast_that_loses_far_too_much_keeps_it_open() -> None:
    go = decide(compared(cast_log(3.0)), USUAL, health=WELL)
    assert (go.verdict, go.gate("fp8_health").state) == ("not_yet", "undecided")
    assert "the cast of a.fc1/input has lost 28 dB more than its format must since step 100" in go.sentence
    assert go.next_step.startswith("floatscope advise on RUN")


@pytest.mark.parametrize(
    "run",
    [
        cast_log(28.5),  # what healthy runs do
        cast_log(3.0, until=500),  # over by the end
        cast_log(3.0, fmt="bf16"),  # no cast with a scale
        cast_log(float("nan")),
    ],
)
def test_a_healthy_cast_and_one_that_recovered_do_not(run: Side) -> None:
    found = compared(run)
    assert found.casts == ()
    assert decide(found, USUAL, health=WELL).verdict == "go"


def test_many_casts_are_one_fault() -> None:
    many = tuple(LossyCast(f"l{k}/input", 6.0, 20) for k in range(24))
    go = decide(replace(pair(), casts=many), USUAL, health=WELL)
    assert "the most of 24" in go.sentence
    assert go.gate("fp8_health").value == 1.0
    empty = side(rows_of(np.full(9, 2.0).tolist()))
    assert lossy_casts(empty.run, empty.tensors) == ()


def test_health_of_a_verdict() -> None:
    findings = [
        {"severity": "critical", "state": "raised", "summary": "NaN in fc1.", "onset_step": 7},
        {"severity": "critical", "state": "recovered", "summary": "over"},
        {"severity": "warning", "state": "confirmed", "summary": "low headroom", "cause": "logit_growth"},
        {"severity": "info", "state": "raised", "summary": "a note"},
        "no finding",
    ]
    assert health_of({"status": "critical", "findings": findings}) == Health(
        "critical", ("NaN in fc1 (since step 7)",), ("low headroom",), ("over",),
        (Warned("logit_growth", "low headroom"),), frozenset({"logit_growth"}), tensors_seen=False,
    )  # fmt: skip
    empty: list[dict[str, Any] | None] = [None, {}, {"status": "healthy"}, {"findings": []}]
    for nothing in (*empty, {"status": 3, "findings": []}):
        assert health_of(nothing) is None

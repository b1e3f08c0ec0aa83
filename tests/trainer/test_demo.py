"""The demo: what it plans, how it judges, what it prints."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from floatscope_trainer.demo.cli import main, make_job
from floatscope_trainer.demo.judge import judge, main_finding, read_losses
from floatscope_trainer.demo.plan import (
    FORK_STEP,
    HEALTHY_TWIN,
    QUIET_STEPS,
    STEPS,
    DemoRun,
    fork_checkpoint,
    plan,
)
from floatscope_trainer.demo.table import result_json, result_tables, summary
from floatscope_trainer.faults.injection import parse_injection
from floatscope_trainer.options import make_parser

FAMILIES = {"input_nan", "scale_calibration_blowup", "slow_truncation_drift"}


def run_named(name: str, *, seed: int = 0) -> DemoRun:
    return next(run for run in plan(seed) if run.name == name)


def verdict(*findings: dict[str, Any], status: str = "critical") -> dict[str, Any]:
    return {"status": status, "findings": list(findings), "source": {"last_step": STEPS - 1}}


def finding_of(run: DemoRun, **changes: Any) -> dict[str, Any]:
    """A right finding for a run, with changes."""
    assert run.fault_step is not None
    right: dict[str, Any] = {
        "family": run.expected.family,
        "cause": run.expected.cause,
        "kind": None,
        "severity": "warning",
        "state": "confirmed",
        "confidence": 0.9,
        "onset_step": run.fault_step,
        "detected_step": run.fault_step + 1,
        "layer": run.expected.layers[0] if run.expected.layers else None,
        "alternatives": [],
    }
    return right | changes


# the plan


@pytest.mark.parametrize("seed", range(5))
def test_every_headline_family_and_three_healthy_runs(seed: int) -> None:
    runs = plan(seed)
    assert {run.expected.family for run in runs if run.expected.cause} == FAMILIES
    assert sum(run.expected.cause is None for run in runs) == 3
    assert len({run.name for run in runs}) == len(runs)


@pytest.mark.parametrize("seed", range(5))
def test_faults_come_after_the_window_is_full_and_leave_room(seed: int) -> None:
    for run in plan(seed):
        if run.fault_step is not None:
            assert FORK_STEP + QUIET_STEPS <= run.fault_step < STEPS - QUIET_STEPS


def test_seed_moves_steps_and_layers() -> None:
    places = {(run.name, run.fault_step, run.expected.layers) for seed in range(3) for run in plan(seed)}
    assert len(places) > 2 * len(plan(0))
    assert plan(1) == plan(1)


def test_options_are_what_the_trainer_reads() -> None:
    parser = make_parser()
    ids = {run.name: f"{run.name}-x" for run in plan(0)}
    for run in plan(0):
        job = make_job(run, ids=ids, seed=3, scratch=Path("/scratch"))
        args = parser.parse_args(list(job.commands[-1]))
        injected = [parse_injection(text) for text in args.inject]
        assert bool(injected) == run.is_fork
        assert all(injection.step == run.fault_step for injection in injected)
        assert args.run_id == ids[run.name]
        assert args.baseline == (None if run.baseline is None else ids[run.baseline])
        assert job.after == (HEALTHY_TWIN if run.is_fork else None)
        assert (args.fork is not None) == (run.is_fork and not run.resumes)


def test_a_resumed_run_stops_at_the_fault_and_goes_on_from_its_checkpoint() -> None:
    run = run_named("lost-history")
    ids = {other.name: other.name for other in plan(0)}
    before, after = (make_parser().parse_args(list(c)) for c in make_job(
        run, ids=ids, seed=0, scratch=Path("/s")
    ).commands)  # fmt: skip
    assert before.steps == before.checkpoint_every == run.fault_step
    assert before.fork == fork_checkpoint(Path("/s"))
    assert before.inject == []
    assert after.resume == before.checkpoint_dir
    assert after.run_id == before.run_id
    assert (after.steps, after.inject) == (STEPS, [f"history_lost@{run.fault_step}"])


# the judgement


@pytest.mark.parametrize("run", [run for run in plan(0) if run.expected.cause], ids=lambda run: run.name)
def test_the_right_finding_is_right(run: DemoRun) -> None:
    outcome = judge(run, verdict(finding_of(run)), run_id="x", loss={}, twin={})
    assert outcome.why_wrong is None
    assert outcome.late == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cause": "bad_batch"}, "is stale_scale_saturation"),
        ({"layer": "head"}, "is in blocks."),
        ({"layer": None}, "is in blocks."),
        ({"onset_step": 100}, "began at "),
        ({"state": "replaced"}, "not found"),
        ({"severity": "info"}, "not found"),
    ],
)
def test_a_wrong_finding_says_what_it_should_be(changes: dict[str, Any], why: str) -> None:
    run = run_named("stale-scale")
    outcome = judge(run, verdict(finding_of(run, **changes)), run_id="x", loss={}, twin={})
    assert outcome.why_wrong is not None
    assert outcome.why_wrong.startswith(why)


def test_healthy_runs_may_have_information_but_no_warning() -> None:
    run = run_named("bf16")
    note = {"severity": "info", "cause": "stall", "state": "raised", "onset_step": 3}
    assert judge(run, verdict(note, status="watch"), run_id="x", loss={}, twin={}).why_wrong is None
    alarm = {**note, "severity": "warning"}
    assert (
        judge(run, verdict(alarm, status="warning"), run_id="x", loss={}, twin={}).why_wrong == "false alarm"
    )
    assert judge(run, verdict(status="critical"), run_id="x", loss={}, twin={}).why_wrong == "false alarm"


def test_the_most_severe_then_the_earliest_is_read_first() -> None:
    early = {"severity": "warning", "onset_step": 1, "cause": "a"}
    severe = {"severity": "critical", "onset_step": 9, "cause": "b"}
    severe_too = {"severity": "critical", "onset_step": 5, "cause": "c"}
    assert main_finding(verdict(early, severe, severe_too)) == severe_too
    assert main_finding(verdict()) is None


@pytest.mark.parametrize(
    ("loss", "pct", "shows"),
    [(2.0, 0.0, False), (2.01, 0.5, False), (2.1, 5.0, True), (1.9, -5.0, True), (math.nan, math.nan, True)],
)
def test_loss_is_compared_with_the_healthy_twin_at_detection(loss: float, pct: float, shows: bool) -> None:
    run = run_named("poison")
    at = finding_of(run)["detected_step"]
    outcome = judge(run, verdict(finding_of(run)), run_id="x", loss={at: loss}, twin={at: 2.0})
    assert outcome.loss_pct == pytest.approx(pct, nan_ok=True)
    assert outcome.loss_shows is shows
    assert not judge(run, verdict(finding_of(run)), run_id="x", loss={}, twin={at: 2.0}).loss_shows


def test_losses_are_read_from_a_log() -> None:
    log = (
        '{"run": {"name": "a"}}\n{"step": 3, "loss": 2.5}\n{"step": 4, "loss": "NaN"}\n{"step": 5, "lr": 1}\n'
    )
    losses = read_losses(log)
    assert losses[3] == 2.5
    assert math.isnan(losses[4])
    assert 5 not in losses


# what it prints


def outcomes_with(wrong: str) -> list[Any]:
    made = []
    for run in plan(0):
        if run.expected.cause is None:
            made.append(judge(run, verdict(status="healthy"), run_id="x", loss={}, twin={}))
            continue
        changes: dict[str, Any] = {}
        if run.name == wrong:
            best = [{"cause": "stall", "confidence": 0.41}, {"cause": "plateau", "confidence": 0.3}]
            changes = {"cause": "undetermined", "alternatives": best}
        found = finding_of(run, **changes)
        at = found["detected_step"]
        loss = math.nan if run.name == "bad-input" else 2.001
        made.append(judge(run, verdict(found), run_id="x", loss={at: loss}, twin={at: 2.0}))
    return made


def test_summary_is_counted() -> None:
    lines = summary(outcomes_with("rtz-drift"), seconds=61.4)
    assert lines[0] == "9 of 10 faults diagnosed right, no false alarms on 3 healthy runs, 1 undetermined"
    assert lines[1] == "9 of 10 found while the loss was within 1 % of its healthy twin's. Time 61 s"
    assert lines[2] == "  rtz-drift: stall 41 %, plateau 30 %"


def test_table_has_a_line_for_each_run_and_marks_the_wrong_one() -> None:
    outcomes = outcomes_with("rtz-drift")
    text = io.StringIO()
    (table,) = result_tables(outcomes, width=200)
    Console(file=text, width=200).print(table)
    lines = text.getvalue().splitlines()
    assert len(lines) == 1 + len(outcomes)
    assert [line.split()[0] for line in lines[1:]] == [outcome.run.name for outcome in outcomes]
    assert "? undetermined" in lines[-1]
    assert "✕ is quantization_drift" in lines[-1]
    assert "✓ healthy" in lines[1]
    assert "NaN" in lines[4]
    assert "+0.05 %" in lines[6]


def test_a_narrow_terminal_gets_two_tables_that_fit() -> None:
    text = io.StringIO()
    outcomes = outcomes_with("")
    tables = result_tables(outcomes, width=80)
    for table in tables:
        Console(file=text, width=80).print(table)
    lines = text.getvalue().splitlines()
    assert len(lines) == 2 * (1 + len(outcomes))
    assert max(len(line.rstrip()) for line in lines) <= 80
    for word in ("Late", "Layer", "NaN"):
        assert word in text.getvalue()


def test_document_is_valid_json_with_nan_as_text() -> None:
    document = result_json(outcomes_with(""), seed=4, url="http://x", seconds=1.23)
    read = json.loads(json.dumps(document, allow_nan=False))
    assert (read["right"], read["of"]) == (13, 13)
    assert read["runs"][3]["loss_difference_pct"] == "NaN"
    assert read["runs"][0]["cause"] is None


# the command


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "floatscope demo --exit" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--seed", "-1"], ["--seed", "x"], ["--port", "0"], ["--port", "99999"]])
def test_wrong_options_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(argv)
    assert ending.value.code == 2

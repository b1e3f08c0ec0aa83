"""Local mode where something is wrong: a diagnosis that hangs, fails or is missing, a disk, a child."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from floatscope import local
from tests.agent.conftest import read_log
from tests.agent.local_runs import (
    Slow,
    diagnosis,
    end,
    row,
    scalars,
    verdict_of,
    wait_for,
    watch,
    with_engine,
)


def test_without_the_diagnosis_installed_the_log_is_written_and_one_line_says_what_to_do(
    tmp_path: Path,
) -> None:
    code = (
        "import sys, floatscope\n"
        "sys.modules['floatscope_diagnostics'] = None\n"
        f"m = floatscope.watch(run='x', mode='local', log_path={str(tmp_path / 'x.jsonl')!r}, gpu=False)\n"
        "for i in range(30): m.step(loss=1.0)\n"
        "m.finish()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.count("pip install 'floatscope[diagnostics]'") == 1
    assert f"floatscope diagnose {tmp_path / 'x.jsonl'}" in done.stderr
    assert len(read_log(tmp_path / "x.jsonl")[1]) == 30
    assert not (tmp_path / "x.verdict.json").exists()


def test_a_diagnosis_that_hangs_holds_up_nothing_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows beyond the bounds come without tensors, then not at all; both are counted and in the notes."""
    monkeypatch.setattr(local, "MOST_ROWS", 30)
    monkeypatch.setattr(local, "MOST_BYTES", 10 * row(0).nbytes)
    engine = Slow(hangs=True)
    found = diagnosis(tmp_path, engine)
    found.accept([row(0)])
    assert engine.inside.wait(60)
    found.accept([row(step) for step in range(1, 51)])
    assert found.work() is None
    assert (found.thinned, found.skipped) == (40, 20)
    engine.go_on.set()
    end(found)
    assert engine.steps == list(range(31))
    assert sum(len(batch.stat_row) for batch in engine.fed) == 11
    assert found.verdict is not None
    notes = " ".join(found.verdict["source"]["notes"])
    assert "40 steps were judged without their tensors" in notes
    assert "20 steps were not judged" in notes
    assert f"floatscope diagnose {tmp_path / 'run.jsonl'}" in notes


def test_a_diagnosis_that_hangs_does_not_hold_up_log_or_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Slow(hangs=True)
    monkeypatch.setattr(local.LocalDiagnosis, "__init__", with_engine(engine))
    monitor = watch(tmp_path, close_timeout_s=0.5)
    for step in range(300):
        monitor.step(**scalars(step))
    log = tmp_path / "run.jsonl"
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == 301)
    monitor.finish()
    assert len(read_log(tmp_path / "run.jsonl")[1]) == 300
    assert read_log(tmp_path / "run.jsonl")[0]["status"] == "finished"
    engine.go_on.set()
    path = tmp_path / "run.verdict.json"
    wait_for(path.exists)
    notes = " ".join(json.loads(path.read_text())["source"]["notes"])
    assert "were not judged before the time was up" in notes
    assert read_log(tmp_path / "run.jsonl")[0]["status"] == "finished"


def test_a_long_rest_at_the_end_is_judged_without_tensors_and_never_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All steps are judged; how many of them in a hurry stands in the last line and in the verdict."""
    monkeypatch.setattr(local, "LAST_WHOLE_S", 0.0)
    monkeypatch.setattr(local, "SILENT_S", 0.0)
    engine = Slow(hangs=True)
    found = diagnosis(tmp_path, engine)
    found.accept([row(0)])
    assert engine.inside.wait(60)
    found.accept([row(step) for step in range(1, 51)])
    assert found.work() is None
    found.finish("finished", None)
    for _ in range(3):
        assert found.work() is not None
    assert capsys.readouterr().err == "floatscope: judging the last steps ...\n"
    engine.go_on.set()
    wait_for(lambda: found.work() is not None and found.is_done)
    assert engine.steps == list(range(51))
    hurried = sum(len(batch.step) for batch in engine.fed if not len(batch.stat_row))
    assert hurried > 0
    said = f"last {hurried} steps were judged without their tensors, to end soon"
    assert found.verdict is not None
    assert f"the {said}" in found.verdict["source"]["notes"]
    assert f"(The {said}.)" in (found.farewell() or "")


def test_a_fault_of_the_diagnosis_costs_the_verdict_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    engine = Slow(fails_at=20)
    monkeypatch.setattr(local.LocalDiagnosis, "__init__", with_engine(engine))
    monitor = watch(tmp_path, strict=False)
    for step in range(10):
        monitor.step(**scalars(step))
    wait_for(lambda: engine.steps == list(range(10)))
    wait_for((tmp_path / "run.verdict.json").exists)
    for step in range(10, 40):
        monitor.step(**scalars(step))
    monitor.finish()
    assert sum("local diagnosis failed" in record.getMessage() for record in caplog.records) == 1
    assert len(read_log(tmp_path / "run.jsonl")[1]) == 40
    notes = verdict_of(tmp_path / "run.jsonl")["source"]["notes"]
    assert "the diagnosis in the trainer failed after step" in notes[-1]
    assert "Nothing found" not in capsys.readouterr().err, "an outdated verdict is not the last word"
    assert monitor.is_clean(39) is None


def test_a_verdict_that_cannot_be_written_is_reported_once_and_findings_still_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "WRITE_EVERY_S", 0.0)
    (tmp_path / "run.verdict.json").mkdir()
    monitor = watch(tmp_path)
    for step in range(40):
        monitor.step(**scalars(step, fault_at=30))
        time.sleep(0.005)
    wait_for(lambda: bool(monitor.findings))
    monitor.finish()
    said = [
        record.getMessage() for record in caplog.records if "cannot write the verdict" in record.getMessage()
    ]
    assert len(said) == 1
    assert str(tmp_path / "run.verdict.json") in said[0]
    assert [p.name for p in tmp_path.glob("*.new")] == []


def test_only_the_diagnosis_stands_back(tmp_path: Path) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    engine = Slow()
    found = diagnosis(tmp_path, engine)
    found.accept([row(0)])
    end(found)
    assert engine.niceness == max(before, local.NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_in_a_forked_child_nothing_is_judged(tmp_path: Path) -> None:
    monitor = watch(tmp_path)
    for step in range(20):
        monitor.step(**scalars(step))
    wait_for((tmp_path / "run.verdict.json").exists)
    child = os.fork()
    if child == 0:
        try:
            monitor.step(loss=math.nan)
            monitor.finish()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    monitor.step(**scalars(20))
    monitor.finish()
    verdict = verdict_of(tmp_path / "run.jsonl")
    assert (verdict["status"], verdict["source"]["steps"]) == ("healthy", 21)

"""Local mode: the run is judged in a thread of its own, and log and verdict lie on disk."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from floatscope.findings import FindingBoard, Herald
from floatscope.guard import Guard
from floatscope.local import LocalDiagnosis
from floatscope.protocol.judgement import Judgement
from floatscope.protocol.runinfo import RunInfo
from tests.agent.conftest import read_log
from tests.agent.local_runs import (
    diagnosed,
    end,
    row,
    scalars,
    verdict_of,
    wait_for,
    watch,
    without_source,
)


@pytest.mark.parametrize(
    ("fault", "family"),
    [
        ("stale_scale@80:blocks.1.mlp.fc1/input*16", "scale_calibration_blowup"),
        ("nan_input@80", "input_nan"),
    ],
)
def test_a_faulty_run_of_the_bundled_trainer_has_the_verdict_of_its_log(
    tmp_path: Path, fault: str, family: str
) -> None:
    """The file beside the log says what ``floatscope diagnose`` says of it, but for where it was read."""
    env = {**os.environ, "FLOATSCOPE_SPOOL_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "floatscope.cli",
        "train",
        "--quiet",
        "--steps",
        "110",
        "--run-id",
        "faulty",
    ]
    command += ["--precision", "fp8", "--recipe", "delayed", "--inject", fault]
    command += ["--layers", "2", "--width", "32", "--heads", "2", "--hidden", "48", "--context", "16"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    log = tmp_path / "faulty" / "rank0.jsonl"
    verdict = json.loads((tmp_path / "faulty" / "rank0.verdict.json").read_text())
    assert verdict["schema"] == "floatscope.verdict/1"
    assert without_source(verdict) == diagnosed(log)
    assert verdict["findings"][0]["family"] == family
    assert verdict["findings"][0]["onset_step"] == 80
    assert verdict["source"]["notes"] == []
    assert verdict["source"]["path"] == str(log)
    assert verdict["summary"] in done.stderr
    assert str(log.with_name("rank0.verdict.json")) in done.stderr


def test_a_run_that_goes_back_and_one_that_is_resumed_are_judged_as_their_log(tmp_path: Path) -> None:
    """Steps trained again, and those of an earlier process that left half a line behind, count as logged."""
    log = tmp_path / "run.jsonl"
    monitor = watch(tmp_path, run_id="again")
    for step in (*range(60), *range(40, 100)):
        monitor.step(step, **scalars(step, fault_at=90))
    monitor.finish("crashed", "it was killed")
    assert without_source(verdict_of(log)) == diagnosed(log)
    first = verdict_of(log)
    assert [f["onset_step"] for f in first["findings"] if f["severity"] == "critical"] == [90]
    with open(log, "a") as file:
        file.write('{"step": 100, "lo')
    monitor = watch(tmp_path, run_id="again", config={"many": ["more"] * 1500})  # its first line grows
    for step in range(80, 130):
        monitor.step(step, **scalars(step))
    monitor.finish()
    verdict = verdict_of(log)
    assert without_source(verdict) == diagnosed(log)
    assert {f["id"] for f in first["findings"] if f["severity"] == "critical"} <= {
        f["id"] for f in verdict["findings"]
    }
    assert [s["first_step"] for s in verdict["source"]["segments"]] == [0, 40, 80]
    assert verdict["source"]["steps"] == 170
    assert len(read_log(log)[1]) == 170


def test_the_last_line_says_that_the_run_went_back_to_before_the_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the verdict of a whole run, also of steps that were trained again; else it says nothing."""
    gone = "The run has gone back to"
    for name, steps in (("back", [*range(70), *range(50, 120)]), ("on", [*range(70)])):
        monitor = watch(tmp_path, run_id=name, log_path=tmp_path / f"{name}.jsonl")
        for at, step in enumerate(steps):
            monitor.step(step, **scalars(step, fault_at=60 if at < 70 else math.inf))
        monitor.finish()
        last = capsys.readouterr().err
        assert verdict_of(tmp_path / f"{name}.jsonl")["summary"] in last
        assert (gone in last) == (name == "back"), last


def test_a_log_of_another_run_is_no_part_of_it(tmp_path: Path) -> None:
    for run_id, fault_at in (("one", 20.0), ("two", math.inf)):
        monitor = watch(tmp_path, run_id=run_id)
        for step in range(40):
            monitor.step(**scalars(step, fault_at=fault_at))
        monitor.finish()
    assert verdict_of(tmp_path / "run.jsonl")["status"] == "healthy"


def test_the_verdict_is_there_while_the_run_goes_on(tmp_path: Path) -> None:
    monitor = watch(tmp_path)
    for step in range(40):
        monitor.step(**scalars(step, fault_at=30))
    path = tmp_path / "run.verdict.json"
    wait_for(lambda: path.exists())
    whole = json.loads(path.read_text())
    assert whole["schema"] == "floatscope.verdict/1"
    wait_for(lambda: bool(monitor.findings))
    monitor.finish()
    assert json.loads(path.read_text())["source"]["steps"] == 40
    assert [p.name for p in tmp_path.glob("*verdict*")] == ["run.verdict.json"], "no half-written file stays"


def test_a_finding_is_said_once_with_layer_step_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Judgement] = []
    found = LocalDiagnosis(
        tmp_path / "v.json", log=tmp_path / "l", run_id="r", rank=0, info=lambda: RunInfo(name="r"),
        guard=Guard(strict=True), hear=told.append, turn_s=0.0,
    )  # fmt: skip
    board, herald = FindingBoard(), Herald(Guard())
    for step in range(60):
        found.accept([row(step, fault_at=50)])
    end(found)
    for _ in range(2):
        for judgement in told:
            herald.tell(board.post(judgement))
    said = [record.getMessage() for record in caplog.records if "CRITICAL" in record.getMessage()]
    assert len(said) == 1
    assert "since step 50" in said[0]
    assert "in l2" in said[0]
    assert "What to do: " in said[0]
    assert "\n" not in said[0]


def test_only_rank_0_speaks_and_every_rank_has_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for rank in (0, 1):
        monitor = watch(tmp_path, log_path=None, run_id="ranks", rank=rank)
        for step in range(40):
            monitor.step(**scalars(step, fault_at=30))
        monitor.finish()
        loud = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        printed = capsys.readouterr().err
        if rank == 0:
            assert len(loud) == 1
            assert "at step 30" in printed
        else:
            assert loud == []
            assert printed == ""
        caplog.clear()
        verdict = json.loads((tmp_path / "spool" / "ranks" / f"rank{rank}.verdict.json").read_text())
        assert verdict["status"] == "critical"


def test_the_diagnosis_is_imported_in_its_thread_after_the_first_step(tmp_path: Path) -> None:
    code = (
        "import sys, threading, floatscope\n"
        "def loaded(): return 'floatscope_diagnostics' in sys.modules\n"
        f"m = floatscope.watch(run='x', mode='local', log_path={str(tmp_path / 'x.jsonl')!r}, gpu=False)\n"
        "assert not loaded()\n"
        "m.step(loss=1.0); m.finish()\n"
        "assert loaded()\n"
        "assert not {m for m in ('torch', 'pandas', 'scipy') if m in sys.modules}\n"
        "assert [t.name for t in threading.enumerate()] == ['MainThread']\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_diagnose_there_is_a_log_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watch(tmp_path, diagnose=False) as monitor:
        monitor.step(loss=math.nan)
    assert not (tmp_path / "run.verdict.json").exists()
    assert f"floatscope diagnose {tmp_path / 'run.jsonl'}" in capsys.readouterr().err
    assert monitor.is_clean() is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness of single threads")
def test_a_run_without_a_step_ends_without_a_verdict(tmp_path: Path) -> None:
    found: Sequence[threading.Thread] = threading.enumerate()
    watch(tmp_path).finish()
    assert not (tmp_path / "run.verdict.json").exists()
    assert {t.name for t in threading.enumerate()} <= {t.name for t in found}

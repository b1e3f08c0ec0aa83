"""A training run with a fault is killed: its flight recorder alone tells what its log tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from floatscope.recorder_reading import read_file
from floatscope_diagnostics.cli import main as diagnose
from floatscope_diagnostics.recorder.cli import main as recorder

FAULT = 60
ENOUGH = 85  # the fault is proven by then
SMALL = ["--layers=2", "--width=64", "--heads=2", "--hidden=128", "--context=32", "--batch=2", "--quiet"]


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "floatscope_trainer.cli",
        *SMALL,
        "--run",
        "doomed",
        "--run-id",
        "doomed",
    ]
    command += ["--precision", "fp8", "--steps", "100000", "--log", str(folder / "log.jsonl"), *options]
    environment = {**os.environ, "FLOATSCOPE_SPOOL_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def serious(verdict: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The findings that begin with the fault, by what a reader acts on."""
    found = [f for f in verdict["findings"] if f["severity"] != "info"]
    return [
        (f["cause"], f["onset_step"], f["tensor"], f["remedy"]) for f in found if f["onset_step"] == FAULT
    ]


def judged(command: Any, *argv: object, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    command([*map(str, argv), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT"])
def test_a_run_killed_after_a_fault(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed in the middle of a step: the recorder alone gives the finding of the log, and the step."""
    path = tmp_path / "doomed" / "rank0.recorder"
    child = start(tmp_path, "--inject", f"stale_scale@{FAULT}:blocks.1.mlp.fc1/input*16")
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert child.poll() is None
        if path.exists() and (now := read_file(path).now) and (now.ended or 0) >= ENOUGH:
            break
        time.sleep(0.1)
    child.send_signal(getattr(signal, name))
    child.wait()
    from_log = judged(diagnose, tmp_path / "log.jsonl", capsys=capsys)
    told = judged(recorder, tmp_path / "doomed", capsys=capsys)
    assert serious(from_log)[0][:3] == ("stale_scale_saturation", FAULT, "blocks.1.mlp.fc1/input")
    assert serious(told["diagnosis"]) == serious(from_log)
    (known,) = told["recorders"]
    assert known["status"] == "crashed"
    assert known["last_step_ended"] >= ENOUGH
    assert known["recipe"]["name"] == "fp8_delayed_scaling"
    assert known["versions"]["torch"]
    assert (known["signal"] == "SIGABRT") == (name == "SIGABRT")


def test_a_run_that_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token id outside the vocabulary ends the run: the exception with its stack, and the finding."""
    assert start(tmp_path, "--inject", "id_out_of_range@20").wait(180) == 1
    told = judged(recorder, tmp_path / "doomed" / "rank0.recorder", capsys=capsys)
    (known,) = told["recorders"]
    assert known["exception"]["type"] == "IndexError"
    assert "Traceback" in known["exception"]["traceback"]
    assert known["last_step_begun"] == 20
    from_log = judged(diagnose, tmp_path / "log.jsonl", capsys=capsys)
    causes = [(f["cause"], f["onset_step"]) for f in told["diagnosis"]["findings"]]
    assert causes == [(f["cause"], f["onset_step"]) for f in from_log["findings"]]
    assert ("invalid_input", 20) in causes

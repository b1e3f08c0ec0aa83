"""Local mode: the run is judged in a thread of its own, and log and verdict lie on disk."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import floatscope
from floatscope import local
from floatscope.guard import Guard
from floatscope.local import LocalDiagnosis, verdict_path_of
from floatscope.protocol.batch import Batch
from floatscope.protocol.judgement import Judgement
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Block, Row
from tests.agent.conftest import read_log

TENSORS = tuple(f"l{n}/input" for n in range(4))


def watch(tmp_path: Path, **settings: Any) -> floatscope.Monitor:
    options: dict[str, Any] = {"run": "local", "log_path": tmp_path / "run.jsonl", "flush_every_s": 0.0}
    return floatscope.watch(**{"mode": "local", "gpu": False, "strict": True, **options, **settings})


def diagnosed(log: Path) -> dict[str, Any]:
    """What ``floatscope diagnose --json`` says, without the source."""
    command = [sys.executable, "-m", "floatscope.cli", "diagnose", str(log), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr
    return without_source(json.loads(done.stdout))


def without_source(verdict: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in verdict.items() if key != "source"}


def verdict_of(log: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(verdict_path_of(log).read_text())
    return found


def scalars(step: int, *, fault_at: float = math.inf) -> dict[str, Any]:
    noise = np.random.default_rng(step).normal(0, 0.01)
    return {"loss": math.nan if step >= fault_at else 3 - 0.001 * step + noise, "grad_norm": 1 + noise}


def row(step: int, *, fault_at: float = math.inf) -> Row:
    """A step with four tensors; from the fault on, two of them hold NaN."""
    bad = step >= fault_at
    amax = np.full(4, 3.0, np.float32) + np.float32(np.random.default_rng(step).normal(0, 0.1))
    counts = np.array([0, 0, 7, 9], np.float32) if bad else np.zeros(4, np.float32)
    return Row(
        step, 0.0, scalars(step, fault_at=fault_at), [Block(TENSORS, {"amax": amax, "nan_count": counts})]
    )


def wait_for(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


class Slow:
    """An engine that hangs in its first batch until it is let go, or fails."""

    def __init__(self, *, hangs: bool = False, fails_at: int | None = None) -> None:
        self.fed: list[Batch] = []
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.niceness: int | None = None
        self._fails_at = fails_at
        if not hangs:
            self.go_on.set()

    def __call__(self, run: RunInfo) -> Slow:
        return self

    def feed(self, batch: Batch, rank: int = 0) -> None:
        self.inside.set()
        assert self.go_on.wait(60)
        self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        if self._fails_at is not None and int(batch.step[-1]) >= self._fails_at:
            raise ZeroDivisionError("a bug in a rule")
        self.fed.append(batch)

    def update_run(self, run: RunInfo) -> None:
        pass

    def verdict(self, *, live: bool = False) -> Slow:
        return self

    def to_json(self) -> dict[str, Any]:
        last = int(self.fed[-1].step[-1]) if self.fed else None
        source: dict[str, Any] = {"last_step": last, "judged_step": last, "segments": [], "notes": []}
        return {"status": "healthy", "summary": "Nothing found.", "source": source, "findings": []}

    @property
    def steps(self) -> list[int]:
        return [int(step) for batch in self.fed for step in batch.step]


def diagnosis(tmp_path: Path, engine: Slow, **settings: Any) -> LocalDiagnosis:
    log = tmp_path / "run.jsonl"
    options: dict[str, Any] = {"guard": Guard(strict=True), "hear": lambda said: None, "turn_s": 0.0}
    return LocalDiagnosis(
        verdict_path_of(log), log=log, run_id="r", rank=0, info=lambda: RunInfo(name="r"), engines=engine,
        **{**options, **settings},
    )  # fmt: skip


def end(found: LocalDiagnosis) -> None:
    found.finish("finished", None)
    wait_for(lambda: found.work() is not None and found.is_done)


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
    from floatscope.findings import FindingBoard, Herald

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
    monkeypatch.setattr(local.LocalDiagnosis, "__init__", _with_engine(engine))
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


def _with_engine(engine: Slow) -> Callable[..., None]:
    made = LocalDiagnosis.__init__

    def init(self: LocalDiagnosis, *args: Any, **settings: Any) -> None:
        made(self, *args, **{**settings, "engines": engine})

    return init


def test_a_fault_of_the_diagnosis_costs_the_verdict_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    engine = Slow(fails_at=20)
    monkeypatch.setattr(local.LocalDiagnosis, "__init__", _with_engine(engine))
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness of single threads")
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


def test_a_run_without_a_step_ends_without_a_verdict(tmp_path: Path) -> None:
    found: Sequence[threading.Thread] = threading.enumerate()
    watch(tmp_path).finish()
    assert not (tmp_path / "run.verdict.json").exists()
    assert {t.name for t in threading.enumerate()} <= {t.name for t in found}

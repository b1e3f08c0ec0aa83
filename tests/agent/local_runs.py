"""Runs in local mode, and an engine that hangs or fails when it is told to."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import floatscope
from floatscope.guard import Guard
from floatscope.local import LocalDiagnosis, verdict_path_of
from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Block, Row

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


def with_engine(engine: Slow) -> Callable[..., None]:
    """``LocalDiagnosis.__init__`` that takes this engine."""
    made = LocalDiagnosis.__init__

    def init(self: LocalDiagnosis, *args: Any, **settings: Any) -> None:
        made(self, *args, **{**settings, "engines": engine})

    return init

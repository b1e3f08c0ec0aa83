"""What a run left on disk, and what tests need to make one do something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floatscope import Monitor
from floatscope.protocol.judgement import BriefFinding, Judgement

LAUNCHER = (
    "FLOATSCOPE_URL", "FLOATSCOPE_TOKEN", "FLOATSCOPE_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE",
    "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_PROCID", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
QUIET: dict[str, Any] = {"mode": "local", "gpu": False, "stats_every": 2, "strict": True}
"""Settings of the tests' runs: what fails in the agent is raised."""


@dataclass(frozen=True)
class Recorded:
    """One rank's log."""

    head: dict[str, Any]
    rows: list[dict[str, Any]]

    def column(self, name: str) -> list[Any]:
        """One scalar of all rows; None where it is missing."""
        return [row.get(name) for row in self.rows]

    @property
    def steps(self) -> list[int]:
        """The steps in the order in which they were recorded."""
        return [row["step"] for row in self.rows]

    def tensors(self, stat: str) -> set[str]:
        """Tensors for which a statistic was recorded in some step."""
        return {name for row in self.rows for name, stats in row.get("tensors", {}).items() if stat in stats}


def read(path: Path) -> Recorded:
    """Reads a floatscope log."""
    head, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Recorded(head["run"], rows)


def recorded_in(spool: Path, rank: int = 0) -> Recorded:
    """The only run of a spool folder."""
    (path,) = spool.glob(f"*/rank{rank}.jsonl")
    return read(path)


def diagnose_as_critical(monitor: Monitor, *, onset_step: int) -> None:
    """What the diagnosis thread does when it has found something and is sure of what was before."""
    finding = BriefFinding(
        id="f1",
        family="optimization",
        cause="divergence",
        severity="critical",
        state="confirmed",
        summary="the loss is not finite",
        confidence=0.99,
        onset_step=onset_step,
    )
    monitor._board.post(Judgement("critical", onset_step + 1000, onset_step - 1, (finding,)))


def run_example(name: str, spool: Path, *before: str) -> Recorded:
    """Runs ``examples/NAME/train.py`` as a user does, in a process of its own, and reads what it recorded.

    before: arguments of Python ahead of the script's path.
    """
    script = Path(__file__).parents[2] / "examples" / name / "train.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *before, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return recorded_in(spool)


def first_found(spool: Path) -> dict[str, Any]:
    """The worst finding of the verdict that a run without a server leaves."""
    (path,) = spool.glob("*/rank0.verdict.json")
    finding: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["findings"][0]
    return finding

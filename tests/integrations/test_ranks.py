"""A Trainer on two ranks: each records its own values, the first one speaks, and they stop together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integrations.recorded import recorded_in

SCRIPT = Path(__file__).with_name("two_ranks.py")


def train(folder: Path, *how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, str(SCRIPT), str(folder / "out"), *how],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[2])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_ranks_record_apart_and_stop_together(tmp_path: Path, spool: Path) -> None:
    """Only the last rank hears of the finding at step 3; both end at step 4, the next one that is logged."""
    done = train(tmp_path)
    assert done.returncode == 0, done.stderr
    first, last = recorded_in(spool, rank=0), recorded_in(spool, rank=1)
    assert first.steps == last.steps == [1, 2, 3, 4]
    assert first.column("loss") != last.column("loss"), "before any reduction"
    assert first.column("grad_norm") == last.column("grad_norm"), "gradients are averaged"
    assert first.head["status"] == last.head["status"] == "finished"
    spoken = [line for line in done.stderr.splitlines() if line.startswith("floatscope: wrote")]
    assert len(spoken) == 1
    assert "rank0.jsonl" in spoken[0]


def test_a_rank_whose_run_cannot_be_opened_does_not_hang_the_others(tmp_path: Path, spool: Path) -> None:
    """Ranks ask one another whether to stop, so the one without a run has to answer too."""
    done = train(tmp_path, "blind")
    assert done.returncode == 0, done.stderr
    assert recorded_in(spool, rank=0).steps == list(range(1, 9))
    assert not list(spool.glob("**/rank1.jsonl"))

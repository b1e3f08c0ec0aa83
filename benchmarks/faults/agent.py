"""A job with floatscope's agent beside the senders of this suite, and what must have come of it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.agent_job import scalars
from benchmarks.faults.checks import check_stored
from benchmarks.faults.tally import Tally
from floatscope_server.database import Database
from tests.server.live import TOKEN

FINISH_S = 60.0


@dataclass
class Agent:
    """steps: how many the job made, known once it was stopped."""

    run_id: str
    seed: int
    process: subprocess.Popen[str]
    url: str
    spool_dir: Path
    steps: int = 0

    def stop(self, tally: Tally) -> None:
        """Ends the job, which delivers what is left or leaves it in its spool; that is delivered then."""
        said, _ = self.process.communicate(timeout=FINISH_S)
        self.steps = int(said.split()[-1])
        if any(path.stat().st_size > 0 for path in self.spool_dir.rglob("*.spool/*")):
            command = [sys.executable, "-m", "floatscope.cli", "resend", str(self.spool_dir)]
            environment = os.environ | {"FLOATSCOPE_URL": self.url, "FLOATSCOPE_TOKEN": TOKEN}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            tally.holds(done.returncode == 0, f"resend: {done.returncode} {done.stdout} {done.stderr}")
            tally.add("agent: spools that were looked through by floatscope resend")

    def check(self, database: Database, tally: Tally) -> None:
        """Every step once, every logged value bit-equal."""
        found = check_stored(database, self.run_id, ended="finished", tally=tally)
        seen: list[int] = []
        for _key, batch in found:
            tally.holds(batch.lost is None, f"{self.run_id}: the agent lost steps {batch.lost}")
            seen += batch.step.tolist()
            for name in ("loss", "lr", "draw", "odd"):
                values, present = batch.scalar(name)
                for at, step in enumerate(batch.step.tolist()):
                    wanted = scalars(self.seed, step).get(name)
                    stored = float(values[at]) if present[at] else None
                    tally.holds(_bits(wanted) == _bits(stored), f"{self.run_id} step {step} {name}: {stored}")
                    tally.add("values compared, all bits", wanted is not None)
        tally.holds(
            seen == list(range(self.steps)),
            f"{self.run_id}: {len(seen)} steps stored, {self.steps} were made",
        )
        tally.add("agent: batches stored", len(found))
        tally.add("agent: steps compared", len(seen))


@contextmanager
def agent(run_id: str, *, seed: int, url: str, spool_dir: Path) -> Iterator[Agent]:
    """A running job, killed at the end if it still runs."""
    command = [sys.executable, "-m", "benchmarks.faults.agent_job", "--run-id", run_id, "--seed", str(seed)]
    command += ["--url", url, "--token", TOKEN, "--spool-dir", str(spool_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Agent(run_id, seed, process, url, spool_dir)
        finally:
            if process.poll() is None:
                process.kill()


def _bits(value: float | None) -> bytes:
    return b"" if value is None else struct.pack("<d", value)

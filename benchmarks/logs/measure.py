"""CPU seconds, wall seconds and peak memory of one command."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """cpu_s: user and system.  rss_mb: largest resident set, in 10^6 bytes.  output: both streams."""

    cpu_s: float
    wall_s: float
    rss_mb: float
    output: str
    code: int


def cost(command: Sequence[str]) -> Cost:
    """Runs the command to its end, on one thread of numpy."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as said:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        output = said.read()
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(cpu, wall, usage.ru_maxrss * 1024 / 1e6, output, process.returncode)

"""What the flight recorder costs: microseconds a step in the training thread and the sender's, memory, disk.

python benchmarks/agent/recorder_cost.py [--tensors N] [--steps N]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from floatscope.config import MonitorConfig
from floatscope.guard import Guard
from floatscope.protocol.names import SCALARS, STATS
from floatscope.protocol.runinfo import RunInfo
from floatscope.recorder import FlightRecorder
from floatscope.rows import Block, Row

ALWAYS = ("amax", "scale", "nan_count")  # what is read at every step; the others come on sampled steps
SAMPLED_EVERY = 50


def memory_mb() -> float:
    """Resident memory of this process, MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def shown(times: Sequence[int]) -> str:
    """Median, 99 % and largest of nanoseconds, as microseconds."""
    ordered = sorted(times)
    at = (len(ordered) // 2, len(ordered) * 99 // 100, -1)
    median, high, largest = (ordered[k] / 1000 for k in at)
    return f"median {median:8.1f} us   p99 {high:8.1f} us   max {largest:10.1f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    names = tuple(f"model.layers.{k // 6}.mlp.linear_fc{k % 6}/input" for k in range(options.tensors))
    info = RunInfo(name="cost", tensors={n: {"format": "e4m3", "call_order": k} for k, n in enumerate(names)})
    scalars = {name: 1.0 + k for k, name in enumerate(SCALARS[:12])}
    rng = np.random.default_rng(0)
    columns = {name: rng.random(options.tensors, np.float32) for name in STATS}
    often = Block(names, {name: columns[name] for name in ALWAYS})
    sampled = Block(names, columns)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.recorder"
        config = MonitorConfig(run="cost", spool_dir=Path(folder))
        recorder = FlightRecorder(
            path, run_id="cost", config=config, info=lambda: info, guard=Guard(strict=True)
        )
        before = memory_mb()
        recorder.work()
        began, ended, sent = [], [], []
        for step in range(options.steps):
            start = time.perf_counter_ns()
            recorder.began(step, f"shard-00017/{step}")
            middle = time.perf_counter_ns()
            recorder.ended(step, scalars, at=1e9 + step)
            end = time.perf_counter_ns()
            began.append(middle - start)
            ended.append(end - middle)
            block = often if step % SAMPLED_EVERY else sampled
            recorder.accept([Row(step, 1e9 + step, dict(scalars), [block])])
            start = time.perf_counter_ns()
            recorder.work()
            sent.append(time.perf_counter_ns() - start)
        print(f"{options.tensors:,} tensors, {len(scalars)} scalars, {options.steps:,} steps")
        print(f"training thread, step begins  {shown(began)}")
        print(f"training thread, step ends    {shown(ended)}")
        print(f"sender's thread, a step       {shown(sent)}")
        found = os.stat(path)
        print(f"memory {memory_mb() - before:.1f} MB more; disk {found.st_blocks * 512 / 2**20:.1f} MB")
        recorder.finish("finished", None)
        recorder.work()


if __name__ == "__main__":
    main()

"""How long ``floatscope preflight`` takes here, part by part, against importing torch alone.

Both are whole processes started in turns. On a machine that others use too, wall time says as much of them as
of preflight, so the processor time of each is printed beside it: it is what the wall time comes to alone.

    python -m benchmarks.preflight.seconds [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

TARGET_S = 5.0
"""Without a GPU."""
WORDS = ("--recipe", "delayed", "--model", "llama-3-8b", "--micro-batch", "1", "--sequence", "8192", "--json")
PREFLIGHT = (sys.executable, "-m", "floatscope.cli", "preflight", *WORDS)
TORCH = (sys.executable, "-c", "import torch")


def run(command: Sequence[str]) -> tuple[float, float, bytes]:
    """Wall and processor seconds of a process, and what it printed."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False, timeout=300)
    wall, after = time.perf_counter() - began, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, used, done.stdout


def main() -> int:
    """Prints the figures; 1 if the processor time is beyond the target."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--rounds", type=int, default=5)
    rounds = p.parse_args().rounds
    run(PREFLIGHT)  # the disk's cache
    walls: dict[str, list[float]] = {"preflight": [], "import torch": []}
    used: dict[str, list[float]] = {"preflight": [], "import torch": []}
    parts: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, command in (("preflight", PREFLIGHT), ("import torch", TORCH)):
            wall, seconds, printed = run(command)
            walls[name].append(wall)
            used[name].append(seconds)
            if name == "preflight":
                for part, took in json.loads(printed)["seconds"].items():
                    parts.setdefault(part, []).append(took)
    for name in walls:
        print(
            f"{name:<14} wall {median(walls[name]):6.2f} s (from {min(walls[name]):.2f} to "
            f"{max(walls[name]):.2f}), processor {median(used[name]):6.2f} s"
        )
    ratio = median(a / b for a, b in zip(used["preflight"], used["import torch"], strict=True))
    print(f"ratio of processor time {ratio:.2f} (median of {rounds} pairs)")
    print(
        "by part, wall, median: " + ", ".join(f"{name} {median(took):.2f} s" for name, took in parts.items())
    )
    fits = median(used["preflight"]) <= TARGET_S
    print(f"target {TARGET_S:.0f} s without a GPU: {'met' if fits else 'missed'} by processor time")
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())

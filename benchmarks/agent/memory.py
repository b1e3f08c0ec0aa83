"""Host memory that the agent adds to a process with 3,000 tensors, and the copies of old weights it holds.

A process without the agent and one with it train the same model, and everything is measured at every step;
the difference of their largest resident sizes is what the agent adds, its modules and threads included. Then
a model of 100 million parameters: the most bytes of copied weights alive at any step.

    python -m benchmarks.agent.memory [--steps N]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

LAYERS = 1000  # of each the input, the weight and the gradient of the output: 3,000 tensors
MOST_MB = 100.0
MOST_COPIES = 32 * 2**20


def own_peak_mb() -> float:
    """Largest resident size of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train(model: Any, monitor: Any, optimizer: Any, *, steps: int, width: int) -> None:
    """A plain loop."""
    for step in range(steps):
        x = torch.randn(8, width, generator=torch.Generator().manual_seed(step))
        if monitor is not None:
            monitor.batch(x)
        loss = model(x).pow(2).mean()
        torch.autograd.backward(loss)
        optimizer.step()
        if monitor is not None:
            monitor.step(loss=loss)
        optimizer.zero_grad()


def child(kind: str, steps: int, folder: Path) -> None:
    """Trains 1,000 small layers and prints this process's peak."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(LAYERS)])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    monitor: Any = None
    if kind != "bare":
        floatscope: Any = importlib.import_module("floatscope")  # not in the process without it
        logging.getLogger("floatscope").setLevel(logging.ERROR)
        more: dict[str, Any] = {"mode": "local"} if kind == "local" else {"url": "http://127.0.0.1:9"}
        monitor = floatscope.watch(
            model, optimizer, run="memory", gpu=False, stats_every=1, spool_dir=folder, close_timeout_s=0.1,
            **more,
        )  # fmt: skip
    train(model, monitor, optimizer, steps=steps, width=16)
    print(f"PEAK {own_peak_mb():.1f}", flush=True)
    if monitor is not None:
        with contextlib.redirect_stderr(io.StringIO()):
            monitor.finish()


def peak_of(kind: str, steps: int) -> float:
    """The peak of a process of its own, MB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.agent.memory", "--steps", str(steps)]
        command += ["--child", kind, "--folder", folder]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(out.partition("PEAK ")[2].split()[0])


def most_copied(steps: int) -> tuple[int, float]:
    """Most bytes of copies alive in a step of 100 million parameters, and the weights' size in MB."""
    floatscope: Any = importlib.import_module("floatscope")
    updates: Any = importlib.import_module("floatscope.probes.weight_updates").WeightUpdates
    alive: list[int] = []
    before = updates.before

    def noting(self: Any, *args: Any, **more: Any) -> None:
        before(self, *args, **more)
        alive.append(self.copied_bytes)

    updates.before = noting
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    with tempfile.TemporaryDirectory() as folder:
        monitor = floatscope.watch(
            model, optimizer, run="copies", gpu=False, stats_every=4, mode="local", diagnose=False,
            spool_dir=folder,
        )  # fmt: skip
        train(model, monitor, optimizer, steps=steps, width=4096)
        monitor.finish()
    return max(alive), sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--child", choices=("bare", "server", "local"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.child:
        child(args.child, args.steps, args.folder)
        return
    names = {"server": "a server that is away", "local": "no server, local diagnosis"}
    print(f"{3 * LAYERS:,} tensors, all statistics at each of {args.steps} steps")
    for kind, name in names.items():
        added = [peak_of(kind, args.steps) - peak_of("bare", args.steps) for _ in range(args.pairs)]
        middle = statistics.median(added)
        print(
            f"  {name:<28} {middle:6.1f} MB more ({min(added):.1f} to {max(added):.1f}); "
            f"target below {MOST_MB:.0f} MB: {'kept' if middle < MOST_MB else 'MISSED'}"
        )
    copied, size = most_copied(8)
    print(
        f"  copies of old weights, of {size:.0f} MB: at most {copied / 2**20:.1f} MB at a time; "
        f"target 32 MB: {'kept' if copied <= MOST_COPIES else 'MISSED'}"
    )


if __name__ == "__main__":
    main()

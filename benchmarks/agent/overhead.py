"""Step time with and without the agent, paired, on one CPU thread; and the cost of ``monitor.step`` itself.

Each pair trains the same model on the same data, once alone and once watched, in alternating order; what is
printed is the median of the pairs' ratios. The server is one that accepts connections and never answers, the
worst there is.

    python benchmarks/agent/overhead.py [--shape tiny|small|large] [--pairs N]
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import floatscope


@dataclass(frozen=True)
class Shape:
    """A stack of linear layers.  width: of each.  layers: how many.  batch: rows.  steps: per run."""

    width: int
    layers: int
    batch: int
    steps: int

    @property
    def parameters(self) -> int:
        return self.layers * self.width * (self.width + 1)


SHAPES = {
    "tiny": Shape(width=64, layers=8, batch=64, steps=300),
    "small": Shape(width=1024, layers=9, batch=64, steps=60),
    "large": Shape(width=4096, layers=6, batch=64, steps=8),  # 100 million parameters
}
WARM_UP_STEPS = 5


def model_of(shape: Shape) -> torch.nn.Module:
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for _ in range(shape.layers):
        parts += [torch.nn.Linear(shape.width, shape.width), torch.nn.SiLU()]
    return torch.nn.Sequential(*parts[:-1])


def train(shape: Shape, watch: Callable[[Any, Any], floatscope.Monitor] | None) -> tuple[float, float, float]:
    """Mean and median seconds of a step, and the median seconds of ``monitor.step``."""
    model = model_of(shape)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    monitor = watch(model, optimizer) if watch is not None else None
    steps, calls = [], []
    for step in range(shape.steps):
        x = torch.randn(shape.batch, shape.width, generator=torch.Generator().manual_seed(step))
        began = time.perf_counter()
        loss = (model(x) - x).pow(2).mean()
        torch.autograd.backward(loss)
        optimizer.step()
        called = time.perf_counter()
        if monitor is not None:
            monitor.step(loss=loss.detach(), lr=1e-3)
        calls.append(time.perf_counter() - called)
        optimizer.zero_grad()
        steps.append(time.perf_counter() - began)
    if monitor is not None:
        monitor.finish()
    measured = steps[WARM_UP_STEPS:]
    return statistics.mean(measured), statistics.median(measured), statistics.median(calls[WARM_UP_STEPS:])


def compare(name: str, shape: Shape, pairs: int, **settings: Any) -> None:
    def watch(model: Any, optimizer: Any) -> floatscope.Monitor:
        return floatscope.watch(model, optimizer, run="overhead", close_timeout_s=0.1, gpu=False, **settings)

    means, medians, calls = [], [], []
    for pair in range(pairs):
        order = (None, watch) if pair % 2 else (watch, None)
        found = {which is not None: train(shape, which) for which in order}
        means.append(found[True][0] / found[False][0])
        medians.append(found[True][1] / found[False][1])
        calls.append(found[True][2])
    print(
        f"{name:<34} step time x{statistics.median(medians):.3f} (median), "
        f"x{statistics.median(means):.3f} (mean), monitor.step {1e6 * statistics.median(calls):.0f} us"
    )


def only_scalars() -> None:
    """10,000 steps of nothing but numbers."""
    monitor = floatscope.watch(run="scalars", gpu=False, close_timeout_s=0.1)
    calls = []
    for step in range(10_000):
        began = time.perf_counter()
        monitor.step(loss=1.0 / (step + 1), lr=1e-3, grad_norm=1.0)
        calls.append(time.perf_counter() - began)
    monitor.finish()
    calls.sort()
    print(
        f"{'10,000 steps of scalars':<34} median {1e6 * calls[5000]:.1f} us, p99 {1e6 * calls[9900]:.1f} us, "
        f"longest {1e3 * calls[-1]:.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: tiny and small")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("floatscope").setLevel(logging.ERROR)
    with socket.socket() as silent, tempfile.TemporaryDirectory() as spool:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        os.environ["FLOATSCOPE_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        os.environ["FLOATSCOPE_SPOOL_DIR"] = spool
        only_scalars()
        for name in args.shape or ("tiny", "small"):
            shape = SHAPES[name]
            title = f"{name}, {shape.parameters / 1e6:.1f} M parameters"
            compare(f"{title}, default", shape, args.pairs)
            compare(f"{title}, every step", shape, args.pairs, stats_every=1)


if __name__ == "__main__":
    main()

"""How long ``monitor.step`` holds up the training loop while the server accepts and never answers.

10,000 steps, of nothing but numbers and of a small model with all probes on; for the model, what the probes
compute is timed by itself and taken off, so that what is left is what delivery, spool and threads cost. In
the same run, the same numbers go to a file through ``logging.Logger.info``, the cheapest thing a loop does.
On a machine that is busy with other work most of a tail is the kernel's, which gives the core to somebody
in the middle of a call; so calls are also shown without those that were preempted, and how often that happens
in a millisecond of each kind of call: were it our own thread, ours would be preempted more than the logger's.
A call that waited by itself, for a lock or for the interpreter, is not left out.

    python benchmarks/agent/step_latency.py [--steps N] [--stats-every N]
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import floatscope

TARGET_MEDIAN_MS, TARGET_P99_MS = 0.2, 1.0
HANGING_SERVER = """
import socket
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(64)
print(listener.getsockname()[1], flush=True)
held = []
while True:
    held.append(listener.accept())
"""


@contextlib.contextmanager
def hanging_server() -> Iterator[str]:
    """A server in a process of its own that accepts every connection and never says a word."""
    with subprocess.Popen(
        [sys.executable, "-c", HANGING_SERVER], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.kill()


class Stopwatch:
    """Sums the time spent in some calls."""

    def __init__(self) -> None:
        self.spent = 0.0

    def timing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **more)
            finally:
                self.spent += time.perf_counter() - began

        return timed


@dataclass(frozen=True)
class Call:
    """One call.  seconds: it took.  own: those without what was timed apart.  preempted: by the kernel."""

    seconds: float
    own: float
    preempted: bool
    waited: bool


def timed(call: Callable[[], object], apart: Stopwatch | None = None) -> Call:
    """Makes the call; ``apart`` sums what does not count."""
    if apart is not None:
        apart.spent = 0.0
    before = resource.getrusage(resource.RUSAGE_THREAD)
    began = time.perf_counter()
    call()
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_THREAD)
    own = took if apart is None else took - apart.spent
    return Call(took, own, after.ru_nivcsw > before.ru_nivcsw, after.ru_nvcsw > before.ru_nvcsw)


def shown(name: str, calls: list[Call], *, own: bool = True) -> tuple[float, float]:
    """Prints a line; returns median and 99th percentile of the calls that were not preempted, in ms."""
    every = [1e3 * (c.own if own else c.seconds) for c in calls]
    quiet = [1e3 * (c.own if own else c.seconds) for c in calls if not c.preempted]
    figures = [*np.percentile(every, [50, 99, 100]), *np.percentile(quiet, [50, 99, 100])]
    often = sum(c.preempted for c in calls) / (
        1e3 * float(np.median([c.seconds for c in calls])) * len(calls)
    )
    counts = f"{often:9.3f} {sum(c.waited and not c.preempted for c in calls):6,}"
    print(f"{name:<44}" + "".join(f"{figure:9.4f}" for figure in figures) + counts)
    return float(figures[3]), float(figures[4])


def logged(steps: int, folder: Path) -> list[Call]:
    """The same numbers through the logging module into a file."""
    logger = logging.Logger("benchmark")
    handler = logging.FileHandler(folder / "train.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    line = "step %d loss %.4f lr %.2e grad_norm %.3f"
    calls = [timed(partial(logger.info, line, n, 1 / (n + 1), 1e-3, 1.0)) for n in range(steps)]
    handler.close()
    return calls


def scalars_only(steps: int, **settings: Any) -> list[Call]:
    """Steps of three numbers."""
    monitor = floatscope.watch(run="latency", gpu=False, close_timeout_s=0.1, **settings)
    calls = [timed(partial(monitor.step, loss=1 / (n + 1), lr=1e-3, grad_norm=1.0)) for n in range(steps)]
    monitor.finish()
    return calls


def with_model(steps: int, stats_every: int, **settings: Any) -> list[Call]:
    """Steps of a small model that trains, with all probes; their arithmetic is timed apart."""
    torch.manual_seed(0)
    width, layers = 64, 8
    parts = [m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.SiLU())]
    model = torch.nn.Sequential(*parts)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    monitor = floatscope.watch(
        model, optimizer, run="latency", gpu=False, close_timeout_s=0.1, stats_every=stats_every, **settings
    )
    probes, apart = monitor._probes, Stopwatch()
    for name in ("collect", "begin"):
        setattr(probes, name, apart.timing(getattr(probes, name)))
    x = torch.randn(32, width)
    calls = []
    for _ in range(steps):
        loss = (model(x) - x).pow(2).mean()
        torch.autograd.backward(loss)
        optimizer.step()
        calls.append(timed(partial(monitor.step, loss=loss.detach(), lr=1e-3), apart))
        optimizer.zero_grad()
    monitor.finish()
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--stats-every", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("floatscope").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, hanging_server() as url:
        there = {"url": url, "spool_dir": folder}
        print(f"{options.steps:,} steps, a server that accepts and never answers; milliseconds")
        print(f"{'':<44}{'all calls':^27}{'not preempted':^27}{'pre./ms':>9} {'waited':>6}")
        print(f"{'':<44}" + 2 * f"{'median':>9}{'p99':>9}{'max':>9}")
        reference, _ = shown("logging.Logger.info to a file", logged(options.steps, Path(folder)))
        scalars = shown("monitor.step, scalars only", scalars_only(options.steps, **there))
        shown("  the same without the spool", scalars_only(options.steps, spool=False, **there))
        calls = with_model(options.steps, options.stats_every, **there)
        shown("monitor.step, small model, with its probes", calls, own=False)
        model = shown("  beyond the probes' arithmetic", calls)
    ratios = f"scalars x{scalars[0] / reference:.2f}, model x{model[0] / reference:.2f}"
    print(f"median against logging.Logger.info: {ratios}")
    kept = max(scalars[0], model[0]) < TARGET_MEDIAN_MS and max(scalars[1], model[1]) < TARGET_P99_MS
    print(f"targets (median < 0.2 ms, p99 < 1 ms, not preempted): {'kept' if kept else 'MISSED'}")


if __name__ == "__main__":
    main()

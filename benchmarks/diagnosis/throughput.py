"""How fast the diagnosis engine is: values a second and core in 64-step batches, the cost of a step that
comes alone, and the size of what it remembers; beside it what numpy needs for a mean and a variance.

A value is one statistic of one tensor at one step. Run: python benchmarks/diagnosis/throughput.py [--steps N]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine

ROLES = ("input", "weight", "grad_output")
STATS = (
    "amax", "rms", "scale", "nan_count", "inf_count", "overflow_pct", "underflow_pct", "zero_pct", "sqnr_db",
    "update_ratio", "unchanged_pct",
)  # fmt: skip
SCALARS = (
    "loss",
    "grad_norm",
    "lr",
    "update_norm",
    "param_norm",
    "zero_grad_pct",
    "label_tokens",
    "step_time_s",
)
SIZES = (48, 675, 3000)
LARGEST = 100_000
HISTORY = 1024


def run_info(tensors: int) -> RunInfo:
    table = {
        f"layers.{i // 3:04d}.linear/{ROLES[i % 3]}": {
            "format": "e5m2" if i % 3 == 2 else "e4m3",
            "call_order": i // 3,
        }
        for i in range(tensors)
    }
    recipe = {
        "name": "fp8_delayed_scaling",
        "amax_history_len": HISTORY,
        "amax_compute_algo": "max",
        "margin": 0,
    }
    return RunInfo.from_json({"name": "throughput", "recipe": recipe, "tensors": table, "ranks": 1})


def batch(first: int, steps: int, names: tuple[str, ...], rng: np.random.Generator) -> Batch:
    """Random statistics of a healthy run. The scale is constant, so the shadow scale works but is not
    exact.
    """
    size = len(names)
    shape = (steps, size)
    amax = np.exp(rng.normal(0.0, 0.1, shape)).astype(np.float32)
    values: dict[str, NDArray[np.float32]] = {
        "amax": amax,
        "rms": (amax / 4).astype(np.float32),
        "scale": np.full(shape, 100.0, np.float32),
        "nan_count": np.zeros(shape, np.float32),
        "inf_count": np.zeros(shape, np.float32),
        "overflow_pct": np.zeros(shape, np.float32),
        "underflow_pct": np.full(shape, 0.1, np.float32),
        "zero_pct": np.zeros(shape, np.float32),
        "sqnr_db": np.full(shape, 31.5, np.float32),
        "update_ratio": np.full(shape, 0.01, np.float32),
        "unchanged_pct": np.zeros(shape, np.float32),
    }
    scalars = np.tile(np.array([2.5, 1.0, 1e-3, 0.4, 43.0, 1.0, 256.0, 0.5]), (steps, 1))
    scalars[:, 0] += rng.normal(0.0, 0.1, steps)
    return Batch(
        step=np.arange(first, first + steps),
        time=np.full(steps, np.nan),
        scalar_names=SCALARS,
        scalars=scalars,
        scalars_present=np.ones(scalars.shape, bool),
        tensor_names=names,
        stat_row=np.arange(steps),
        stats={k: values[k] for k in STATS},
        stats_present={k: np.ones(shape, bool) for k in STATS},
    )


@dataclass(frozen=True)
class Measured:
    """seconds: of processor time a step.  rate: values a second.  state_bytes: of the saved engine.  slowest:
    seconds of the slowest batch.
    """

    seconds: float
    rate: float
    state_bytes: int
    slowest: float


def measure(tensors: int, *, chunk: int, steps: int, warm_up: int = 64) -> Measured:
    """Feeds and asks for a verdict after every batch. Making the batches is not counted."""
    info = run_info(tensors)
    names = tuple(sorted(info.tensors))
    rng = np.random.default_rng(0)
    engine = Engine(info)
    engine.feed(batch(0, warm_up, names, rng))  # past the warm-up, so that every detector is on
    spent = slowest = 0.0
    done = 0
    while done < steps:
        part = batch(warm_up + done, chunk, names, rng)
        begin = time.process_time()
        engine.feed(part)
        engine.verdict()
        took = time.process_time() - begin
        spent, slowest = spent + took, max(slowest, took)
        done += chunk
    return Measured(spent / done, done * tensors * len(STATS) / spent, len(engine.state()), slowest)


def mean_and_variance(tensors: int, *, chunk: int, steps: int) -> float:
    """The comparison: values a second of numpy's mean and variance by tensor over the same batches, with no
    memory from batch to batch, no limits and no findings. Nothing that looks at every value can be faster.
    """
    names = tuple(sorted(run_info(tensors).tensors))
    rng = np.random.default_rng(0)
    spent = 0.0
    for first in range(0, steps, chunk):
        part = batch(first, chunk, names, rng)
        begin = time.process_time()
        for name in STATS:
            values, present = part.stat(name)
            np.mean(values, axis=0, where=present)
            np.var(values, axis=0, where=present)
        spent += time.process_time() - begin
    return steps * tensors * len(STATS) / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=256, help="steps a measurement (256)")
    steps = parser.parse_args().steps
    print(
        f"{'tensors':>8} {'batch':>6} {'ms a step':>10} {'values/s/core':>14} {'numpy mean+var':>15} "
        f"{'share of a core':>16} {'state KiB':>10}"
    )
    for tensors in SIZES:
        for chunk in (64, 1):
            count = steps if chunk > 1 else min(steps, 64)
            got = measure(tensors, chunk=chunk, steps=count)
            plain = mean_and_variance(tensors, chunk=chunk, steps=count)
            share = f"{100 * got.seconds:.2f} %" if chunk == 1 else ""
            print(
                f"{tensors:>8} {chunk:>6} {1e3 * got.seconds:>10.3f} {got.rate:>14,.0f} {plain:>15,.0f} "
                f"{share:>16} {got.state_bytes / 1024:>10.0f}"
            )
    got = measure(LARGEST, chunk=1, steps=3, warm_up=4)
    print(
        f"{LARGEST:>8} {1:>6} {1e3 * got.seconds:>10.3f} {got.rate:>14,.0f} {'':>15} {'':>16} "
        f"{got.state_bytes / 1024:>10.0f}   slowest batch {got.slowest:.2f} s"
    )
    print("share of a core: of one step a second, a verdict after every step")


if __name__ == "__main__":
    main()

"""Steps per second of the bundled trainer in every precision, bare and with every statistic on every step.

    python benchmarks/trainer/precisions.py [--steps 60] [--threads 1]

The ratio is to bare fp32 in the same call, so it means something on a machine that is shared with others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import floatscope
from floatscope_trainer.config import (
    ModelConfig,
    OptimConfig,
    Precision,
    PrecisionConfig,
    RecipeName,
    TrainConfig,
)
from floatscope_trainer.data import CharText, load_text
from floatscope_trainer.emulated.backend import EmulatedBackend
from floatscope_trainer.monitoring import Monitor, report_batch, report_step
from floatscope_trainer.training import Training

WARM_UP_STEPS = 5
CASES: tuple[tuple[Precision, RecipeName], ...] = (
    ("fp32", "delayed"),
    ("bf16", "delayed"),
    ("fp16", "delayed"),
    ("fp8", "delayed"),
    ("fp8", "current"),
    ("fp8", "block"),
    ("fp8", "mxfp8"),
)


class NoMonitor:
    """Watches nothing."""

    run_id = ""

    def batch(self, batch: object, *, step: int | None = None) -> None:
        """Nothing."""

    def step(self, step: int | None = None, **scalars: object) -> None:
        """Nothing."""

    def finish(self, status: str = "finished", reason: str | None = None) -> None:
        """Nothing."""


def steps_per_s(training: Training, monitor: Monitor, *, steps: int) -> float:
    """Speed over `steps` steps after a warm-up."""
    start = 0.0
    for done in range(WARM_UP_STEPS + steps):
        if done == WARM_UP_STEPS:
            start = time.perf_counter()
        record = training.step(see_batch=lambda batch: report_batch(monitor, batch, step=training.next_step))
        report_step(monitor, record, resumed=False)
    return steps / (time.perf_counter() - start)


def measure(
    precision: Precision, recipe: RecipeName, *, text: CharText, steps: int, log: Path | None
) -> float:
    """Speed of one precision.  log: where the agent writes; None for no agent."""
    config = TrainConfig(
        model=replace(ModelConfig(), vocab_size=text.vocab_size),
        precision=PrecisionConfig(precision=precision, recipe=recipe),
        optim=OptimConfig(decay_steps=steps),
        steps=WARM_UP_STEPS + steps,
    )
    training = Training(config, backend=EmulatedBackend(config), text=text)
    if log is None:
        return steps_per_s(training, NoMonitor(), steps=steps)
    monitor = floatscope.watch(
        training.model, training.optimizer, run=log.stem, mode="local", log_path=log, stats_every=1, gpu=False
    )
    speed = steps_per_s(training, monitor, steps=steps)
    monitor.finish()
    return speed


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    text = load_text([], context=ModelConfig().context)
    reference = 0.0
    print("steps/s, and the ratio to bare fp32")
    print(f"{'precision':<14}{'bare':>12}{'ratio':>8}{'watched':>12}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as directory:
        for precision, recipe in CASES:
            name = precision if precision != "fp8" else f"fp8-{recipe}"
            bare = measure(precision, recipe, text=text, steps=args.steps, log=None)
            watched = measure(
                precision, recipe, text=text, steps=args.steps, log=Path(directory, f"{name}.jsonl")
            )
            reference = reference or bare
            print(
                f"{name:<14}{bare:>12.1f}{bare / reference:>8.2f}{watched:>12.1f}{watched / reference:>8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

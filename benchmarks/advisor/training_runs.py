"""Runs of the bundled trainer for the benchmark: small, watched every few steps, kept as logs."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.advisor.scenarios import LAYERS, Scenario
from floatscope import watch
from floatscope_trainer.cli import build
from floatscope_trainer.config import TrainConfig
from floatscope_trainer.options import make_parser, run_options, train_config

STEPS = 200
STATS_EVERY = 10
LEARNING_RATE = "3e-3"
SMALL = ("--width", "64", "--hidden", "160", "--heads", "2", "--batch", "2")


def train(
    scenario: Scenario, *, precision: str, extra: tuple[str, ...], seed: int, log: Path, watched: bool
) -> Path:
    """Trains one run and writes its log, unless that is there. precision: "fp8" or "bf16".  extra: further
    options of ``floatscope train``, as an advice gives them.  watched: with statistics of tensors; without
    them a run takes half the time.
    """
    if log.exists():
        return log
    options = scenario.options if precision == "fp8" else ()
    words = ["--precision", precision, "--layers", str(LAYERS), "--steps", str(STEPS), "--seed", str(seed)]
    args = make_parser().parse_args([*words, *SMALL, "--lr", LEARNING_RATE, *options, *extra, "--quiet"])
    config = train_config(args, base=TrainConfig())
    given = run_options(args, config)
    training = build(config, given, checkpoint=None)
    if scenario.prepare is not None:
        scenario.prepare(training.model)
    part = log.with_suffix(".part")
    monitor = watch(
        training.model,
        training.optimizer,
        run=log.stem,
        log_path=part,
        mode="local",
        stats_every=STATS_EVERY if watched else 10 * STEPS,
        gpu=False,
        diagnose=False,  # the agent neither judges nor looks closer: the logs keep one cadence
        capture=False,
        preflight=False,
        parameter_hashes=False,
        vocab_size=training.config.model.vocab_size,
        recipe=training.config.precision.protocol_recipe(),
        config={**training.config.to_json(), "inject": list(given.inject)},
    )
    while training.next_step < training.config.steps:
        record = training.step(see_batch=lambda batch: None)
        monitor.step(record.step, **record.scalars())
    monitor.finish()
    part.rename(log)
    return log


def losses(log: Path) -> list[float]:
    """Loss by step."""
    with log.open() as lines:
        next(lines)
        return [float(json.loads(line)["loss"]) for line in lines]


def gap_nats(run: Path, baseline: Path, *, last: int = 50) -> float:
    """Mean of the run's loss minus the baseline's over the last steps; both saw the same batches."""
    own, other = losses(run), losses(baseline)
    return sum(a - b for a, b in zip(own[-last:], other[-last:], strict=True)) / last

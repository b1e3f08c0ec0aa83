"""Runs of the bundled trainer for the benchmark: small, watched every few steps, kept as logs."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.advisor.prepared_models import all_of, twin
from benchmarks.advisor.scenarios import Scenario
from floatscope import watch
from floatscope_trainer.cli import build
from floatscope_trainer.config import TrainConfig
from floatscope_trainer.options import make_parser, run_options, train_config

STEPS = 200
STATS_EVERY = 10
LEARNING_RATE = 1e-3
"""The trainer's own. With 3e-3, which the benchmark used before, BF16 twins end 0.03 nats apart (a plateau
ends earlier or later by chance); with 1e-3 0.0005."""
LAST = 50  # steps whose mean loss counts


def train(
    scenario: Scenario,
    *,
    precision: str,
    extra: tuple[str, ...],
    seed: int,
    log: Path,
    watched: bool,
    twin_number: int = 0,
    learning_rate: float = LEARNING_RATE,
) -> Path:
    """Trains one run and writes its log, unless that is there. precision: "fp8" or "bf16".  extra: further
    options of ``floatscope train``, as an advice gives them.  watched: with statistics of tensors; without
    them a run takes half the time.  twin_number: of a run that differs by chance only, 0 for the run itself.
    """
    if log.exists():
        return log
    options = scenario.options if precision == "fp8" else ()
    words = ["--precision", precision, "--steps", str(STEPS), "--seed", str(seed), "--lr", str(learning_rate)]
    args = make_parser().parse_args([*words, *scenario.shape.options(), *options, *extra, "--quiet"])
    config = train_config(args, base=TrainConfig())
    given = run_options(args, config)
    training = build(config, given, checkpoint=None)
    all_of(*([scenario.prepare] if scenario.prepare else []), twin(twin_number))(training.model)
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


def final_loss(log: Path) -> float:
    """Mean loss of the last steps, nats. Runs of one seed saw the same batches, so these pair up."""
    with log.open() as lines:
        next(lines)
        losses = [float(json.loads(line)["loss"]) for line in lines]
    return sum(losses[-LAST:]) / LAST

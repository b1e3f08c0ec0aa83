"""`floatscope train`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

import floatscope
from floatscope_trainer.backends import make_backend
from floatscope_trainer.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from floatscope_trainer.config import TrainConfig
from floatscope_trainer.data import DataError, load_text
from floatscope_trainer.faults.catalog import describe_faults, make_fault
from floatscope_trainer.faults.fault import Scene
from floatscope_trainer.faults.injection import InjectionError, parse_injection
from floatscope_trainer.monitoring import Monitor, Watch
from floatscope_trainer.options import RunOptions, UsageError, make_parser, run_options, train_config
from floatscope_trainer.precision import PrecisionMapError
from floatscope_trainer.progress import ProgressView, make_progress
from floatscope_trainer.run import run_training
from floatscope_trainer.te_backend import BackendUnavailable
from floatscope_trainer.training import Training

EXIT_FINISHED, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
"""130 is what a shell reports for a program ended by Ctrl-C."""

_EXIT_CODES = {
    "finished": EXIT_FINISHED,
    "failed": EXIT_FAILED,
    "crashed": EXIT_FAILED,
    "interrupted": EXIT_INTERRUPTED,
}


def main(
    argv: Sequence[str] | None = None, *, watch: Watch | None = None, progress: ProgressView | None = None
) -> int:
    """Trains as the options say. Returns 0, 1 if the run crashed or failed, 2 for wrong usage.

    watch: stands in for `floatscope.watch`.  progress: shows the steps in place of the terminal's bar.
    """
    parser = make_parser()
    args = parser.parse_args(argv)
    if "list" in args.inject:
        print(describe_faults())
        return EXIT_FINISHED
    try:
        checkpoint = _load(args.resume or args.fork)
        config = train_config(args, base=checkpoint.config if checkpoint else TrainConfig())
        options = run_options(args, config)
        training = build(config, options, checkpoint=checkpoint)
        monitor = _watch(training, options, checkpoint=checkpoint, watch=watch or floatscope.watch)
    except (
        UsageError,
        InjectionError,
        CheckpointError,
        DataError,
        PrecisionMapError,
        BackendUnavailable,
    ) as error:
        print(f"floatscope train: {error}\n(all options: floatscope train --help)", file=sys.stderr)
        return EXIT_USAGE
    console = Console(stderr=True)
    ending = run_training(
        training,
        monitor=monitor,
        progress=progress or _progress(training, options, console),
        resumed=checkpoint is not None,
        max_nonfinite=options.max_nonfinite,
        checkpoint_every=options.checkpoint_every,
        checkpoint_dir=options.checkpoint_dir,
    )
    if ending.error is not None and not options.quiet:
        traceback.print_exception(ending.error)
    if ending.reason:
        console.print(
            f"floatscope train: {ending.status}: {ending.reason}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return _EXIT_CODES[ending.status]


def build(config: TrainConfig, options: RunOptions, *, checkpoint: Checkpoint | None) -> Training:
    """The run, with its faults, ready for its first step. Raises what `main` turns into usage errors."""
    torch.set_num_threads(options.threads)
    injections = [parse_injection(text) for text in options.inject]
    text = load_text(config.data, context=config.model.context)
    config = _with_vocabulary(config, text.vocab_size, checkpoint=checkpoint)
    backend = make_backend(config)
    training = Training(config, backend=backend, text=text)
    if checkpoint is not None:
        training.restore(checkpoint)
        if training.next_step >= config.steps:
            raise UsageError(
                f"{checkpoint.path}: step {training.next_step} is trained already; "
                f"give more --steps than {config.steps}"
            )
    scene = Scene(
        model=backend.model,
        optimizer=training.optimizer,
        layers=dict(backend.layers),
        quantizers=backend.quantizers(),
        vocab_size=text.vocab_size,
        seed=config.seed,
    )
    training.faults = [
        make_fault(i, scene, first_step=training.next_step, steps=config.steps) for i in injections
    ]
    return training


def _watch(
    training: Training, options: RunOptions, *, checkpoint: Checkpoint | None, watch: Watch
) -> Monitor:
    """Starts the agent. Raises UsageError for a name or id that it refuses."""
    config = training.config
    resumed_id = checkpoint.run_id if checkpoint is not None and options.resume is not None else None
    try:
        return watch(
            training.model,
            training.optimizer,
            run=options.run,
            run_id=options.run_id or resumed_id,
            project=options.project,
            baseline=options.baseline,
            log_path=options.log,
            stats_every=1,
            gpu=False if config.precision.backend == "emulated" else None,
            scaler=training.scaler,
            vocab_size=config.model.vocab_size,
            recipe=config.precision.protocol_recipe(),
            config={**config.to_json(), "inject": list(options.inject)},
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _progress(training: Training, options: RunOptions, console: Console) -> ProgressView:
    first, steps = training.next_step, training.config.steps
    return make_progress(console, name=options.run, first_step=first, steps=steps, quiet=options.quiet)


def _load(path: Path | None) -> Checkpoint | None:
    """The checkpoint at a path; of a directory the newest one in it."""
    if path is None:
        return None
    if path.is_dir():
        found = sorted(path.glob("step-*.safetensors"))
        if not found:
            raise CheckpointError(
                f"{path}: no step-*.safetensors in this directory; give the path of a checkpoint"
            )
        path = found[-1]
    return load_checkpoint(path)


def _with_vocabulary(config: TrainConfig, vocab_size: int, *, checkpoint: Checkpoint | None) -> TrainConfig:
    if checkpoint is not None and checkpoint.config.model.vocab_size != vocab_size:
        raise CheckpointError(
            f"{checkpoint.path}: trained on {checkpoint.config.model.vocab_size} characters, "
            f"the text here has {vocab_size}; give the same --data"
        )
    return replace(config, model=replace(config.model, vocab_size=vocab_size))


if __name__ == "__main__":
    sys.exit(main())

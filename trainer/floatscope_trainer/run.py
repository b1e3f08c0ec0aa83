"""From the first step to the last: training, watched and shown, until it is done or breaks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from floatscope_trainer.monitoring import Monitor, report_batch, report_step
from floatscope_trainer.progress import ProgressView
from floatscope_trainer.training import Training


@dataclass(frozen=True)
class Ending:
    """How a run ended.  reason: a sentence, None if it simply finished.  error: what a crash raised."""

    status: Literal["finished", "failed", "crashed", "interrupted"]
    reason: str | None = None
    error: Exception | None = None


def run_training(
    training: Training,
    *,
    monitor: Monitor,
    progress: ProgressView,
    resumed: bool,
    max_nonfinite: int = 0,
    checkpoint_every: int = 0,
    checkpoint_dir: Path,
) -> Ending:
    """Trains up to the last step and finishes the monitor, whatever happens.

    resumed: whether the first step comes after a checkpoint.  max_nonfinite: steps in a row without a finite
    loss that end the run.
    checkpoint_every: checkpoints are written after steps whose number of trained steps it divides.
    """
    try:
        ending = _train(
            training,
            monitor=monitor,
            progress=progress,
            resumed=resumed,
            max_nonfinite=max_nonfinite,
            checkpoint_every=checkpoint_every,
            checkpoint_dir=checkpoint_dir,
        )
    except KeyboardInterrupt:
        ending = Ending("interrupted", f"interrupted by the user at step {training.next_step}")
    except Exception as error:
        reason = f"{type(error).__name__} at step {training.next_step}: {error}"
        monitor.finish(status="crashed", reason=reason)  # in here, so that it sees the exception
        return Ending("crashed", reason, error)
    monitor.finish(status="failed" if ending.status == "interrupted" else ending.status, reason=ending.reason)
    return ending


def _train(
    training: Training,
    *,
    monitor: Monitor,
    progress: ProgressView,
    resumed: bool,
    max_nonfinite: int,
    checkpoint_every: int,
    checkpoint_dir: Path,
) -> Ending:
    nonfinite = 0
    with progress:
        while training.next_step < training.config.steps:
            record = training.step(
                see_batch=lambda batch: report_batch(monitor, batch, step=training.next_step)
            )
            report_step(monitor, record, resumed=resumed)
            resumed = False
            progress.show(record)
            if checkpoint_every and training.next_step % checkpoint_every == 0:
                training.save(checkpoint_path(checkpoint_dir, training.next_step), run_id=monitor.run_id)
            nonfinite = 0 if math.isfinite(record.loss) else nonfinite + 1
            if max_nonfinite and nonfinite >= max_nonfinite:
                return Ending(
                    "failed", f"the loss has not been finite for {nonfinite} steps, up to step {record.step}"
                )
    return Ending("finished")


def checkpoint_path(directory: Path, trained_steps: int) -> Path:
    """Name of the checkpoint after so many steps; names sort by step."""
    return directory / f"step-{trained_steps:06d}.safetensors"

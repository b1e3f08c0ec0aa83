"""torchtitan: a run is watched by its trainer, between building it and training.

    trainer = config.build()
    watch_trainer(trainer, run="llama3-8b-fp8")
    trainer.train()
    trainer.close()

torchtitan has no callbacks, so the trainer's ``train_step`` and what it calls are wrapped, on this object
only; ``trainer.close()`` ends the run and puts everything back. Every step has its loss and gradient norm,
not only those that torchtitan logs, and nothing waits for the device to get them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from floatscope.assembly import watch
from floatscope.config import from_env
from floatscope.crash import reason_of, status_of
from floatscope.guard import Guard
from floatscope.integrations.means import MeanLoss
from floatscope.integrations.wrapping import wrap
from floatscope.jsonable import jsonable
from floatscope.monitor import Monitor

_NEEDED = ("train_step", "forward_backward_step", "model_parts", "optimizers", "metrics_processor", "step")


def watch_trainer(trainer: Any, *, run: str, **settings: Any) -> Monitor:
    """Watches a ``torchtitan.trainer.Trainer`` and ends a step whenever it has made one.

    run, settings: as for ``floatscope.watch``; the job's configuration is recorded with the run. Steps have
    torchtitan's numbers: the first is 1. ``loss`` is the mean over this rank's tokens, as far as ranks have
    equally many; torchtitan's own mean over all ranks is ``loss_metrics/global_avg_loss``, where it logs.

    Raises what ``floatscope.watch`` raises, and TypeError if this is no trainer.
    """
    missing = [name for name in _NEEDED if not hasattr(trainer, name)]
    if missing:
        raise TypeError(
            f"watch_trainer() got a {type(trainer).__name__} without {', '.join(missing)}; pass the Trainer "
            "that config.build() returns"
        )
    known, _ = from_env({"run": run, **settings})
    guard = Guard(strict=known.strict, speaks=known.rank == 0)
    area = guard.area("torchtitan integration", loses="steps of this run")
    with area:
        settings["config"] = {**jsonable(trainer.config.to_dict()), **settings.get("config", {})}
    monitor = watch(trainer.model_parts, trainer.optimizers, run=run, **settings)
    steps = _TrainerSteps(trainer, monitor)
    monitor.at_end(wrap(trainer, "train_step", area=area, before=steps.begin, after=steps.end))
    monitor.at_end(
        wrap(trainer, "forward_backward_step", area=area, before=steps.see_batch, after=steps.add_loss)
    )
    monitor.at_end(_replace_logger(trainer.metrics_processor, FloatscopeLogger(monitor, steps.end_run)))
    clipping = _clipping_of(trainer)
    if clipping is not None:
        monitor.at_end(wrap(clipping, "clip_grad_norm_", area=area, after=steps.add_norm))
    return monitor


class FloatscopeLogger:
    """A ``BaseLogger`` that passes everything on to the logger it stands for, and to a monitor as well.

    on_close: called when the trainer closes its loggers.
    """

    def __init__(self, monitor: Monitor, on_close: Callable[[], None]) -> None:
        self.inner: Any = None
        self._monitor = monitor
        self._on_close = on_close

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Metrics of the step under way; those of a validation come after it and go to the next one."""
        self.inner.log(metrics, step)
        found = _renamed(metrics)
        if "eval_loss" in found:
            self._monitor.log(found)
        else:
            self._monitor.log(found, step)

    def close(self) -> None:
        """Closes the logger it stands for, and ends the run."""
        try:
            self.inner.close()
        finally:
            self._on_close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _TrainerSteps:
    def __init__(self, trainer: Any, monitor: Monitor) -> None:
        self._trainer = trainer
        self._monitor = monitor
        self._loss = MeanLoss()
        self._is_in_step = False
        self._lr: Any = None

    def begin(self, *args: Any, **kwargs: Any) -> None:
        self._is_in_step = True
        self._loss.take()
        groups = next(iter(self._trainer.optimizers)).param_groups  # before the scheduler moves on
        self._lr = groups[0].get("lr")

    def see_batch(self, *args: Any, input_dict: Any = None, labels: Any = None, **kwargs: Any) -> None:
        if input_dict is None:  # a trainer of its own kind
            return
        parts = zip(_listed(input_dict), _listed(labels), strict=False)
        for inputs, targets in parts:  # several under pipeline parallelism
            self._monitor.batch(
                {"input_ids": inputs.get("input"), "labels": targets}, step=self._trainer.step
            )

    def add_loss(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(self._trainer, "pp_has_last_stage", True):  # other stages return -1
            self._loss.add(loss)

    def add_norm(self, norm: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_in_step:  # torchtitan's module may serve another trainer of this process
            self._monitor.log({"grad_norm": norm}, self._trainer.step)

    def end(self, result: Any, *args: Any, **kwargs: Any) -> None:
        self._is_in_step = False
        loss = self._loss.take_sum()  # each micro-batch gives its part of the mean over all ranks' tokens
        if loss is not None:
            loss = loss * _ranks_of_loss(self._trainer)
        self._monitor.step(self._trainer.step, loss=loss, lr=self._lr)

    def end_run(self) -> None:
        error = sys.exc_info()[1]  # torchtitan closes the trainer while it handles what ended the training
        if error is None:
            self._monitor.finish()
        else:
            self._monitor.finish(status_of(error), reason_of(error))


def _renamed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """torchtitan's names, but for the loss of a validation and what every step has already."""
    names = {"validation_metrics/loss": "eval_loss"}
    return {names.get(name, name): value for name, value in metrics.items() if name != "grad_norm"}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _ranks_of_loss(trainer: Any) -> int:
    """Ranks whose parts of the loss torchtitan adds up."""
    dims = trainer.parallel_dims
    mesh = dims.get_optional_mesh("loss") if dims.dp_cp_enabled else None
    return 1 if mesh is None else int(mesh.size())


def _replace_logger(processor: Any, logger: FloatscopeLogger) -> Callable[[], None]:
    inner = logger.inner = processor.logger
    processor.logger = logger

    def undo() -> None:
        if processor.logger is logger:
            processor.logger = inner

    return undo


def _clipping_of(trainer: Any) -> Any:
    """The module in which the trainer's class finds ``clip_grad_norm_``, or None where it has another way."""
    found = sys.modules.get("torchtitan.distributed.utils")
    return found if hasattr(found, "clip_grad_norm_") else None

"""DeepSpeed: a run is watched by its engine.

    monitor = watch_engine(engine, run="llama-fp16")
    for batch in loader:
        loss = engine(batch)
        engine.backward(loss)
        engine.step()

A step of the record is an optimizer step, not a micro-batch. ``loss`` is the mean of what was handed to
``engine.backward`` meanwhile; a loop that calls ``loss.backward()`` gives it with ``monitor.log``.
"""

from __future__ import annotations

from typing import Any

from floatscope.assembly import watch
from floatscope.guard import Guard
from floatscope.integrations.means import MeanLoss
from floatscope.integrations.wrapping import wrap
from floatscope.monitor import Monitor


def watch_engine(engine: Any, *, run: str, **settings: Any) -> Monitor:
    """Watches a DeepSpeedEngine and ends a step whenever the engine has made one.

    engine: what ``deepspeed.initialize`` returned, also a PipelineEngine.  run, settings: as for
    ``floatscope.watch``. Steps are numbered by ``engine.global_steps``: the first is 1, also after a resume.
    ``monitor.finish()`` leaves the engine as it was.

    Raises what ``floatscope.watch`` raises, and TypeError if this is no engine.
    """
    if not all(hasattr(engine, name) for name in ("backward", "step", "global_steps", "module")):
        raise TypeError(
            f"watch_engine() got a {type(engine).__name__}, not a DeepSpeed engine; pass the first of what "
            "deepspeed.initialize returns"
        )
    monitor = watch(engine, run=run, **settings)
    guard = Guard(strict=settings.get("strict") is True, speaks=monitor.rank == 0)
    steps = _EngineSteps(engine, monitor)
    area = guard.area("DeepSpeed integration", loses="steps of this run")
    if hasattr(engine, "train_batch"):  # a PipelineEngine makes the whole step in one call
        monitor.at_end(wrap(engine, "train_batch", area=area, before=steps.begin, after=steps.end_batch))
    else:
        monitor.at_end(wrap(engine, "backward", area=area, before=steps.add_loss))
        monitor.at_end(wrap(engine, "step", area=area, before=steps.begin, after=steps.end))
    return monitor


class _EngineSteps:
    """Tells engine steps from micro-batches by the engine's own count."""

    def __init__(self, engine: Any, monitor: Monitor) -> None:
        self._engine = engine
        self._monitor = monitor
        self._loss = MeanLoss()
        self._steps_before = 0
        self._lr: Any = None

    def add_loss(self, loss: Any = None, *args: Any, **kwargs: Any) -> None:
        self._loss.add(loss)

    def begin(self, *args: Any, **kwargs: Any) -> None:
        self._steps_before = self._engine.global_steps
        rates = self._engine.get_lr()  # before the scheduler moves on
        self._lr = rates[0] if rates else None

    def end(self, result: Any, *args: Any, **kwargs: Any) -> None:
        if self._engine.global_steps != self._steps_before:
            self._monitor.step(self._engine.global_steps, loss=self._loss.take(), lr=self._lr)

    def end_batch(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        if self._engine.global_steps != self._steps_before:
            self._monitor.step(self._engine.global_steps, loss=loss, lr=self._lr)

"""The agent as the trainer sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from floatscope_trainer.data import TokenBatch
from floatscope_trainer.training import StepRecord


class Monitor(Protocol):
    """What the trainer uses of a `floatscope.Monitor`; also the stand-in of tests."""

    run_id: str

    def batch(self, batch: Mapping[str, Any], *, step: int | None = None) -> None: ...
    def step(self, step: int | None = None, **scalars: Any) -> None: ...
    def finish(self, status: str = "finished", reason: str | None = None) -> None: ...


Watch = Callable[..., Monitor]
"""`floatscope.watch`."""


def report_batch(monitor: Monitor, batch: TokenBatch, *, step: int) -> None:
    """Shows a micro-batch to the agent's input check, under the names that data loaders use."""
    monitor.batch({"input_ids": batch.ids, "labels": batch.labels}, step=step)


def report_step(monitor: Monitor, record: StepRecord, *, resumed: bool) -> None:
    """Logs a step.  resumed: whether it is the first one after a checkpoint."""
    scalars = record.scalars()
    if resumed:
        scalars["resumed"] = 1
    monitor.step(record.step, **scalars)

"""What the callbacks of all frameworks do with a monitor, whatever the framework calls its events.

A framework often evaluates right after a step, and says only then what it logged of it. So a step may be
held: its scalars wait here, and the monitor gets the step when the next one begins at the latest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from floatscope.assembly import watch
from floatscope.config import from_env
from floatscope.guard import Guard
from floatscope.integrations.means import MeanLoss
from floatscope.monitor import Monitor


class Session:
    """One training after another, each with a monitor of its own, or with the one it was given.

    run: display name of the runs that are opened here.  monitor: one that somebody else opened, finishes and
    has given the model to.  stops: whether a finding may end the training.  options: settings of
    ``floatscope.watch``.  Raises TypeError and ValueError as ``floatscope.watch`` does, at once and not when
    training begins.
    """

    def __init__(
        self,
        owner: str,
        *,
        run: str | None,
        monitor: Monitor | None,
        stops: bool,
        options: Mapping[str, Any],
    ) -> None:
        if (run is None) == (monitor is None):
            raise ValueError(
                f"{owner}(): expected either run=..., the name of the run, or monitor=..., an open monitor"
            )
        if monitor is not None and options:
            raise ValueError(
                f"{owner}(): {', '.join(options)}: a monitor that is given has its settings already; "
                "pass them to floatscope.watch()"
            )
        self.monitor = monitor
        self._is_ours = monitor is None
        self._run = run
        self._stops = stops
        self._options = dict(options)
        self._earlier_id: str | None = None
        speaks, strict = monitor is None or monitor.rank == 0, False
        if run is not None:
            config, _ = from_env({"run": run, **options})
            self._has_id = config.run_id is not None
            speaks, strict = config.rank == 0, config.strict
        self.guard = Guard(speaks=speaks, strict=strict)
        self.area = self.guard.area(f"{owner}", loses="the record of some steps")
        self._is_open = monitor is not None
        self._reset()

    def _reset(self) -> None:
        self._held: tuple[int, dict[str, Any], float | None] | None = None
        self._idle_since: float | None = None
        self._losses = MeanLoss()
        self._micro_batches = 0
        self._looked_for_gradients = False
        self._is_resumed = False

    @property
    def is_open(self) -> bool:
        """Whether a run is being recorded."""
        return self._is_open and self.monitor is not None

    def start(self, model: Any, optimizer: Any, *, config: Mapping[str, Any], **found: Any) -> None:
        """A training begins. Opens a monitor unless one was given.

        model, optimizer: as ``floatscope.watch`` takes them.  config: what the framework knows of the run.
        found: further settings. What the user gave wins over both.
        """
        if not self._is_ours:
            self._reset()
            return
        self.finish("failed", "training began again before it had ended")
        self._reset()
        given = {**found, **self._options}
        given["config"] = {**config, **self._options.get("config", {})}
        if self._earlier_id is not None:
            given["run_id"] = self._earlier_id
            self._is_resumed = True
        assert self._run is not None
        self.monitor = watch(_without_wrapper(model), optimizer, run=self._run, **given)
        self._is_open = True

    def resume_at(self, step: int) -> None:
        """After ``start``: the training goes on after ``step``, out of a checkpoint; 0 is the beginning."""
        self._is_resumed = self._is_resumed or step > 0

    def identity(self) -> dict[str, str]:
        """What a checkpoint keeps so that a resumed training goes on in the same run."""
        if not self._is_ours or self.monitor is None or self._run is None:
            return {}
        return {"run": self._run, "run_id": self.monitor.run_id}

    def continue_from(self, identity: object) -> None:
        """Takes what ``identity`` gave, before ``start``. With another name it is a new run."""
        if not isinstance(identity, Mapping) or not self._is_ours or self._has_id:
            return
        run_id = identity.get("run_id")
        if identity.get("run") != self._run or not isinstance(run_id, str):
            return
        if self._is_open:
            self.guard.say_once(
                "late state", "the checkpoint was loaded after the run had been opened; this is a new run."
            )
        else:
            self._earlier_id = run_id

    def micro_batch(self, batch: Any, *, step: int) -> None:
        """A batch is about to go into the model; ``step`` is the number of the step it belongs to."""
        self.release()
        if not self.is_open or self.monitor is None:
            return
        if self._idle_since is not None and self._micro_batches == 0:
            self.monitor.log({"data_time_s": time.perf_counter() - self._idle_since}, step)
        self._micro_batches += 1
        self.monitor.batch(batch, step=step)

    def add_loss(self, loss: Any) -> None:
        """Adds the loss of a micro-batch, a number or a one-element tensor, to that of its step."""
        self._losses.add(loss)

    def end_step(
        self, step: int, scalars: Mapping[str, Any], *, hold: bool = False, micro_batches: int = 1
    ) -> None:
        """A step has ended. ``loss`` is the sum of ``add_loss`` over ``micro_batches``, unless it is given.

        hold: the framework will say more of this step (``add``).
        """
        self.release()
        now = time.perf_counter()
        took = None if self._idle_since is None else now - self._idle_since
        known = {name: value for name, value in scalars.items() if value is not None}
        total = self._losses.take_sum()
        if total is not None:
            known.setdefault("loss", total / micro_batches if micro_batches > 1 else total)
        if self._is_resumed:
            known["resumed"], self._is_resumed = 1.0, False
        self._micro_batches, self._idle_since = 0, now
        self._held = (step, known, took)
        if not hold:
            self.release()

    def add(self, scalars: Mapping[str, Any]) -> None:
        """Adds to the step that is held, where what is known stays; else to the step under way."""
        self._idle_since = time.perf_counter()
        if self._held is not None:
            for name, value in scalars.items():
                self._held[1].setdefault(name, value)
        elif self.is_open and self.monitor is not None:
            self.monitor.log(scalars)

    def release(self) -> None:
        """Gives the step that is held to the monitor."""
        if self._held is None:
            return
        (step, scalars, took), self._held = self._held, None
        if self.is_open and self.monitor is not None:
            self.monitor.log(scalars, step)
            self.monitor.step(step, step_time_s=took)

    def look_for_gradients(self, parameters: Iterable[Any]) -> None:
        """Says once if no parameter has a gradient when the optimizer steps: then their norms are missing."""
        if self._looked_for_gradients or not self.is_open:
            return
        self._looked_for_gradients = True
        if all(p.grad is None and getattr(p, "main_grad", None) is None for p in parameters):
            self.guard.say_once(
                "no gradients",
                "no parameter has a gradient of its own when the optimizer steps (DeepSpeed and FSDP keep "
                "them in buffers): gradient norms of weights are not recorded.",
            )

    @property
    def alarms(self) -> int:
        """Findings that are a warning or worse and still stand."""
        return 0 if self.monitor is None else sum(finding.is_alarm for finding in self.monitor.findings)

    def tag(self, step: int) -> dict[str, Any]:
        """What is written into a checkpoint made after ``step``; ``is_clean`` None means not judged yet."""
        if self.monitor is None:
            return {"step": step, "is_clean": None}
        return {"run_id": self.monitor.run_id, "step": step, "is_clean": self.monitor.is_clean(step)}

    def wants_to_stop(self, *, ranks_meet: bool, device: Any) -> bool:
        """Whether the training is to end now; the same on all ranks.

        ranks_meet: whether all ranks are at this point of their loops and wait for one another here anyway.
        Only there several ranks are asked, since one that stops alone hangs the others. A rank whose run
        could not be opened is asked as well: the others wait for its answer. So call it in an area of its
        own, where nothing that fails before can pass it over.
        """
        if not self._stops:
            return False
        is_wanted = self.monitor is not None and self.monitor.should_stop
        if _world_size() == 1:
            return is_wanted
        return ranks_meet and _is_true_anywhere(is_wanted, device)

    def finish(self, status: str, reason: str | None = None) -> None:
        """The training has ended; a second call does nothing. A monitor that was given stays open."""
        self.release()
        if self._is_ours and self._is_open and self.monitor is not None:
            self._is_open = False
            self._earlier_id = None
            self.monitor.finish(status, reason)


def _without_wrapper(model: Any) -> Any:
    """The user's module: DistributedDataParallel and DataParallel hold it as ``module``."""
    import torch

    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while isinstance(model, wrappers):
        model = model.module
    return model


def _world_size() -> int:
    from torch import distributed

    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _is_true_anywhere(value: bool, device: Any) -> bool:
    """Asks all ranks: waits for them and for the device."""
    import torch

    flag = torch.tensor([int(value)], device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())

"""Accelerate: a tracker that takes what the loop logs, and that watches what ``prepare`` gave.

    tracker = FloatscopeTracker(run="qwen2-7b-fp8")
    accelerator = Accelerator(log_with=[tracker], gradient_accumulation_steps=4)
    accelerator.init_trackers("project")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    tracker.attach(model, optimizer, accelerator=accelerator)
    for batch in loader:
        with accelerator.accumulate(model):
            tracker.batch(batch)
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            tracker.step(loss=loss)  # counts where accelerator.sync_gradients is true
    accelerator.end_training()

Without ``attach`` it records what ``accelerator.log`` is given, and nothing of the model.
"""

from __future__ import annotations

from typing import Any

import accelerate
from accelerate.tracking import GeneralTracker

from floatscope.integrations.session import Session
from floatscope.monitor import Monitor


class FloatscopeTracker(GeneralTracker):  # type: ignore[misc] # the library has no types
    """A tracker for ``Accelerator(log_with=[...])``. Every rank records; only the first one prints.

    run: name of the run.  monitor: an open monitor instead, which has the model already; it is not finished
    here.  options: settings of ``floatscope.watch``.

    To go on in the same run after a restart, ``accelerator.register_for_checkpointing(tracker)`` and load the
    checkpoint before ``attach``. What it keeps says also whether the checkpoint is clean.
    """

    name = "floatscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run: str | None = None, *, monitor: Monitor | None = None, **options: Any) -> None:
        self._session = Session("FloatscopeTracker", run=run, monitor=monitor, stops=True, options=options)
        self._accelerator: Any = None
        self._config: dict[str, Any] = {}
        self._rate = _Rate(self._session)
        self._is_counting = False
        self._micro_losses = 0
        self._last_step = -1
        super().__init__()

    @property
    def tracker(self) -> Monitor | None:
        """The monitor; None before the run is open."""
        return self._session.monitor

    @property
    def monitor(self) -> Monitor | None:
        """The same as ``tracker``."""
        return self._session.monitor

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keeps the configuration given to ``init_trackers``; it is shown with the run."""
        if self._session.is_open:
            self._session.guard.say_once(
                "late configuration", "init_trackers() came after attach(); its config is not recorded."
            )
        self._config.update(values)

    def attach(self, model: Any, optimizer: Any = None, *, accelerator: Any = None) -> None:
        """Opens the run and watches what ``accelerator.prepare`` gave, before the first forward pass.

        accelerator: says which micro-batches end a step; without it each call of ``step`` ends one.
        """
        with self._session.area:
            self._accelerator = accelerator
            self._open(model, optimizer)
            self._rate.watch(optimizer)

    def batch(self, batch: Any) -> None:
        """Looks at a micro-batch before the forward pass."""
        with self._session.area:
            self._session.micro_batch(batch, step=self._last_step + 1)

    def step(self, step: int | None = None, *, loss: Any = None, **scalars: Any) -> None:
        """After each micro-batch: adds its loss, and ends the step where gradients are synchronised.

        step: number of the step; by default one more than the last, from 0.  loss: of this micro-batch as the
        model gave it, a number or a one-element tensor; their mean is recorded.
        """
        with self._session.area:
            self._is_counting = True
            if loss is not None:
                self._micro_losses += 1
                self._session.add_loss(loss)
            if self._accelerator is not None and not self._accelerator.sync_gradients:
                return
            self._last_step = self._last_step + 1 if step is None else step
            known = {"lr": self._rate.latest, **scalars}
            self._session.end_step(self._last_step, known, hold=True, micro_batches=self._micro_losses)
            self._micro_losses = 0

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """What ``accelerator.log`` is given: belongs to the step that ``step`` has just ended.

        Without calls of ``step`` each number that is logged is a step. Texts are passed over.
        """
        with self._session.area:
            numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
            if not self._session.is_open:
                self._open(None, None)
            if self._is_counting or (step is not None and step == self._last_step):
                self._session.add(numbers)
            else:
                self._last_step = self._last_step + 1 if step is None else step
                self._session.end_step(self._last_step, numbers, hold=True)

    def should_stop(self) -> bool:
        """Whether a finding asks to stop (settings ``stop_on`` and ``stop_confidence``).

        The same on all ranks, which wait for one another here: call it on all of them, at the same steps.
        """
        wanted = False
        with self._session.area:
            self._session.release()
        with self._session.area:
            device = "cpu" if self._accelerator is None else self._accelerator.device
            wanted = self._session.wants_to_stop(ranks_meet=True, device=device)
        return wanted

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the run, the step and whether it is one to go back to."""
        kept: dict[str, Any] = {}
        with self._session.area:
            self._session.release()
            kept = {**self._session.tag(self._last_step), **self._session.identity()}
        return kept

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on in the run of the checkpoint, and counts on from its step."""
        with self._session.area:
            self._session.continue_from(state_dict)
            self._last_step = int(state_dict.get("step", -1))

    def finish(self) -> None:
        """Ends the run; ``accelerator.end_training()`` calls it."""
        with self._session.area:
            self._rate.remove()
            self._session.finish("finished")

    def _open(self, model: Any, optimizer: Any) -> None:
        scaler = getattr(self._accelerator, "scaler", None)
        config = {"framework": f"accelerate {accelerate.__version__}", **self._config}
        if self._accelerator is not None:
            config |= {
                "mixed_precision": self._accelerator.mixed_precision,
                "gradient_accumulation_steps": self._accelerator.gradient_accumulation_steps,
            }
        self._session.start(model, optimizer, config=config, **({} if scaler is None else {"scaler": scaler}))


class _Rate:
    """The learning rate with which the optimizer stepped last; schedulers step before or after ours."""

    def __init__(self, session: Session) -> None:
        self.latest: Any = None
        self._session = session
        self._handle: Any = None

    def watch(self, optimizer: Any) -> None:
        """Hooks the optimizer, the inner one of a prepared one."""
        self.remove()
        inner = getattr(optimizer, "optimizer", optimizer)
        if hasattr(inner, "register_step_pre_hook"):
            self._handle = inner.register_step_pre_hook(self._before_step)

    def remove(self) -> None:
        """Takes the hook off."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with self._session.area:
            self.latest = optimizer.param_groups[0]["lr"]
            self._session.look_for_gradients(p for group in optimizer.param_groups for p in group["params"])

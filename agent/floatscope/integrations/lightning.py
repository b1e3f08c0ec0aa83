"""Lightning.

    trainer = Trainer(..., callbacks=[FloatscopeCallback(run="qwen2-7b-fp8")])

A step has the number that Lightning gives it (``trainer.global_step`` after it, from 1): one an optimizer
step, also under gradient accumulation. Checkpoints hold ``checkpoint["floatscope"]``: run_id, step and
``is_clean``, which is None where the diagnosis has not come so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

try:
    import lightning.pytorch as pl
except ImportError:  # the same library under its older name
    import pytorch_lightning as pl

from floatscope.crash import reason_of, status_of
from floatscope.integrations.session import Session
from floatscope.monitor import Monitor

CHECKPOINT_KEY = "floatscope"
_VALIDATION = re.compile(r"(^|[/_.])(val|valid|validation|eval)([/_.]|$)")
_EVAL_LOSS = re.compile(r"(val|valid|validation|eval)[/_.]loss|loss[/_.](val|valid|validation|eval)")


class FloatscopeCallback(pl.Callback):  # type: ignore[misc] # the library has no types
    """Records every ``fit`` of a Trainer.

    run: name of the run; a fit that resumes from a checkpoint goes on in the run that wrote it.
    monitor: an open monitor instead; it is not finished here.  stop: set ``trainer.should_stop`` when
    ``monitor.should_stop`` says so (settings ``stop_on`` and ``stop_confidence``); several ranks agree on it
    every ``log_every_n_steps`` steps.  options: settings of ``floatscope.watch``.
    """

    def __init__(
        self,
        run: str | None = None,
        *,
        monitor: Monitor | None = None,
        stop: bool = False,
        **options: Any,
    ) -> None:
        self._session = Session("FloatscopeCallback", run=run, monitor=monitor, stops=stop, options=options)
        self._step = 0
        self._lr: Any = None
        self._told_alarms = 0

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of this fit, or of the last one."""
        return self._session.monitor

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Opens the run before the model is called, unless a checkpoint is still to be read."""
        with self._session.area:
            if not trainer.strategy.restore_checkpoint_after_setup:
                self._open(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Opens the run where checkpoints are read late (FSDP, DeepSpeed), and counts on from them."""
        with self._session.area:
            if not self._session.is_open:
                self._open(trainer, pl_module)
            self._step = trainer.global_step
            self._session.resume_at(self._step)

    def _open(self, trainer: Any, pl_module: Any) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._session.start(
            pl_module,
            list(trainer.optimizers),
            config=_config_of(trainer),
            **({} if scaler is None else {"scaler": scaler}),
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Looks at each micro-batch."""
        with self._session.area:
            self._session.micro_batch(batch, step=trainer.global_step + 1)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The learning rate of this step; after it the scheduler moves on."""
        with self._session.area:
            self._lr = optimizer.param_groups[0]["lr"]
            self._session.look_for_gradients(p for group in optimizer.param_groups for p in group["params"])

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends the step if the optimizer has stepped; holds it where Lightning validates next.

        Lightning has divided the loss of a micro-batch by their number, so that their sum is the step's.
        """
        is_step_over = trainer.global_step > self._step
        self._step = max(self._step, trainer.global_step)
        with self._session.area:
            self._session.add_loss(outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
            if is_step_over:
                self._session.end_step(self._step, {"lr": self._lr}, hold=_validates(trainer, batch_idx))
        if not is_step_over:
            return
        with self._session.area:
            ranks_meet = self._step % max(trainer.log_every_n_steps, 1) == 0
            if self._session.wants_to_stop(ranks_meet=ranks_meet, device=trainer.strategy.root_device):
                trainer.should_stop = True
        with self._session.area:
            self._tell_alarms(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Adds validation metrics to the step after which Lightning validates; a loss as eval_loss too."""
        with self._session.area:
            if trainer.sanity_checking or not self._step:
                return
            found = {k: v for k, v in trainer.callback_metrics.items() if _VALIDATION.search(k)}
            losses = [value for name, value in found.items() if _EVAL_LOSS.fullmatch(name)]
            if losses:
                found.setdefault("eval_loss", losses[0])
            self._session.add(found)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Writes into the checkpoint whether it is one to go back to."""
        with self._session.area:
            self._session.release()
            checkpoint[CHECKPOINT_KEY] = self._session.tag(trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback: which run it belongs to."""
        return dict(self._session.identity())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on in the run of the checkpoint."""
        with self._session.area:
            self._session.continue_from(state_dict)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends the run as crashed, or as failed if a person interrupted it."""
        with self._session.area:
            self._session.finish(status_of(exception), reason_of(exception))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends the run."""
        with self._session.area:
            self._session.finish("finished")

    def _tell_alarms(self, trainer: Any) -> None:
        """Warnings that stand go into Lightning's own log when their number changes."""
        alarms = self._session.alarms
        if alarms != self._told_alarms:
            self._told_alarms = alarms
            for logger in trainer.loggers:
                logger.log_metrics({"floatscope/warnings": alarms}, step=trainer.global_step)


def _validates(trainer: Any, batch_idx: int) -> bool:
    """Whether Lightning validates after this batch, as far as it can be known before.

    What is not foreseen (a validation by the clock) is recorded with the next step.
    """
    every_epochs, every_batches = trainer.check_val_every_n_epoch, trainer.val_check_batch
    if not trainer.enable_validation or (every_epochs and (trainer.current_epoch + 1) % every_epochs):
        return False
    if trainer.is_last_batch or every_batches in (None, float("inf")):
        return bool(trainer.is_last_batch)
    if every_epochs is None:
        batch_idx = trainer.fit_loop.total_batch_idx
    return bool((batch_idx + 1) % every_batches == 0)


def _config_of(trainer: Any) -> dict[str, Any]:
    return {
        "framework": f"lightning {pl.__version__}",
        "precision": str(trainer.precision),
        "strategy": type(trainer.strategy).__name__,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_val": trainer.gradient_clip_val,
        "max_steps": trainer.max_steps,
        "max_epochs": trainer.max_epochs,
    }

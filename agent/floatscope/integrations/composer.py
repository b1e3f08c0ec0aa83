"""MosaicML Composer.

    trainer = Trainer(..., callbacks=[FloatscopeCallback(run="qwen2-7b-fp8")])

A step is a batch in Composer's words and has the number that ``state.timestamp.batch`` has after it, from 1.
The loss is the one that Composer logs, ``loss/train/total``: it has read it from the device and taken its
mean over the ranks already. Checkpoints keep, as this callback's state, the run and whether it was clean.
"""

from __future__ import annotations

from typing import Any

import composer
from composer.core import Callback
from torch.optim import Optimizer

from floatscope.integrations.session import Session
from floatscope.monitor import Monitor

TOTAL_LOSS = "loss/train/total"
EVAL_LOSSES = ("LanguageCrossEntropy", "CrossEntropy")
RANKS_MEET_EVERY = 10  # batches; Composer reduces the loss over the ranks after each of them


class FloatscopeCallback(Callback):  # type: ignore[misc] # the library has no types
    """Records every ``fit`` of a Trainer.

    run: name of the run; a fit that loads a checkpoint goes on in the run that wrote it.
    monitor: an open monitor instead; it is not finished here.  stop: call ``state.stop_training()`` when
    ``monitor.should_stop`` says so (settings ``stop_on`` and ``stop_confidence``); several ranks agree on it
    every 10 batches.  options: settings of ``floatscope.watch``.
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
        self._losses_seen: Any = None
        self._told_alarms = 0
        self._is_fitted = False
        self._evaluated_after = -1

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of this fit, or of the last one."""
        return self._session.monitor

    def fit_start(self, state: Any, logger: Any) -> None:
        """Opens the run; a checkpoint has been loaded by now."""
        with self._session.area:
            self._is_fitted = False
            self._step = int(state.timestamp.batch)
            if self._step:  # a second fit of the same Trainer goes on where the first has ended
                self._session.continue_from(self._session.identity())
            self._session.start(
                state.model,
                list(state.optimizers),
                config=_config_of(state),
                **({"scaler": state.scaler} if _is_scaling(state) else {}),
            )

            self._session.resume_at(self._step)

    def before_forward(self, state: Any, logger: Any) -> None:
        """Looks at each micro-batch."""
        with self._session.area:
            self._session.micro_batch(state.batch, step=int(state.timestamp.batch) + 1)

    def after_train_batch(self, state: Any, logger: Any) -> None:
        """The learning rate of this step; after it the scheduler moves on."""
        with self._session.area:
            optimizer: Optimizer = state.optimizers[0]
            self._lr = optimizer.param_groups[0]["lr"]
            self._session.look_for_gradients(p for group in optimizer.param_groups for p in group["params"])

    def batch_end(self, state: Any, logger: Any) -> None:
        """Ends the step; it is held, since Composer may evaluate before it goes on."""
        with self._session.area:
            self._step = int(state.timestamp.batch)
            losses = state.total_loss_dict
            loss = losses.get(TOTAL_LOSS) if losses and losses is not self._losses_seen else None
            self._losses_seen = losses
            self._session.end_step(self._step, {"lr": self._lr, "loss": loss}, hold=True)

    def eval_end(self, state: Any, logger: Any) -> None:
        """Adds the metrics of an evaluation to the step after which it was made."""
        with self._session.area:
            if self._session.is_open and self._step:
                self._session.add(_eval_metrics(state))

    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        """All that belongs to the step has been said, unless the epoch ends with it."""
        with self._session.area:
            is_epoch_over = state.dataloader_len is not None and int(state.timestamp.batch_in_epoch) == int(
                state.dataloader_len
            )
            if not is_epoch_over:
                self._session.release()
        with self._session.area:
            ranks_meet = self._step % RANKS_MEET_EVERY == 0
            if self._session.wants_to_stop(ranks_meet=ranks_meet, device=_device_of(state)):
                state.stop_training()
        with self._session.area:
            if self._session.alarms != self._told_alarms:
                self._told_alarms = self._session.alarms
                logger.log_metrics({"floatscope/warnings": self._told_alarms}, step=self._step)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the run, the step and whether it is one to go back to."""
        kept: dict[str, Any] = {}
        with self._session.area:
            self._session.release()
            kept = {**self._session.tag(self._step), **self._session.identity()}
        return kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on in the run of the checkpoint."""
        with self._session.area:
            self._session.continue_from(state)

    def fit_end(self, state: Any, logger: Any) -> None:
        """Ends the run, unless Composer is about to evaluate once more."""
        with self._session.area:
            if not state.evaluators or self._evaluated_after == self._step:
                self._session.finish("finished")
            self._is_fitted = True

    def eval_after_all(self, state: Any, logger: Any) -> None:
        """Ends the run after the evaluation that follows the fit."""
        with self._session.area:
            self._evaluated_after = self._step
            if self._is_fitted:
                self._session.finish("finished")

    def close(self, state: Any, logger: Any) -> None:
        """Ends a run that is still open; Composer says neither that a fit failed nor why."""
        with self._session.area:
            if self._is_fitted:
                self._session.finish("finished")
            else:
                self._session.finish("failed", "the Trainer was closed before the end of fit()")


def _is_scaling(state: Any) -> bool:
    return state.scaler is not None and bool(state.scaler.is_enabled())


def _device_of(state: Any) -> Any:
    return next(state.model.parameters()).device


def _eval_metrics(state: Any) -> dict[str, Any]:
    """Metrics of the evaluation that has just ended, as Composer names them; a cross entropy as eval_loss."""
    label = state.dataloader_label
    values = {
        name: state.eval_metric_values[name]
        for name in state.eval_metrics.get(label, {})
        if name in state.eval_metric_values
    }
    found = {f"metrics/{label}/{name}": value for name, value in values.items()}
    losses = [values[name] for name in EVAL_LOSSES if name in values]
    return {**found, "eval_loss": losses[0]} if losses else found


def _config_of(state: Any) -> dict[str, Any]:
    return {
        "framework": f"composer {composer.__version__}",
        "precision": getattr(state.precision, "value", str(state.precision)),
        "max_duration": str(state.max_duration),
        "device_train_microbatch_size": state.device_train_microbatch_size,
    }

"""Megatron-Bridge.

    pretrain(config, forward_step, callbacks=[FloatscopeCallback(run="llama3-8b-fp8")])

and, for statistics of whole FP8 tensors by Transformer Engine's debug API, before it:

    config.tensor_inspect = tensor_inspect()

Steps have the numbers of Megatron's log: the first is 1. Losses, gradient norm and whether the step was
skipped are what Megatron-Bridge hands to its callbacks. It has no event for checkpoints; other callbacks find
in ``context.user_state["floatscope_is_clean"]`` whether one made now is safe to go back to.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron.bridge.training.callbacks import Callback, CallbackContext

from floatscope.integrations.megatron import has_norm, loss_scale_of, losses_of
from floatscope.integrations.session import Session
from floatscope.integrations.transformer_engine import debug_config
from floatscope.jsonable import jsonable
from floatscope.monitor import Monitor
from floatscope.probes.te_features import directory

IS_CLEAN = "floatscope_is_clean"
"""Key of ``context.user_state``: what ``monitor.is_clean()`` says of the step that has just ended."""

RANKS_MEET_EVERY = 10  # steps between questions whether a rank wants to stop; each waits for the device


class FloatscopeCallback(Callback):  # type: ignore[misc] # the library has no types
    """Records a training.

    run: name of the run.  monitor: an open monitor instead; it is not finished here.  stop: end the training
    when ``monitor.should_stop`` says so (settings ``stop_on`` and ``stop_confidence``); several ranks agree
    on it every 10 steps.  options: settings of ``floatscope.watch``.
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
        self._scale: Any = None
        self._lr: Any = None
        self._skipped = 0

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of this training, or of the last one."""
        return self._session.monitor

    def on_train_start(self, context: CallbackContext) -> None:
        """Opens the run; a checkpoint has been loaded by now."""
        with self._session.area:
            self._skipped = 0
            self._session.start(context.model, context.optimizer, config=_settings_of(context.state))

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Keeps what the step changes: the loss scale and the learning rate."""
        with self._session.area:
            self._session.release()
            self._scale = loss_scale_of(context.optimizer)
            groups = context.optimizer.param_groups
            self._lr = groups[0].get("lr") if groups else None

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Ends the step; it is held, since an evaluation may follow."""
        step = context.state.train_state.step + 1  # it counts up after this event
        with self._session.area:
            values = {**dict(losses_of(context.loss_dict)), "lr": self._lr, "loss_scale": self._scale}
            if has_norm(context.optimizer):
                values["grad_norm"] = context.grad_norm
            self._skipped += context.skipped_iter is True
            if self._scale is not None:
                values["skipped_steps"] = self._skipped
            self._session.end_step(step, values, hold=True)
            context.user_state[IS_CLEAN] = self._session.tag(step)["is_clean"]
        with self._session.area:
            if self._session.wants_to_stop(
                ranks_meet=step % RANKS_MEET_EVERY == 0, device=_device_of(context.model)
            ):
                context.state.cfg.train.train_iters = step  # what the loop compares the next step with

    def on_eval_end(self, context: CallbackContext) -> None:
        """Adds the losses of a validation to the step after which it was made."""
        self._add_losses("eval", context)

    def on_test_end(self, context: CallbackContext) -> None:
        """Adds the losses of a test, while the run is open."""
        self._add_losses("test", context)

    def on_train_end(self, context: CallbackContext) -> None:
        """Ends the run."""
        with self._session.area:
            self._session.finish("finished")

    def _add_losses(self, kind: str, context: CallbackContext) -> None:
        with self._session.area:
            if self._session.is_open:
                losses = dict(losses_of(context.total_loss_dict))
                main = losses.pop("loss", None)
                self._session.add(
                    {f"{kind}_loss": main, **{f"{kind}/{name}": value for name, value in losses.items()}}
                )


def tensor_inspect(config: Mapping[str, Any] | None = None, **settings: Any) -> Any:
    """A ``TensorInspectConfig`` with floatscope's feature on all layers.

    config: sections of your own for nvdlfw-inspect, which get the feature too.  settings: further fields of
    ``TensorInspectConfig``, such as log_dir. It needs Transformer Engine and nvdlfw-inspect.
    """
    configs = importlib.import_module("megatron.bridge.training.config")
    return configs.TensorInspectConfig(
        enabled=True,
        features=debug_config(config),
        feature_dirs=[*_features_of_transformer_engine(), directory()],
        **settings,
    )


def _features_of_transformer_engine() -> list[str]:
    """The folder that Megatron-Bridge takes if none is given."""
    found = importlib.import_module("transformer_engine.debug.features").__file__
    return [] if found is None else [str(Path(found).parent)]


def _settings_of(state: Any) -> dict[str, Any]:
    """The job's configuration, as far as it can be shown."""
    cfg = getattr(state, "cfg", None)
    to_dict = getattr(cfg, "to_dict", None)
    found = jsonable(to_dict()) if callable(to_dict) else {}
    return found if isinstance(found, dict) else {}


def _device_of(model: Any) -> Any:
    return next(iter(model[0].parameters())).device

"""Hugging Face Trainer, and the trainers of TRL that are built on it.

    trainer = Trainer(..., callbacks=[FloatscopeCallback(run="qwen2-7b-fp8")])

A step has the number that the Trainer logs (``state.global_step``, from 1). The Trainer tells its callbacks
neither the batch nor the loss of a step, so ``Trainer.training_step``, which has both, is wrapped while a
training runs; what it computes is not touched. Losses are those before the Trainer's filter of NaN.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from floatscope.crash import reason_of, status_of
from floatscope.integrations.session import Session
from floatscope.monitor import Monitor

STATE_KEY = "floatscope"  # no class has this name, so the Trainer does not try to build it from a checkpoint
TAG_NAME = "floatscope.json"
OWN_LOGS = frozenset({"loss", "learning_rate", "epoch", "step", "total_flos"})
TIMINGS = ("_runtime", "_per_second", "_time")


class FloatscopeCallback(TrainerCallback):  # type: ignore[misc] # the library has no types
    """Records every training of a Trainer.

    run: name of the run; each call of ``train()`` is a run of its own, but one that resumes from a checkpoint
    goes on in the run that wrote it.  monitor: an open monitor instead; it is not finished here.
    stop: end the training when ``monitor.should_stop`` says so (settings ``stop_on`` and
    ``stop_confidence``); several ranks agree on it at the steps that the Trainer logs.
    options: settings of ``floatscope.watch``.

    Checkpoints get a file ``floatscope.json``: ``is_clean`` is true, false, or null while not judged. It is
    renewed as the diagnosis goes on, after a resume also in the checkpoints that lead up to it.
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
        self._wrapped: _TrainingStep | None = None
        self._lr: Any = None
        self._is_log_due = False  # the Trainer's own log of a step, to which all ranks come
        self._tags: dict[Path, tuple[int, bool | None]] = {}

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of this training, or of the last one."""
        return self._session.monitor

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Opens the run."""
        with self._session.area:
            kept = getattr(state, "stateful_callbacks", None)
            if isinstance(kept, dict):
                self._session.continue_from(kept.get(STATE_KEY))
            optimizer = kwargs.get("optimizer")
            scaler = getattr(optimizer, "scaler", None)
            self._session.start(
                kwargs.get("model"),
                optimizer,
                config=_config_of(args, state),
                **({} if scaler is None else {"scaler": scaler}),
            )
            self._session.resume_at(state.global_step)
            if isinstance(kept, dict):
                kept[STATE_KEY] = self._session.identity()
            if self._wrapped is None:
                self._wrapped = _TrainingStep(self)
            if state.is_world_process_zero:
                self._find_tags(Path(args.output_dir), up_to=state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All that belongs to the step before has been said."""
        with self._session.area:
            self._session.release()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The learning rate of this step; after it the scheduler moves on."""
        with self._session.area:
            self._lr = kwargs["optimizer"].param_groups[0]["lr"]
            self._session.look_for_gradients(p for g in kwargs["optimizer"].param_groups for p in g["params"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Ends the step, or holds it where the Trainer will log or evaluate."""
        with self._session.area:
            self._is_log_due = control.should_log
            is_more_to_come = control.should_log or _evaluates(args, state, control)
            self._session.end_step(state.global_step, {"lr": self._lr}, hold=is_more_to_come)
            if self._session.wants_to_stop(ranks_meet=False, device=args.device):
                control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        """Adds what the Trainer logs of the step: its norm of all gradients, and what its subclasses log.

        The other way, warnings that stand are counted in the Trainer's log.
        """
        is_of_step = bool(logs) and "loss" in logs and self._is_log_due
        if is_of_step:
            self._is_log_due = False
            with self._session.area:
                own = {name: value for name, value in logs.items() if name not in OWN_LOGS}
                self._session.add(_numbers(own))
                if not _evaluates(args, state, control):
                    self._session.release()
            with self._session.area:
                if self._session.wants_to_stop(ranks_meet=True, device=args.device):
                    control.should_training_stop = True
        with self._session.area:
            if self._session.alarms and state.log_history and logs is not None:
                state.log_history[-1]["floatscope/warnings"] = self._session.alarms
                logs["floatscope/warnings"] = self._session.alarms
            self._renew_tags()
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Adds eval_loss and the other metrics to the step after which the Trainer evaluates."""
        with self._session.area:
            if state.global_step:
                self._session.add(_numbers(metrics or {}))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Writes into the checkpoint whether it is one to go back to."""
        with self._session.area:
            self._session.release()
            if state.is_world_process_zero and self._session.is_open:
                folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
                if folder.is_dir():
                    self._write_tag(folder, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the run."""
        with self._session.area:
            self._end("finished", None)

    def _end(self, status: str, reason: str | None) -> None:
        self._session.finish(status, reason)
        self._renew_tags()  # finishing has waited for the diagnosis
        self._tags.clear()
        if self._wrapped is not None:
            self._wrapped.remove()
            self._wrapped = None

    def _renew_tags(self) -> None:
        """A fault is proven some steps after it began: what is known now may be more than at saving."""
        for folder, (step, was_clean) in list(self._tags.items()):
            is_clean = self._session.tag(step)["is_clean"]
            if not folder.is_dir():
                del self._tags[folder]  # the Trainer keeps only the newest checkpoints
            elif is_clean is not None and is_clean is not was_clean:
                self._write_tag(folder, step)

    def _find_tags(self, output: Path, *, up_to: int) -> None:
        """Takes over the tags that earlier processes of this run left unjudged.

        Checkpoints beyond the one resumed from were made by steps that are trained again now: what is said
        of these is not about them.
        """
        if not self._session.is_open:
            return
        own = self._session.tag(up_to).get("run_id")
        for path in output.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TAG_NAME}"):
            tag = _read_tag(path)
            step, is_clean = tag.get("step"), tag.get("is_clean")
            if tag.get("run_id") != own or type(step) is not int or not 0 < step <= up_to:
                continue
            if is_clean is None or is_clean is True:  # what was proven stays
                self._tags[path.parent] = (step, is_clean)

    def _write_tag(self, folder: Path, step: int) -> None:
        tag = self._session.tag(step)
        self._tags[folder] = (step, tag["is_clean"])
        partial = folder / (TAG_NAME + ".new")
        partial.write_text(json.dumps(tag) + "\n")
        os.replace(partial, folder / TAG_NAME)

    def _before(self, trainer: Any, inputs: Any) -> None:
        with self._session.area:
            self._session.micro_batch(inputs, step=trainer.state.global_step + 1)

    def _after(self, loss: Any) -> None:
        with self._session.area:
            self._session.add_loss(loss)

    def _failed(self, trainer: Any, error: BaseException) -> None:
        """A Trainer that looks for a batch size that fits goes on after running out of memory."""
        if not trainer.args.auto_find_batch_size:
            with self._session.area:
                self._end(status_of(error), reason_of(error))


class _TrainingStep:
    """``Trainer.training_step`` of the trainers that have this callback, until it is removed.

    It is wrapped on the class: callbacks are not told their Trainer, but the method is. If somebody else
    wraps it later, ours stays below as a pass-through.
    """

    def __init__(self, callback: FloatscopeCallback) -> None:
        self._is_on = True
        self._original = original = Trainer.training_step
        installed = self

        @functools.wraps(original)
        def training_step(trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not installed._is_on or callback not in trainer.callback_handler.callbacks:
                return original(trainer, model, inputs, *args, **kwargs)
            callback._before(trainer, inputs)
            try:
                loss = original(trainer, model, inputs, *args, **kwargs)
            except BaseException as error:
                callback._failed(trainer, error)
                raise
            callback._after(loss)
            return loss

        self._ours = training_step
        Trainer.training_step = training_step

    def remove(self) -> None:
        """Puts the original back."""
        self._is_on = False
        if Trainer.training_step is self._ours:
            Trainer.training_step = self._original


def _read_tag(path: Path) -> dict[str, Any]:
    """A checkpoint's tag; empty if it is not one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _evaluates(args: Any, state: Any, control: Any) -> bool:
    """Whether the Trainer evaluates after this step; that at the end of an epoch is not announced."""
    is_epoch_over = float(state.epoch or 0).is_integer()
    return bool(
        control.should_evaluate or (getattr(args, "eval_strategy", None) == "epoch" and is_epoch_over)
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics without the Trainer's own timings of an evaluation."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and name != "epoch" and not name.endswith(TIMINGS)
    }


def _config_of(args: Any, state: Any) -> dict[str, Any]:
    names = (
        "learning_rate", "lr_scheduler_type", "per_device_train_batch_size", "gradient_accumulation_steps",
        "max_grad_norm", "weight_decay", "warmup_steps", "optim", "bf16", "fp16", "seed",
    )  # fmt: skip
    found = {name: getattr(args, name, None) for name in names}
    return {
        "framework": f"transformers {transformers.__version__}",
        "max_steps": state.max_steps,
        **{name: getattr(value, "value", value) for name, value in found.items() if value is not None},
    }

"""Megatron: Megatron-LM's own training loop, or a loop on megatron-core.

    from floatscope.integrations.megatron import watch_pretrain
    watch_pretrain(run="gpt-fp8")
    pretrain(train_valid_test_datasets_provider, model_provider, ...)

or, where the loop is yours:

    monitor = watch(model, optimizer, run="gpt-fp8")      # model: the list of chunks of this rank
    ...
    monitor.log({"loss": loss})
    optimizer.step()                                      # ends the step

Neither has callbacks, so functions are wrapped, and put back when the run ends. Steps have Megatron's
iteration numbers: the first is 1. What ``optimizer.step`` returns, and what ``training_log`` is called with,
is on the host already; the loss scale is read as a tensor. No collective is started.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from floatscope import assembly
from floatscope.config import from_env
from floatscope.guard import Guard
from floatscope.integrations.wrapping import wrap
from floatscope.monitor import Monitor

LOSS_NAMES = ("lm loss", "loss")
"""What Megatron calls the loss that is trained on; without either it is the first."""


def watch(model: Any, optimizer: Any, *, run: str, iteration: int = 0, **settings: Any) -> Monitor:
    """Watches the model chunks of this rank; each ``optimizer.step()`` ends a step.

    model: a module or the list of chunks.  optimizer: a MegatronOptimizer, chained or not.  iteration: the
    last one done, where training resumes.  run, settings: as for ``floatscope.watch``. Log the loss before
    ``optimizer.step()``.

    Raises what ``floatscope.watch`` raises, and TypeError if this is no Megatron optimizer.
    """
    monitor, steps = _watch(model, optimizer, run, iteration, settings)
    steps.ends_with_optimizer = True
    return monitor


class PretrainWatch:
    """What ``watch_pretrain`` returns. monitor: that of the training, None before it begins."""

    def __init__(self) -> None:
        self.monitor: Monitor | None = None
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        """Puts Megatron's functions back, and ends the run if there is one; a second call does nothing."""
        while self._undo:
            self._undo.pop()()
        if self.monitor is not None:
            self.monitor.finish()


def watch_pretrain(*, run: str, module: Any = None, **settings: Any) -> PretrainWatch:
    """Watches what ``pretrain`` of Megatron-LM trains; call it before.

    module: the one that holds ``train`` and ``training_log``, by default ``megatron.training.training``.
    run, settings: as for ``floatscope.watch``.

    Raises what ``floatscope.watch`` raises, ImportError without Megatron-LM, TypeError for another module.
    """
    if module is None:
        module = importlib.import_module("megatron.training.training")
    missing = [name for name in ("train", "training_log") if not callable(getattr(module, name, None))]
    if missing:
        raise TypeError(
            f"watch_pretrain(): {module.__name__} has no {' and no '.join(missing)}; expected the module of "
            "Megatron-LM's training loop"
        )
    config, _ = from_env(
        {"run": run, **settings}
    )  # a wrong setting shows here, not in the middle of pretrain
    guard = Guard(strict=config.strict, speaks=config.rank == 0)
    area = guard.area("Megatron integration", loses="the record of this run")
    train_arguments = _arguments_of(module.train)
    log_arguments = _arguments_of(module.training_log)
    found = PretrainWatch()
    steps: _OptimizerSteps | None = None

    def begin(*args: Any, **kwargs: Any) -> None:
        nonlocal steps
        given = train_arguments(args, kwargs)
        if found.monitor is not None:
            found.monitor.finish("failed", "training began again before it had ended")
        found.monitor, steps = _watch(given["model"], given["optimizer"], run, 0, settings)

    def log(*args: Any, **kwargs: Any) -> None:
        if found.monitor is not None and steps is not None:
            given = log_arguments(args, kwargs)
            found.monitor.log(logged_values(given))
            steps.end(given.get("iteration"))

    def end(result: Any, *args: Any, **kwargs: Any) -> None:
        if found.monitor is not None:
            found.monitor.finish()

    found._undo = [
        wrap(module, "train", area=area, before=begin, after=end),
        wrap(module, "training_log", area=area, before=log),
    ]
    return found


def logged_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars among the arguments of ``training_log``: the losses by their names, and the main one again."""
    values: dict[str, Any] = dict(losses_of(given.get("loss_dict")))
    values["lr"] = given.get("learning_rate")
    values["param_norm"] = given.get("params_norm")
    values["max_attention_logit"] = given.get("max_attention_logit")
    return values


def losses_of(losses: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """A loss dict with its main loss as ``loss`` besides; empty on all but the last pipeline stage."""
    if not losses:
        return
    yield from losses.items()
    main = next((name for name in LOSS_NAMES if name in losses), next(iter(losses)))
    yield "loss", losses[main]


def loss_scale_of(optimizer: Any) -> Any:
    """A copy of the loss scale in force, a tensor; None where the loss is not scaled."""
    parts = getattr(optimizer, "chained_optimizers", None) or [optimizer]
    if all(getattr(part, "grad_scaler", None) is None for part in parts):
        return None
    scale = optimizer.get_loss_scale()
    return scale.detach().clone() if hasattr(scale, "detach") else scale


def has_norm(optimizer: Any) -> bool:
    """Whether ``optimizer.step`` works the gradient norm out: without clipping some return 0 in its place."""
    clip = getattr(getattr(optimizer, "config", None), "clip_grad", 1.0)
    return hasattr(optimizer, "chained_optimizers") or bool(clip and clip > 0)


class _OptimizerSteps:
    """Reads what ``optimizer.step`` returns: whether it stepped, the gradient norm, the number of zeros."""

    def __init__(self, monitor: Monitor, optimizer: Any, iteration: int) -> None:
        self.ends_with_optimizer = False
        self._monitor = monitor
        self._optimizer = optimizer
        self._iteration = iteration
        self._scale: Any = None
        self._skipped = 0
        self._has_norm = has_norm(optimizer)

    def before(self, *args: Any, **kwargs: Any) -> None:
        self._scale = loss_scale_of(self._optimizer)

    def after(self, result: Any, *args: Any, **kwargs: Any) -> None:
        values: dict[str, Any] = {"loss_scale": self._scale}
        if isinstance(result, tuple) and len(result) == 3:
            is_done, norm, zeros = result
            self._skipped += is_done is False
            values["grad_norm"] = norm if self._has_norm else None
            values["num_zeros_in_grad"] = zeros or None
        if self._scale is not None:
            values["skipped_steps"] = self._skipped
        if self.ends_with_optimizer:
            values["lr"] = _learning_rate(self._optimizer)
        self._monitor.log(values)
        if self.ends_with_optimizer:
            self.end(None)

    def end(self, iteration: Any) -> None:
        self._iteration = iteration if type(iteration) is int else self._iteration + 1
        self._monitor.step(self._iteration)


def _watch(
    model: Any, optimizer: Any, run: str, iteration: int, settings: Mapping[str, Any]
) -> tuple[Monitor, _OptimizerSteps]:
    if not hasattr(optimizer, "get_loss_scale") or not hasattr(optimizer, "step"):
        raise TypeError(
            f"watch() got a {type(optimizer).__name__} as optimizer, not a MegatronOptimizer; pass what "
            "get_megatron_optimizer returns, or use floatscope.watch for a torch optimizer"
        )
    monitor = assembly.watch(model, optimizer, run=run, **settings)
    guard = Guard(strict=settings.get("strict") is True, speaks=monitor.rank == 0)
    area = guard.area("Megatron integration", loses="steps of this run")
    steps = _OptimizerSteps(monitor, optimizer, iteration)
    monitor.at_end(wrap(optimizer, "step", area=area, before=steps.before, after=steps.after))
    return monitor, steps


def _learning_rate(optimizer: Any) -> Any:
    """Of the first group; the scheduler moves on only after the step."""
    groups = optimizer.param_groups
    return groups[0].get("lr") if groups else None


def _arguments_of(
    function: Callable[..., Any],
) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """Gives a call's arguments by name: versions of Megatron differ in their order."""
    signature = inspect.signature(function)

    def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(signature.bind_partial(*args, **kwargs).arguments)

    return named

"""DeepSpeed: the engine's loss scale, skipped steps and gradient norm, which it has worked out already.

Loss scale and overflow are numbers on the host. The gradient norm, global and before clipping, is a number
without ZeRO and a tensor with it. Nothing here starts a collective. ``engine.loss_scale()`` is not read: it
is the setting, 0 for dynamic scaling.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from floatscope.guard import Area
from floatscope.look import Look
from floatscope.probes.naming import parameters_of
from floatscope.probes.optimizer import find_optimizer
from floatscope.probes.optimizers import optimizers_of
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.weights import parameters_in
from floatscope.rows import Row

_MOST_WRAPPERS = 8  # Accelerate and Lightning put an optimizer into another


def is_engine(model: Any) -> bool:
    """Whether this is a ``deepspeed.DeepSpeedEngine``; nothing is imported to find out."""
    return _is_a(model, "DeepSpeedEngine")


def deepspeed_optimizer(optimizer: Any) -> Any:
    """DeepSpeed's optimizer of mixed precision or ZeRO inside wrappers, or None."""
    if "deepspeed" not in sys.modules:
        return None
    if isinstance(optimizer, list | tuple) and len(optimizer) == 1:
        optimizer = optimizer[0]
    for _ in range(_MOST_WRAPPERS):
        if optimizer is None or _is_a(optimizer, "DeepSpeedOptimizer"):
            return optimizer
        if hasattr(optimizer, "chained_optimizers"):  # Megatron's, which asserts that it holds only one
            return None
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def find_deepspeed(scene: Scene) -> Iterable[Probe]:
    """The probe of an engine, and of its optimizer if the user did not name one.

    Stands before the optimizer's probe, so that the engine's gradient norm wins over that of a partition.
    """
    engine = scene.model if is_engine(scene.model) else None
    optimizer = deepspeed_optimizer(scene.optimizer if engine is None else engine.optimizer)
    if engine is None and optimizer is None:
        return
    if optimizer is not None and not _trains_the_models_own(scene.model, optimizer):
        scene.guard.say_once(
            "deepspeed",
            f"{type(optimizer).__name__} of DeepSpeed steps copies of the weights that have no names (with "
            "ZeRO flat partitions): gradient norms and updates of single weights are left out. The norm "
            "of all gradients, loss_scale, skipped_steps and the layers' tensors are recorded.",
        )
    area = scene.guard.area(
        "DeepSpeed probe", loses="loss_scale, skipped_steps and the engine's gradient norm"
    )
    yield DeepSpeedProbe(engine, optimizer, area=area)
    if engine is not None and scene.optimizer is None and engine.optimizer is not None:
        yield from find_optimizer(replace(scene, optimizer=engine.optimizer))


class DeepSpeedProbe(Probe):
    """Reads the engine, or its optimizer alone, at the end of each step.

    engine: None if only the optimizer is known.  optimizer: None if the engine runs a plain torch optimizer.
    """

    def __init__(self, engine: Any, optimizer: Any, *, area: Area) -> None:
        self._engine = engine
        self._optimizer = optimizer
        self._area = area
        self._scale: Any = None
        self._skipped = 0
        self._has_scaling = _has_scaling(engine, optimizer)

    def begin(self, look: Look) -> None:
        """Keeps the scale in force: it changes within the optimizer's step."""
        if self._has_scaling and not self._area.tripped:
            with self._area:
                self._scale = current_scale(self._optimizer)

    def collect(self, readout: Readout, row: Row) -> None:
        """See Probe. Values that the training loop has given itself stay."""
        if self._area.tripped:
            return
        with self._area:
            overflow = getattr(self._optimizer, "overflow", False)
            is_skipped = overflow is True  # an int or bool everywhere; a tensor would have to be waited for
            self._skipped += is_skipped
            if self._has_scaling:
                _put("loss_scale", self._scale, readout, row)
                _put("skipped_steps", self._total_skipped(), readout, row)
            norm = self._norm()
            if not is_skipped or (isinstance(norm, float) and not math.isfinite(norm)):
                _put("grad_norm", norm, readout, row)  # older engines leave that of the step before

    def _total_skipped(self) -> int:
        return self._skipped if self._engine is None else int(self._engine.skipped_steps)

    def _norm(self) -> Any:
        if self._engine is not None:
            return self._engine.get_global_grad_norm()
        return getattr(self._optimizer, "_global_grad_norm", None)

    def remove(self) -> None:
        """Lets the engine go."""
        self._engine = self._optimizer = None


def current_scale(optimizer: Any) -> Any:
    """The loss scale in force, a number; None if there is none."""
    settings = getattr(optimizer, "loss_scale_config", None)
    return getattr(settings if settings is not None else optimizer, "cur_scale", None)


def _has_scaling(engine: Any, optimizer: Any) -> bool:
    """Only fp16 scales its loss; for bf16 the scale is there and always 1."""
    if engine is not None:
        return optimizer is not None and bool(engine.fp16_enabled())
    return bool(getattr(optimizer, "dynamic_loss_scale", False)) or current_scale(optimizer) not in (
        None,
        1,
        1.0,
    )


def _trains_the_models_own(model: Any, optimizer: Any) -> bool:
    """Whether what the optimizer steps are parameters of the model."""
    own = {id(parameter) for _, parameter in parameters_of(model)}
    return all(id(p) in own for one in optimizers_of(optimizer) for p in parameters_in(one))


def _is_a(thing: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(thing).__mro__)


def _put(name: str, value: Any, readout: Readout, row: Row) -> None:
    if name in row.scalars or value is None:
        return
    if isinstance(value, Tensor):
        readout.add(value, _Scalar(name).put)
    else:
        row.scalars[name] = float(value)


class _Scalar:
    def __init__(self, name: str) -> None:
        self._name = name

    def put(self, values: NDArray[np.float64], row: Row) -> None:
        row.scalars.setdefault(self._name, float(values[0]))

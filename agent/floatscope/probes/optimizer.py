"""Gradients and weights, read at the optimizer's own step hooks.

Every step: the L2 norm of each gradient in one fused call, with a float32 result (of bfloat16 gradients it
would be bfloat16). A NaN anywhere makes its norm NaN, so this is also a NaN detector per weight. On sampled
steps: gradient elements that are exactly zero, norms of weights, and what the step changed in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.catalog import Catalog
from floatscope.guard import Area
from floatscope.look import Look
from floatscope.probes.gradients import (
    RootOfSquares,
    gradient_of,
    is_plain,
    local_values,
    norms_of,
    places_of,
)
from floatscope.probes.loss_scaler import ScalerWatch
from floatscope.probes.naming import CallOrder, format_of, parameters_of, weight_tensor
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.statistics import block_of
from floatscope.probes.weight_updates import Weight, WeightUpdates
from floatscope.rows import Row

FIRST_STEPS = 3


def inner_optimizer(optimizer: Any) -> Any:
    """The torch optimizer inside wrappers (Accelerate, Megatron, Lightning), or None."""
    for _ in range(8):
        if isinstance(optimizer, torch.optim.Optimizer):
            return optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def find_optimizer(scene: Scene) -> Iterable[Probe]:
    """The probe of the optimizer, and of the loss scaler that may stand before it."""
    config, guard = scene.config, scene.guard
    if scene.optimizer is None and config.scaler is None:
        return []
    scaler = ScalerWatch(
        config.scaler, area=guard.area("loss scaler probe", loses="loss_scale and skipped_steps")
    )
    found = inner_optimizer(scene.optimizer)
    if found is None:
        if scene.optimizer is not None:
            guard.say(
                f"{type(scene.optimizer).__name__} is not a torch optimizer; "
                "gradients and updates are left out."
            )
        return [scaler]
    updates = WeightUpdates(budget_bytes=config.copy_budget_bytes, turn_steps=config.stats_every)
    probe = OptimizerProbe(
        scene.model,
        found,
        catalog=scene.catalog,
        order=scene.order,
        area=guard.area("optimizer probe", loses="gradient norms and weight updates"),
        updates=updates if config.weight_updates else None,
        on_first_steps=scaler.look_at_caller,
        may_skip=lambda: scaler.is_on,
    )
    return [probe, scaler]


class OptimizerProbe(Probe):
    """Hooks one optimizer.

    updates: how weights are compared before and after a step, or None to leave that out.
    on_first_steps: called from within the optimizer's first few steps.  may_skip: whether a loss scaler is at
    work, which leaves out steps.
    """

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        *,
        catalog: Catalog,
        order: CallOrder,
        area: Area,
        updates: WeightUpdates | None,
        on_first_steps: Callable[[], None],
        may_skip: Callable[[], bool] = lambda: False,
    ) -> None:
        self.is_sampled = False
        self._may_skip = may_skip
        self._optimizer = optimizer
        self._catalog = catalog
        self._order = order
        self._area = area
        self._updates = updates
        self._on_first_steps = on_first_steps
        self._steps = 0
        self._names = {id(p): weight_tensor(name, p) for name, p in parameters_of(model)}
        self._described: set[str] = set()
        self._handles: list[Any] = []
        self._readout = Readout()
        self._is_measured = False
        self._weights: list[Weight] = []
        self._prefix = ""
        self._is_one_device = True

    def begin(self, look: Look) -> None:
        """See Probe."""
        self.is_sampled = look.is_sampled

    def install(self) -> None:
        """Registers the hooks."""
        self._handles = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]
        facts: dict[str, Any] = {"grad_norm_point": "at optimizer.step, after clipping if the loop clips"}
        if getattr(self._optimizer, "master_weights", None):
            facts["master_weights"] = True  # what is stored in low precision is then only a copy
        self._catalog.describe(config=facts)

    def remove(self) -> None:
        """Takes the hooks off and lets the copies go."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._updates is not None:
            self._updates.clear()

    @property
    def has_readings(self) -> bool:
        """Whether the step under way has been measured."""
        return not self._readout.is_empty

    def collect(self, readout: Readout, row: Row) -> None:
        """Hands over what the hooks found. The gradients of a step that a scaler skipped are still there."""
        if self._may_skip() and not self._is_measured and not self._area.tripped:
            with self._area, torch.no_grad():
                self._read_gradients(self._find_weights())
        self._is_measured = False
        readout.join(self._readout)
        self._readout = Readout()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._area.tripped or self._is_measured:  # an optimizer that steps twice is measured once
            return
        with self._area, torch.no_grad():
            if self._steps < FIRST_STEPS:
                self._steps += 1
                self._on_first_steps()
            weights = self._find_weights()
            self._read_gradients(weights)
            if self._updates is not None:
                self._updates.before(weights, is_sampled=self.is_sampled)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._area.tripped or self._is_measured:
            return
        self._is_measured = True
        with self._area, torch.no_grad():
            if self._updates is not None:
                self._updates.after(self._readout)
            if self.is_sampled:
                self._read_weight_norms()

    def _find_weights(self) -> list[Weight]:
        """The parameters; groups may be added or replaced while training runs."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        if len(parameters) != len(self._weights) or any(
            weight.parameter is not p for weight, p in zip(self._weights, parameters, strict=True)
        ):
            self._weights = [
                Weight(p, self._names.get(id(p)), is_sharded=hasattr(p, "to_local"), is_plain=is_plain(p))
                for p in parameters
            ]
            self._prefix = "local_" if any(weight.is_sharded for weight in self._weights) else ""
            self._is_one_device = len({p.device for p in parameters}) == 1
            self._describe(self._weights)
        return self._weights

    def _read_gradients(self, weights: Sequence[Weight]) -> None:
        names: list[str | None] = []
        grads: list[Tensor] = []
        is_complete = True
        for weight in weights:
            grad = weight.parameter.grad
            if not weight.is_plain or (grad is not None and grad.layout is not torch.strided):
                seen = grad is not None
                grad = gradient_of(weight.parameter)
                is_complete = is_complete and (grad is not None or not seen)  # no norm of all without it
            if grad is not None:
                names.append(weight.tensor)
                grads.append(grad)
        if not grads:
            return
        places = places_of(grads, is_one_device=self._is_one_device)
        total = RootOfSquares(self._prefix + "grad_norm", parts=len(places)) if is_complete else None
        zeros = _ZeroShare(parts=len(places)) if self.is_sampled else None
        for indices in places:
            part = [grads[i] for i in indices]
            norms = self._unscaled(norms_of(part))
            self._readout.add(norms, _GradientNorms([names[i] for i in indices], total).add)
            if zeros is not None:
                nonzero = torch.stack([torch.count_nonzero(grad) for grad in part]).sum()
                self._readout.add(nonzero, zeros.of(sum(grad.numel() for grad in part)))

    def _unscaled(self, norms: Tensor) -> Tensor:
        """Fused optimizers divide by the loss scale only inside their step."""
        scale = getattr(self._optimizer, "grad_scale", None)
        return norms / scale.to(norms.device) if isinstance(scale, Tensor) else norms

    def _read_weight_norms(self) -> None:
        weights = self._find_weights()
        values = [v for w in weights if (v := local_values(w.parameter)) is not None]
        places = places_of(values, is_one_device=self._is_one_device)
        total = RootOfSquares(self._prefix + "param_norm", parts=len(places))
        for indices in places:
            self._readout.add(norms_of([values[i] for i in indices]), total.add)

    def _describe(self, weights: Iterable[Weight]) -> None:
        facts: dict[str, dict[str, Any]] = {}
        for weight in weights:
            if weight.tensor is None or weight.tensor in self._described:
                continue
            self._described.add(weight.tensor)
            facts[weight.tensor] = {"call_order": self._order.of(weight.tensor.rpartition("/")[0])}
            fmt = format_of(weight.parameter.dtype)
            if fmt is not None:
                facts[weight.tensor]["format"] = fmt
        if facts:
            self._catalog.describe_tensors(facts)


class _GradientNorms:
    """Norms of gradients as the statistic ``grad_norm`` of their weights, and as a part of the total."""

    def __init__(self, names: Sequence[str | None], total: RootOfSquares | None) -> None:
        self._keep = np.array([i for i, name in enumerate(names) if name is not None], np.intp)
        self._names = tuple(name for name in names if name is not None)
        self._total = total

    def add(self, values: NDArray[np.float64], row: Row) -> None:
        if self._total is not None:
            self._total.add(values, row)
        if self._names:
            row.blocks.append(block_of(self._names, {"grad_norm": values[self._keep]}, {}))


class _ZeroShare:
    """``zero_grad_pct`` out of counts of non-zero elements that are read separately."""

    def __init__(self, *, parts: int) -> None:
        self._left = parts
        self._nonzero = 0.0
        self._numel = 0

    def of(self, numel: int) -> Any:
        """The consumer of one part of ``numel`` elements."""
        self._numel += numel
        return self._add

    def _add(self, values: NDArray[np.float64], row: Row) -> None:
        self._nonzero += float(values[0])
        self._left -= 1
        if self._left == 0:
            row.scalars.setdefault("zero_grad_pct", 100.0 * (1.0 - self._nonzero / self._numel))

"""Gradients and weights, read around the optimizer's own step.

Every step: the L2 norm of each gradient in one fused call, with a float32 result (of bfloat16 gradients it
would be bfloat16). A NaN anywhere makes its norm NaN, so this is also a NaN detector per weight. Where torch
clips the gradients they are read just before, since clipping by a norm that is NaN makes all of them NaN;
else at the step. On sampled steps: gradient elements that are exactly zero, norms of weights, what the step
changed in them, and the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.catalog import Catalog
from floatscope.guard import Area
from floatscope.look import Look
from floatscope.probes.clipping import ClipWatch
from floatscope.probes.closures import Arguments, with_reading
from floatscope.probes.coordinates import Standing, job_size, standing_of
from floatscope.probes.gradient_norms import (
    GradientReading,
    GradientToken,
    gradient_token,
    read_gradients,
)
from floatscope.probes.gradients import RootOfSquares, ZeroShare, local_values, norms_of, places_of
from floatscope.probes.lanes import is_capturing
from floatscope.probes.loss_scaler import ScalerWatch
from floatscope.probes.naming import CallOrder, format_of
from floatscope.probes.optimizer_state import StateCheck
from floatscope.probes.optimizers import is_partitioned, optimizers_of, where_clipped
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.weight_updates import WeightUpdates
from floatscope.probes.weights import Weight, WeightBook, is_same, total_bytes
from floatscope.rows import Row

FIRST_STEPS = 3
BEFORE_CLIPPING = "before clipping by torch.nn.utils"


def find_optimizer(scene: Scene) -> Iterable[Probe]:
    """The probe of the optimizers, and of the loss scaler that may stand before them."""
    config, guard = scene.config, scene.guard
    if scene.optimizer is None and config.scaler is None:
        return []
    found = optimizers_of(scene.optimizer)
    scaler = ScalerWatch(
        config.scaler,
        area=guard.area("loss scaler probe", loses="loss_scale and skipped_steps"),
        devices={p.device.type for one in found for group in one.param_groups for p in group["params"]},
    )
    if not found:
        if scene.optimizer is not None:
            guard.say(
                f"{type(scene.optimizer).__name__} is not a torch optimizer; "
                "gradients and updates are left out."
            )
        return [scaler]
    updates = WeightUpdates(budget_bytes=config.copy_budget_bytes, turn_steps=config.stats_every)
    standing = standing_of(scene.model, config)
    probe = OptimizerProbe(
        scene.model,
        found,
        catalog=scene.catalog,
        order=scene.order,
        area=guard.area("optimizer probe", loses="gradient norms and weight updates"),
        updates=updates if config.weight_updates else None,
        on_first_steps=scaler.look_at_caller,
        may_skip=lambda: scaler.is_on,
        scale_of=scaler.scale_of,
        book=WeightBook(
            scene.model,
            standing,
            layer_offset=config.layer_offset,
            is_flat=job_size(config) > 1 and is_partitioned(scene.optimizer),
        ),
        say_once=guard.say_once,
        clipped_by=where_clipped(scene.model, scene.optimizer),
    )
    return [probe, scaler]


class _Trained:
    """One optimizer and what is known of the step under way."""

    def __init__(self, optimizer: torch.optim.Optimizer, updates: WeightUpdates | None) -> None:
        self.optimizer = optimizer
        self.updates = updates
        self.weights: list[Weight] = []
        self.is_one_device = True
        self.is_measured = False
        self.early: list[GradientReading] = []
        self.token: GradientToken | None = None

    def is_untouched(self) -> bool:
        """Whether the gradients are as clipping has left them."""
        return self.token is not None and self.token == gradient_token(self.weights)

    def unread(self) -> Sequence[Weight]:
        """Weights whose gradients were not read before clipping."""
        if not self.early:
            return self.weights
        seen = {id(weight) for reading in self.early for weight in reading.weights}
        return [weight for weight in self.weights if id(weight) not in seen]


class OptimizerProbe(Probe):
    """Hooks optimizers; what several of them train in one step counts as one.

    updates: how weights are compared before and after a step, or None to leave that out; several optimizers
    share its budget.  on_first_steps: called from within the optimizer's first few steps.  may_skip: whether
    a loss scaler is at work, which leaves out steps.  scale_of: what an optimizer's gradients are multiplied
    by at this moment, None once they are in true units.  book: knows the weights' names.  clipped_by: what
    may have clipped the gradients before the step where torch's own functions did not.
    """

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        catalog: Catalog,
        order: CallOrder,
        area: Area,
        updates: WeightUpdates | None,
        on_first_steps: Callable[[], None],
        may_skip: Callable[[], bool] = lambda: False,
        scale_of: Callable[[torch.optim.Optimizer], Tensor | None] = lambda optimizer: None,
        book: WeightBook | None = None,
        say_once: Callable[[str, str], None] = lambda key, text: None,
        clipped_by: str = "",
    ) -> None:
        self.is_sampled = False
        self._may_skip = may_skip
        self._scale_of = scale_of
        self._catalog = catalog
        self._order = order
        self._area = area
        self._on_first_steps = on_first_steps
        self._clipped_by = clipped_by
        self._say_once = say_once
        self._steps = 0
        self._book = book if book is not None else WeightBook(model, Standing())
        found = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
        self._budget_bytes = 0 if updates is None else updates.budget_bytes
        self._trained = {id(one): _Trained(one, _updates_for(updates, at)) for at, one in enumerate(found)}
        self._described: set[str] = set()
        self._handles: list[Any] = []
        self._clips = ClipWatch(self._before_clip, self._after_clip, area=area)
        self._places: dict[int, tuple[_Trained, Weight]] = {}
        self._check = StateCheck(say_once)
        self._prefix = ""
        self._point = ""
        self._clip_norms: list[Tensor] = []
        self._start_anew()

    def _start_anew(self) -> None:
        """What is read from here on belongs to the next step."""
        self._readout = Readout()
        is_local = bool(self._prefix)
        self._gradient_norm = RootOfSquares(self._prefix + "grad_norm", is_local=is_local)
        self._weight_norm = RootOfSquares(self._prefix + "param_norm", is_local=is_local)
        self._update_norm = RootOfSquares(self._prefix + "update_norm", is_local=is_local)
        self._zeros = ZeroShare("zero_grad_pct")
        self._check.close()
        self._clip_norms.clear()

    def begin(self, look: Look) -> None:
        """See Probe."""
        self.is_sampled = look.is_sampled

    def install(self) -> None:
        """Registers the hooks."""
        self._clips.install()
        # in a compiled step: one graph break for each hook, and not one for each thing it does
        disable: Any = torch.compiler.disable
        before, after = disable(self._before_step), disable(self._after_step)
        for trained in self._trained.values():
            self._handles += [
                trained.optimizer.register_step_pre_hook(before),
                trained.optimizer.register_step_post_hook(after),
            ]
            if getattr(trained.optimizer, "master_weights", None):
                # what is stored in low precision is then only a copy
                self._catalog.describe(config={"master_weights": True})

    def remove(self) -> None:
        """Takes the hooks off and lets the copies go."""
        self._clips.remove()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for trained in self._trained.values():
            trained.early.clear()
            trained.token = None
            if trained.updates is not None:
                trained.updates.clear()

    @property
    def has_readings(self) -> bool:
        """Whether the step under way has been measured."""
        return not self._readout.is_empty or any(trained.early for trained in self._trained.values())

    def collect(self, readout: Readout, row: Row) -> None:
        """Hands over what the hooks found.

        The gradients of a step that a scaler or the loop itself skipped are still there, or were read before
        clipping.
        """
        if not self._area.tripped:
            with self._area, torch.no_grad():
                for trained in self._trained.values():
                    if not trained.is_measured and (trained.early or self._may_skip()):
                        self._find_weights(trained)
                        self._take_gradients(trained, is_used=False)
        with self._area:
            self._add_norm_of_all()
            self._name_point(row.step)
        for trained in self._trained.values():
            trained.is_measured = False
            trained.early.clear()
        readout.join(self._readout)
        self._start_anew()

    def _before_clip(self, parameters: Sequence[Any], norm: Tensor | None) -> None:
        if self._area.tripped or is_capturing():
            return
        with self._area, torch.no_grad():
            for trained, weights in self._ours(parameters):
                if trained.is_measured:
                    continue
                if trained.early and trained.is_untouched():
                    seen = {id(weight) for reading in trained.early for weight in reading.weights}
                    weights = [weight for weight in weights if id(weight) not in seen]  # clipped twice
                else:
                    trained.early.clear()  # clipped after a micro-batch; the gradients have grown since
                if weights:
                    trained.early.append(self._read(trained, weights, self._scale_of(trained.optimizer)))
                if norm is not None and not hasattr(norm, "to_local") and norm.numel() == 1:
                    self._clip_norms.append(norm)

    def _after_clip(self, parameters: Sequence[Any]) -> None:
        if self._area.tripped:
            return
        with self._area:
            for trained in {id(t): t for t, _ in self._ours(parameters)}.values():
                trained.token = gradient_token(trained.weights)

    def _ours(self, parameters: Sequence[Any]) -> list[tuple[_Trained, list[Weight]]]:
        """Which of the parameters are trained by the optimizers that are watched, by optimizer."""
        for trained in self._trained.values():
            self._find_weights(trained)
        found: dict[int, tuple[_Trained, list[Weight]]] = {}
        for parameter in parameters:
            place = self._places.get(id(parameter))
            if place is not None:
                found.setdefault(id(place[0]), (place[0], []))[1].append(place[1])
        return list(found.values())

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Arguments | None:
        trained = self._trained.get(id(optimizer))
        if trained is None or self._area.tripped or trained.is_measured or is_capturing():
            return None  # an optimizer that steps twice is measured once
        changed = with_reading(args, kwargs, partial(self._read_step, trained))
        if changed is None:
            self._read_step(trained)
        return changed

    def _read_step(self, trained: _Trained) -> None:
        """The gradients are there and the weights are still the old ones."""
        with self._area, torch.no_grad():
            if self._steps < FIRST_STEPS:
                self._steps += 1
                self._on_first_steps()
            self._find_weights(trained)
            self._take_gradients(trained, is_used=True)
            if trained.updates is not None:
                trained.updates.before(trained.weights, is_sampled=self.is_sampled)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        trained = self._trained.get(id(optimizer))
        if trained is None or self._area.tripped or trained.is_measured or is_capturing():
            return
        trained.is_measured = True
        with self._area, torch.no_grad():
            if trained.updates is not None:
                trained.updates.after(self._readout, self._update_norm)
            if self.is_sampled:
                self._read_weight_norms(trained)
                self._check.read(trained.optimizer, trained.weights, self._readout)

    def _find_weights(self, trained: _Trained) -> None:
        """Brings the list of weights up to date; groups may be added or replaced while training runs."""
        if trained.weights and is_same(trained.weights, trained.optimizer):
            return
        new = [one for one in self._trained.values() if one is trained or not one.weights]
        for one in new:
            one.weights = self._book.weights_of(one.optimizer)
            one.is_one_device = len({weight.parameter.device for weight in one.weights}) <= 1
        self._places = {
            id(weight.parameter): (one, weight) for one in self._trained.values() for weight in one.weights
        }
        sizes = {key: total_bytes(one.weights) for key, one in self._trained.items()}
        whole = max(sum(sizes.values()), 1)
        for key, one in self._trained.items():
            if one.updates is not None:
                one.updates.budget_bytes = self._budget_bytes * sizes[key] // whole
        is_sharded = any(weight.is_sharded for one in self._trained.values() for weight in one.weights)
        if is_sharded and not self._prefix:
            self._prefix = "local_"
            self._start_anew()
        self._describe(weight for one in new for weight in one.weights)

    def _read(self, trained: _Trained, weights: Sequence[Weight], scale: Tensor | None) -> GradientReading:
        return read_gradients(
            weights, with_zeros=self.is_sampled, is_one_device=trained.is_one_device, scale=scale
        )

    def _take_gradients(self, trained: _Trained, *, is_used: bool) -> None:
        """The gradients of this step: as they were before clipping, or as they are.

        is_used: the optimizer is about to use them. What a step that is left out has clipped may be zeroed
        by now.
        """
        readings = [*trained.early]
        is_still = not trained.early or trained.is_untouched()
        if is_used and not is_still:
            trained.early.clear()  # they have grown since they were clipped
            readings.clear()
        rest = trained.unread() if is_used or is_still else ()
        if rest:
            # fused optimizers divide by the loss scale only inside their step
            scale = getattr(trained.optimizer, "grad_scale", None)
            late = self._read(trained, rest, scale if isinstance(scale, Tensor) else None)
            readings += [] if late.is_empty and late.is_whole else [late]
        for reading in readings:
            reading.hand_over(self._readout, self._gradient_norm, self._zeros)
            if not reading.is_whole:
                self._say_once("sparse", "a sparse gradient cannot be read; there is no grad_norm of all.")
        if any(not reading.is_empty for reading in readings) and not self._point.startswith("before"):
            self._point = BEFORE_CLIPPING if trained.early else f"at optimizer.step{self._clipped_by}"
        trained.early.clear()

    def _add_norm_of_all(self) -> None:
        """Where a rank has a part, the norm the gradients were clipped by may be that of the whole."""
        if self._prefix and self._clip_norms and all(n is self._clip_norms[0] for n in self._clip_norms):
            self._readout.add(self._clip_norms[0], partial(_norm_of_all, self._prefix + "grad_norm"))

    def _name_point(self, step: int) -> None:
        if self._point:
            known = self._catalog.info().config.get("grad_norm_point")
            if known is None:
                self._catalog.describe(config={"grad_norm_point": self._point})
            elif known != self._point:
                self._catalog.describe(config={"grad_norm_point_later": f"from step {step}: {self._point}"})

    def _read_weight_norms(self, trained: _Trained) -> None:
        found = [(w, v) for w in trained.weights if (v := local_values(w.parameter)) is not None]
        values = [v for _, v in found]
        for indices in places_of(values, is_one_device=trained.is_one_device):
            shares = np.array([found[i][0].share for i in indices])
            self._readout.add(norms_of([values[i] for i in indices]), self._weight_norm.part(shares))

    def _describe(self, weights: Iterable[Weight]) -> None:
        facts: dict[str, dict[str, Any]] = {}
        for weight in weights:
            if weight.tensor is None or weight.tensor in self._described:
                continue
            self._described.add(weight.tensor)
            known: dict[str, Any] = {"call_order": self._order.of(weight.tensor.rpartition("/")[0])}
            fmt = format_of(weight.parameter.dtype)
            if fmt is not None:
                known["format"] = fmt
            if weight.is_sharded and weight.replicas != 1:
                known["replicas"] = weight.replicas
            facts[weight.tensor] = known
        if facts:
            self._catalog.describe_tensors(facts)


def _updates_for(updates: WeightUpdates | None, at: int) -> WeightUpdates | None:
    if updates is None or at == 0:
        return updates
    return WeightUpdates(budget_bytes=updates.budget_bytes, turn_steps=updates.turn_steps)


def _norm_of_all(part: str, values: NDArray[np.float64], row: Row) -> None:
    """Writes ``grad_norm``. A norm of another order would be smaller than that of the part alone."""
    own = row.scalars.get(part)
    if own is not None and not values[0] < own * (1.0 - 1e-3):
        row.scalars.setdefault("grad_norm", float(values[0]))

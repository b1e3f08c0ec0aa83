"""Current scaling of Transformer Engine 2.2 to 2.15: amax and scale of each tensor's last cast, every step.

Those versions keep both as one-element tensors on the quantizer; from 2.16 on they are temporaries of the C++
code and only the debug API shows them. A quantizer's pair is meant once its tensor was cast, so it is read
where the package ends a pass of a direction, which it does for all recipes in the same function that updates
delayed scaling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from floatscope.catalog import Catalog
from floatscope.guard import Area
from floatscope.look import Look
from floatscope.probes.naming import CallOrder
from floatscope.probes.patch import Patch
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.statistics import block_of
from floatscope.probes.te_recipe import format_names, meta_of, recipe_name
from floatscope.probes.te_slots import Slot, expert_rank_of, slots_of
from floatscope.probes.transformer_engine import HOOKED, real_manager
from floatscope.rows import Row

_KEYS = {True: "scaling_fwd", False: "scaling_bwd"}


def find_current_scaling(scene: Scene) -> Iterable[Probe]:
    """The probe, where the model has modules of the package; it finds out in each pass whether it applies."""
    manager = real_manager()
    layers = {m: layer for m, layer in scene.layers.items() if hasattr(m, "quantizers")}
    if manager is None or not hasattr(manager, HOOKED) or not layers:
        return []
    area = scene.guard.area("current scaling", loses="amax and scale of currently scaled tensors")
    return [CurrentScaling(manager, layers, scene.catalog, scene.order, area, expert_rank_of(scene))]


class CurrentScaling(Probe):
    """Reads the quantizers of one model's modules."""

    def __init__(
        self,
        manager: Any,
        layers: Mapping[nn.Module, str],
        catalog: Catalog,
        order: CallOrder,
        area: Area,
        expert_rank: int,
    ) -> None:
        self._manager = manager
        self._layers = layers
        self._catalog = catalog
        self._order = order
        self._area = area
        self._expert_rank = expert_rank
        self._patch: Patch | None = None
        self._read_of: dict[tuple[bool, tuple[str, ...]], tuple[Tensor, Tensor]] = {}
        self._met: set[str] = set()
        self._plans: dict[bool, list[tuple[str, Any, int]]] = {}

    def install(self) -> None:
        """Observes the end of each pass."""
        self._patch = Patch(self._manager, HOOKED, before=self._before)

    def begin(self, look: Look) -> None:
        """On sampled steps looks up again which quantisers keep what is read."""
        if look.is_sampled:
            self._plans.clear()

    @property
    def has_readings(self) -> bool:
        """Whether a pass of the step under way has ended."""
        return bool(self._read_of)

    def _before(self, *args: Any, **kwargs: Any) -> None:
        """Called with the arguments of ``reduce_and_update_fp8_tensors``."""
        if self._area.tripped:
            return
        with self._area, torch.no_grad():
            self._read(bool(args[0] if args else kwargs.get("forward", True)))

    def _read(self, forward: bool) -> None:
        plan = self._plans.get(forward)
        if plan is None:
            plan = self._plans[forward] = list(self._plan(forward))
        if not plan:
            return
        key = _KEYS[forward]
        quantizers = [module.quantizers[key][index] for _, module, index in plan]
        amaxes: list[Any] = [getattr(quantizer, "amax", None) for quantizer in quantizers]
        scales: list[Any] = [getattr(quantizer, "scale", None) for quantizer in quantizers]
        if any(part is None for part in amaxes):
            del self._plans[forward]  # another recipe from here on; looked up again at the next pass
            return
        if amaxes[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return
        names = tuple(name for name, _, _ in plan)
        amax, scale = torch.cat(amaxes), torch.cat(scales)  # each of shape (1,)
        before = self._read_of.get((forward, names))
        if before is not None:  # several passes in a step: the largest amax, the last scale
            amax = torch.fmax(before[0], amax)
        self._read_of[forward, names] = amax, scale

    def _plan(self, forward: bool) -> Iterator[tuple[str, Any, int]]:
        """Tensor, module and place of the quantisers that keep amax and scale and are in use.

        Quantisers are made anew now and then. Outputs and grad_inputs are cast only on request.
        """
        for module, layer in self._layers.items():
            kept: Any = getattr(module, "quantizers", None)
            quantizers = kept.get(_KEYS[forward]) if isinstance(kept, dict) else None
            recipe = meta_of(module, "recipe") if quantizers else None
            if not quantizers or recipe_name(recipe) != "fp8_current_scaling":
                continue
            count = len(quantizers)
            slots = slots_of(module, layer, forward=forward, count=count, expert_rank=self._expert_rank)
            for index, slot in slots.items():
                if not slot.is_optional and _keeps_both(quantizers[index]):
                    self._describe(slot, format_names(recipe)[0 if forward else 1], layer)
                    yield slot.name, module, index

    def _describe(self, slot: Slot, fmt: str | None, layer: str) -> None:
        if slot.name not in self._met:
            self._met.add(slot.name)
            facts: dict[str, Any] = {"call_order": self._order.of(layer)}
            if fmt is not None:
                facts["format"] = fmt
            self._catalog.describe_tensors({slot.name: facts}, override=True)

    def collect(self, readout: Readout, row: Row) -> None:
        """Hands the step's passes to the readout."""
        found, self._read_of = self._read_of, {}
        for (_, names), (amax, scale) in found.items():
            readout.add(torch.cat([amax, scale]), partial(_into_block, names))

    def remove(self) -> None:
        """Stops observing."""
        if self._patch is not None:
            self._patch.remove()
            self._patch = None


def _keeps_both(quantizer: Any) -> bool:
    parts = (getattr(quantizer, "amax", None), getattr(quantizer, "scale", None))
    return all(isinstance(part, Tensor) and part.shape == (1,) for part in parts)


def _into_block(names: tuple[str, ...], values: NDArray[np.float64], row: Row) -> None:
    amax, scale = values.reshape(2, -1)
    row.blocks.append(block_of(names, {"amax": amax, "scale": scale}, {}))

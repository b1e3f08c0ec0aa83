"""State tap for delayed scaling: amax and the scale used of all layers, in a few kernels per pass.

Transformer Engine ends each pass of a direction in ``FP8GlobalStateManager.reduce_and_update_fp8_tensors``,
which reduces the amaxes over ranks, rolls the histories and sets new scales. Just before, the open row of the
histories holds this rank's amaxes and the scales are those the casts have used. So the tap wraps that
function and joins what the global buffers list. It keeps no reference to scale or amax tensors: they are
reallocated when a history changes its length or a checkpoint is loaded.

It hooks the function, not the place it is called from: versions call it at the end of the outermost context,
from a module's backward, from a graphed backward, or at the end of the autograd task. Operations of
``te.ops`` register in the same buffers. Versions before 2.0 have the state in a tensor struct and a buffer of
inverse scales beside it; the two buffers that are read are the same.

The bundled trainer's emulation keeps its state in the same shape and names its manager on each module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from floatscope.catalog import Catalog
from floatscope.guard import Area
from floatscope.look import Look
from floatscope.probes.naming import CallOrder, in_backward
from floatscope.probes.patch import Patch
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.statistics import block_of
from floatscope.probes.te_recipe import format_names, meta_of
from floatscope.probes.te_slots import Slot, expert_rank_of, slots_of
from floatscope.protocol.formats import FORMATS
from floatscope.rows import Row

HOOKED = "reduce_and_update_fp8_tensors"
_RESET = "reset"  # empties the buffers; modules register anew, in an order of their own
_MODULES = ("transformer_engine.pytorch.fp8", "transformer_engine.pytorch.quantization")


def managers_of(layers: Mapping[nn.Module, str]) -> list[Any]:
    """The manager classes of a model's FP8 modules; Transformer Engine has one per process."""
    found: dict[int, Any] = {}
    for module in layers:
        if not hasattr(module, "fp8_meta") and not hasattr(module, "_fp8_metas"):
            continue
        manager = getattr(module, "fp8_global_state", None) or real_manager()
        if manager is not None and hasattr(manager, HOOKED):
            found[id(manager)] = manager
    return list(found.values())


def real_manager() -> Any:
    """Transformer Engine's manager, if the process has imported it; never imported by us."""
    for name in _MODULES:
        manager = getattr(sys.modules.get(name), "FP8GlobalStateManager", None)
        if manager is not None:
            return manager
    return None


def find_state_taps(scene: Scene) -> Iterable[Probe]:
    """A tap for each manager of the model's FP8 modules."""
    managers = managers_of(scene.layers)
    if real_manager() in managers:
        scene.catalog.describe(recipe={"saturating_cast": True})  # its kernels cast with satfinite
    area = scene.guard.area("FP8 state tap", loses="amax and scale of FP8 tensors")
    expert_rank = expert_rank_of(scene)
    return [
        StateTap(
            manager,
            scene.layers,
            catalog=scene.catalog,
            order=scene.order,
            area=area,
            expert_rank=expert_rank,
        )
        for manager in managers
    ]


@dataclass
class _Pass:
    """What the passes of one step have left under one buffer key.

    amax, reach: largest amax and largest amax * scale of any pass, [slots].  scale: of the last pass.
    """

    amax: Tensor
    reach: Tensor
    scale: Tensor
    passes: int


class StateTap(Probe):
    """Taps one manager for one model."""

    def __init__(
        self,
        manager: Any,
        layers: Mapping[nn.Module, str],
        *,
        catalog: Catalog,
        order: CallOrder,
        area: Area,
        expert_rank: int = 0,
    ) -> None:
        self._manager = manager
        self._expert_rank = expert_rank
        self._layers = layers
        self._catalog = catalog
        self._order = order
        self._area = area
        self._patches: list[Patch] = []
        self._passes: dict[str, _Pass] = {}
        self._forward: set[str] = set()  # keys of forward passes that ended outside the backward pass
        self._tables: dict[str, _Table] = {}

    def install(self) -> None:
        """Wraps the manager's functions."""
        self._patches.append(Patch(self._manager, HOOKED, before=self._before))
        if hasattr(self._manager, _RESET):
            self._patches.append(Patch(self._manager, _RESET, before=self._forget))

    def begin(self, look: Look) -> None:
        """On sampled steps looks up again which column belongs to which module."""
        if look.is_sampled:
            self._tables.clear()

    def _forget(self, *args: Any, **kwargs: Any) -> None:
        self._tables.clear()

    def remove(self) -> None:
        """Puts the functions back."""
        for patch in self._patches:
            patch.remove()
        self._patches.clear()

    @property
    def has_readings(self) -> bool:
        """Whether a pass of the step under way has ended."""
        return bool(self._passes)

    @property
    def passes(self) -> int:
        """Passes of the step under way."""
        return max((found.passes for found in self._passes.values()), default=0)

    def _before(self, *args: Any, **kwargs: Any) -> None:
        """Called with the arguments of ``reduce_and_update_fp8_tensors``, before it."""
        if self._area.tripped:
            return
        with self._area, torch.no_grad():
            forward = bool(args[0] if args else kwargs.get("forward", True))
            self._read(forward)

    def _read(self, forward: bool) -> None:
        state = getattr(self._manager, "quantization_state", self._manager)  # an object since 2.15
        prefix = "forward_" if forward else "backward_"
        for key, amaxes in state.global_amax_buffer.items():
            if not key.startswith(prefix) or not amaxes:
                continue
            if forward and self._is_recomputed(key):
                continue
            if amaxes[0].is_cuda and torch.cuda.is_current_stream_capturing():
                continue  # inside a graph nothing of ours may be recorded by accident
            amax = torch.cat(list(amaxes))
            scale = torch.cat(list(state.global_scale_buffer[key]))
            if amax.shape != scale.shape:
                continue  # the lists disagree: the package is between two states
            reach = amax * scale
            found = self._passes.get(key)
            if found is not None and found.amax.shape == amax.shape:
                amax = torch.fmax(found.amax, amax)
                reach = torch.fmax(found.reach, reach)
            passes = found.passes + 1 if found is not None else 1
            self._passes[key] = _Pass(amax, reach, scale, passes)

    def _is_recomputed(self, key: str) -> bool:
        """Whether a forward pass ends for the second time.

        Activation recomputation ends one inside the backward pass, with the scales that the first one has
        set already and without an amax of its own. A pass that ends nowhere else counts there: its first run
        was without gradients, which ends no pass.
        """
        if in_backward():
            return key in self._forward
        self._forward.add(key)
        return False

    def collect(self, readout: Readout, row: Row) -> None:
        """Hands the step's passes to the readout."""
        passes, self._passes = self._passes, {}
        self._forward.clear()
        for key, found in passes.items():
            table = self._table(key, int(found.amax.numel()))
            if table is None:
                continue
            vectors = torch.cat([found.amax, found.scale, found.reach])
            readout.add(vectors, table.consumer(with_sat=found.passes > 1))

    def _table(self, key: str, count: int) -> _Table | None:
        """The tensors behind the key's columns; looked up again when a module joined or changed its size."""
        table = self._tables.get(key)
        if table is None or table.count != count:
            table = self._tables[key] = self._resolve(key, count)
        return table if table.columns.size else None

    def _resolve(self, key: str, count: int) -> _Table:
        state = getattr(self._manager, "quantization_state", self._manager)
        sizes = [int(scale.numel()) for scale in state.global_scale_buffer[key]]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        forward = key.startswith("forward_")
        columns: dict[int, Slot] = {}
        facts: dict[str, dict[str, Any]] = {}
        for module, layer in self._layers.items():
            position = _position(module, key, forward=forward)
            if position is None or position >= len(sizes):
                continue
            fmt = format_names(meta_of(module, "recipe", forward=forward))[0 if forward else 1]
            for index, slot in slots_of(
                module, layer, forward=forward, count=sizes[position], expert_rank=self._expert_rank
            ).items():
                columns[int(starts[position]) + index] = slot
                facts[slot.name] = {"call_order": self._order.of(layer)}
                if fmt is not None:
                    facts[slot.name]["format"] = fmt
        used = {name: fact for name, fact in facts.items() if not _is_optional(columns.values(), name)}
        self._catalog.describe_tensors(used, override=True)
        return _Table(count, columns, facts, self._catalog)


class _Table:
    """Columns of a buffer key that belong to the model."""

    def __init__(
        self, count: int, slots: Mapping[int, Slot], facts: Mapping[str, Mapping[str, Any]], catalog: Catalog
    ) -> None:
        self.count = count
        order = sorted(slots)
        self.columns = np.array(order, np.intp)
        self._names = tuple(slots[i].name for i in order)
        self._is_optional = np.array([slots[i].is_optional for i in order], bool)
        limits = [
            FORMATS[str(facts[n]["format"])].max_finite if "format" in facts[n] else np.nan
            for n in self._names
        ]
        self._limits = np.array(limits)
        self._facts = facts
        self._catalog = catalog
        self._met: set[str] = set()

    def consumer(self, *, with_sat: bool) -> Any:
        """Turns [amax, scale, amax * scale] of all columns into a block.  with_sat: of several passes."""

        def consume(values: NDArray[np.float64], row: Row) -> None:
            amax, scale, reach = values.reshape(3, self.count)[:, self.columns]
            is_unused = self._is_optional & (amax == 0) & (scale == 1)
            keep = np.flatnonzero(~is_unused)
            self._announce(keep)
            found = {"amax": amax[keep], "scale": scale[keep]}
            present = {}
            if with_sat:
                found["sat"] = reach[keep] / self._limits[keep]
                present["sat"] = ~np.isnan(self._limits[keep])
            names = self._names if len(keep) == len(self._names) else tuple(self._names[i] for i in keep)
            if names:
                row.blocks.append(block_of(names, found, present))

        return consume

    def _announce(self, keep: NDArray[np.intp]) -> None:
        """Describes optional tensors once they are in use."""
        new = {self._names[i] for i in keep if self._is_optional[i]} - self._met
        if new:
            self._met |= new
            self._catalog.describe_tensors({name: self._facts[name] for name in new}, override=True)


def _is_optional(slots: Any, name: str) -> bool:
    return any(slot.is_optional for slot in slots if slot.name == name)


def _position(module: Any, key: str, *, forward: bool) -> int | None:
    """Where the module stands in the list of a buffer key.

    The module says ``[fwd_pos, fwd_key, bwd_pos, bwd_key]``, its keys with or without the direction; an
    operation says ``[pos, key]`` per direction.
    """
    where: Sequence[Any] = meta_of(module, "buffer_index_and_autocast_key", forward=forward) or ()
    prefix = "forward_" if forward else "backward_"
    for index in range(0, len(where) - 1, 2):
        position, own_key = where[index], where[index + 1]
        is_plain = not str(own_key).startswith(("forward_", "backward_"))
        if own_key == key or (is_plain and prefix + str(own_key) == key and forward == (index == 0)):
            return int(position)
    return None

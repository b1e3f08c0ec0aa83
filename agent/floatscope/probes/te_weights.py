"""Scales of Transformer Engine's quantised weights, read on sampled steps without the debug API.

A weight is quantised in itself under ``quantized_model_init`` (``fp8_model_init`` up to 2.8), or it has a
quantised copy in the module's ``_fp8_workspaces`` where micro-batches share one (``is_first_microbatch``).
Nothing is dequantised: a scale is read, and amax where it follows from the scale.
"""

from __future__ import annotations

import re
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
from floatscope.probes.naming import CallOrder, first_expert, weight_tensor
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.statistics import block_of
from floatscope.probes.te_inspect import is_transformer_engine
from floatscope.probes.te_recipe import format_names, meta_of, other_recipes, recipe_name
from floatscope.probes.te_scales import Scales, is_quantised, scales_of, smallest
from floatscope.probes.te_slots import expert_rank_of, slots_of
from floatscope.protocol.formats import FORMATS
from floatscope.rows import Row

_EXPERT = re.compile(r"weight(\d+)")
_ALL = 2**31  # columns: as many as the module has GEMMs


def find_quantised_weights(scene: Scene) -> Iterable[Probe]:
    """The probe, where the model has modules of the package."""
    layers = {
        module: layer
        for module, layer in scene.layers.items()
        if is_transformer_engine(module) or hasattr(module, "_fp8_metas")
    }
    area = scene.guard.area("quantised weights", loses="scales of quantised weights")
    if not layers:
        return []
    return [QuantisedWeights(layers, scene.catalog, scene.order, area, expert_rank_of(scene))]


class QuantisedWeights(Probe):
    """Reads the scales of one model's quantised weights."""

    def __init__(
        self,
        layers: Mapping[nn.Module, str],
        catalog: Catalog,
        order: CallOrder,
        area: Area,
        expert_rank: int,
    ) -> None:
        self._layers = layers
        self._catalog = catalog
        self._order = order
        self._area = area
        self._expert_rank = expert_rank
        self._look = Look()
        self._met: set[str] = set()
        self._is_described = False

    def begin(self, look: Look) -> None:
        """See Probe."""
        self._look = look

    def collect(self, readout: Readout, row: Row) -> None:
        """Reads the weights of the layers that are looked at."""
        if self._look.is_idle or self._area.tripped:
            return
        with self._area, torch.no_grad():
            self._describe_recipes()
            groups: dict[torch.device, list[tuple[str, Tensor, Tensor | None]]] = {}
            for module, layer in self._layers.items():
                for name, weight in _weights(module, layer, expert_rank=self._expert_rank):
                    if not self._look.wants(name.rpartition("/")[0]):
                        continue
                    found = scales_of(weight)
                    if found is not None and not found.scale.is_meta:
                        self._describe(name, layer, found)
                        amax = _amax(found, meta_of(module, "recipe"), weight)
                        group = groups.setdefault(found.scale.device, [])
                        group.append((name, smallest(found).reshape(1), amax))
            for weights in groups.values():
                _add(weights, readout)

    def _describe_recipes(self) -> None:
        """Once FP8 has run: tensors of layers with another recipe than most say so in their description."""
        if self._is_described or all(meta_of(module, "recipe") is None for module in self._layers):
            return
        self._is_described = True
        others = other_recipes(self._layers)
        found: dict[str, dict[str, Any]] = {}
        for module, layer in self._layers.items():
            if layer not in others:
                continue
            formats = format_names(meta_of(module, "recipe"))
            for forward, fmt in zip((True, False), formats, strict=True):
                for slot in slots_of(
                    module, layer, forward=forward, count=_ALL, expert_rank=self._expert_rank
                ).values():
                    if not slot.is_optional:
                        facts = {"recipe": others[layer]}
                        found[slot.name] = facts if fmt is None else {**facts, "format": fmt}
        self._catalog.describe_tensors(found, override=True)

    def _describe(self, name: str, layer: str, found: Scales) -> None:
        if name not in self._met:
            self._met.add(name)
            facts = {"format": found.fmt, "call_order": self._order.of(layer)}
            self._catalog.describe_tensors({name: facts}, override=True)


def _weights(module: nn.Module, layer: str, *, expert_rank: int) -> Iterator[tuple[str, Any]]:
    """Quantised weights of one module by tensor name: parameters, else their cached copies."""
    copies = getattr(module, "_fp8_workspaces", None)
    copies = copies if isinstance(copies, dict) else {}
    for leaf, parameter in module._parameters.items():
        weight: Any = getattr(parameter, "_local_tensor", parameter)  # of a DTensor
        if not is_quantised(weight):
            weight = copies.get(leaf)
        if parameter is None or not is_quantised(weight):
            continue
        expert = _EXPERT.fullmatch(leaf)
        if expert is not None and expert_rank:
            count = int(getattr(module, "num_gemms", 1))
            leaf = f"weight{int(expert[1]) + first_expert(count, expert_rank)}"
        name = weight_tensor(f"{layer}.{leaf}", parameter)
        if name is not None:
            yield name, weight


def _amax(found: Scales, recipe: Any, weight: Any) -> Tensor | None:
    """NVFP4 keeps it; under current scaling it is max / scale, unless scales are rounded to powers of 2."""
    if found.amax is not None:
        return found.amax.reshape(1)
    if recipe_name(recipe) != "fp8_current_scaling" or found.scale.numel() != 1:
        return None
    quantizer = getattr(weight, "_quantizer", None)
    if getattr(quantizer, "force_pow_2_scales", True):
        return None
    return FORMATS[found.fmt].max_finite / found.scale.reshape(1)


def _add(weights: list[tuple[str, Tensor, Tensor | None]], readout: Readout) -> None:
    names = tuple(name for name, _, _ in weights)
    has_amax = np.array([amax is not None for _, _, amax in weights], bool)
    scales = torch.cat([scale for _, scale, _ in weights])
    amaxes = torch.cat([scale if amax is None else amax for _, scale, amax in weights])
    readout.add(torch.cat([scales, amaxes]), partial(_into_block, names, has_amax))


def _into_block(
    names: tuple[str, ...], has_amax: NDArray[np.bool_], values: NDArray[np.float64], row: Row
) -> None:
    scale, amax = values.reshape(2, -1)
    row.blocks.append(block_of(names, {"scale": scale, "amax": amax}, {"amax": has_amax}))

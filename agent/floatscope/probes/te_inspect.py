"""Whole tensors of Transformer Engine's layers on looked-at steps, through its debug API.

The package calls the feature FloatscopeStats (``te_features``) at every cast of a layer that the feature
asked for; between those steps the layer runs its normal, fused path. This is the one source that has
statistics for recipes without state: current scaling, block scaling, MXFP8, NVFP4.

A looked-at step takes the package's debug path: casts and norms are not fused there, so the last bits of its
results may differ from the fused kernels'. The scalar ``te_inspected`` marks such steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn

from floatscope.guard import Area, Guard
from floatscope.look import Look
from floatscope.probes.naming import format_of, in_backward
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.te_layers import DebugNames
from floatscope.probes.te_recipe import is_stateless, meta_of
from floatscope.probes.te_scales import dequantised, is_cast_of, is_quantised, scales_of
from floatscope.probes.te_slots import expert_rank_of
from floatscope.probes.te_watchers import Watchers, debug_manager, feature_watchers, is_debug_on
from floatscope.probes.tensor_stats import TensorStats
from floatscope.rows import Row

_ROLES = {"activation": "input", "weight": "weight", "gradient": "grad_output"}
_NEXT = "next_iter_when_debug_should_be_run"
_MOST_CACHED = 20_000  # entries of the package's cache of calls, which it never empties
_QUIET_STEPS = 2  # steps in which nobody moved the package's step counter, after which the probe does

HOW = (
    "call floatscope.te_debug() before the first Transformer Engine module is built (it needs "
    "pip install nvdlfw-inspect)"
)


def find_debug_feature(scene: Scene) -> Iterable[Probe]:
    """The probe of the debug API, where the model has Transformer Engine modules."""
    layers = {m: layer for m, layer in scene.layers.items() if is_transformer_engine(m)}
    if not layers or scene.config.te_inspect is False:
        return []
    area = scene.guard.area("Transformer Engine inspection", loses="statistics of whole FP8 tensors")
    names = DebugNames(layers, expert_rank=expert_rank_of(scene))
    watchers = feature_watchers() if is_debug_on() else None
    return [
        Inspection(
            scene.stats,
            layers,
            names,
            watchers,
            area,
            guard=scene.guard,
            is_wanted=scene.config.te_inspect is True,
        )
    ]


def is_transformer_engine(module: Any) -> bool:
    """Whether it is one of the package's modules; those of other managers keep ``fp8_meta`` too."""
    return isinstance(getattr(module, "fp8_meta", None), dict) and not hasattr(module, "fp8_global_state")


class Inspection(Probe):
    """One monitor's part in the feature.

    watchers: of the loaded feature; None if the debug API is not in use, which is then said once it matters.
    """

    def __init__(
        self,
        stats: TensorStats,
        layers: Mapping[nn.Module, str],
        names: DebugNames,
        watchers: Watchers | None,
        area: Area,
        *,
        guard: Guard,
        is_wanted: bool,
    ) -> None:
        self._stats = stats
        self._layers = layers
        self._names = names
        self._watchers = watchers
        self._area = area
        self._guard = guard
        self._is_wanted = is_wanted
        self._look = Look()
        self._count: int | None = None
        self._quiet = 0
        self._has_seen = False
        self._is_told = False

    def install(self) -> None:
        """Joins the feature."""
        if self._watchers is not None:
            self._watchers.add(self)

    def begin(self, look: Look) -> None:
        """Moves the package's step counter on, if nobody else does, and has layers asked again."""
        self._look = look
        manager = debug_manager()
        if self._watchers is None or manager is None or self._area.tripped:
            return
        with self._area:
            count = self._advance(manager)
            if look.is_idle:
                return
            _trim_cache()
            self._names.look_up()
            for owner in self._names.owners:
                if look.wants(owner.layer):
                    _ask_again(owner.module, count)

    def _advance(self, manager: Any) -> int:
        """The package's step counter, which ``debug_api.step()`` moves.

        A loop that calls it has moved it since the last step. If nobody did for some steps, it is set from
        here: layers ask the feature once per value. Setting it starts no statistics of other features, which
        use collectives.
        """
        count = int(manager._trainer_iteration_count)
        self._quiet = self._quiet + 1 if count == self._count else 0
        if self._quiet >= _QUIET_STEPS:
            count += 1
            manager.initialize_training_step(count)
        self._count = count
        return count

    def wants(self, name: str) -> bool:
        """See Watcher."""
        if self._look.is_idle or self._area.tripped:
            return False
        with self._area:
            return any(self._look.wants(owner.layer) for owner in self._names.find(name))
        return False

    def see(self, name: str, kind: str, tensor: Any, quantised: Any, quantizer: Any) -> None:
        """See Watcher."""
        if self._look.is_idle or self._area.tripped:
            return
        with self._area:
            owner = self._names.owner(name, quantizer)
            role = _ROLES.get(kind)
            if (
                owner is None
                or role is None
                or not owner.module.training
                or not self._look.wants(owner.layer)
            ):
                return
            self._has_seen = True
            if tensor is None or is_quantised(tensor):
                return  # quantised before it came here: there is nothing to compare with
            self._measure(owner.layer, role, tensor, quantised)

    def _measure(self, layer: str, role: str, tensor: Any, quantised: Any) -> None:
        once = role == "weight" or (role == "input" and in_backward())
        found = scales_of(quantised) if is_quantised(quantised) else None
        if found is None or not is_cast_of(quantised, found, tensor):
            is_plain = type(quantised) is type(tensor)  # the layer or this product is kept out of FP8
            fmt = format_of(tensor.dtype) if is_plain else None  # versions before 2.7 show no cast tensor
            self._stats.measure(layer, role, tensor, fmt=fmt, once=once, is_cast=not is_plain)
            return
        used = partial(dequantised, quantised, found)
        self._stats.measure(layer, role, tensor, used=used, scale=found.scale, fmt=found.fmt, once=once)

    def collect(self, readout: Readout, row: Row) -> None:
        """Marks a step of the debug path; says once what statistics a recipe without state lacks."""
        if self._has_seen:
            row.scalars["te_inspected"] = 1.0
        elif not self._is_told and self._look.is_sampled:
            self._say_what_is_missing()
        self._has_seen = False

    def _say_what_is_missing(self) -> None:
        recipes = [recipe for recipe in (meta_of(m, "recipe") for m in self._layers) if recipe is not None]
        if not recipes:
            return  # nothing has run in FP8 yet
        self._is_told = True
        if not self._is_wanted and not any(is_stateless(recipe) for recipe in recipes):
            return
        if self._watchers is not None:
            text = (
                "Transformer Engine's debug API is on, but its configuration has no layer of this model "
                "under FloatscopeStats; see docs/probes.md."
            )
        elif debug_manager() is not None and is_debug_on():
            text = (
                "Transformer Engine's debug API is on without floatscope's feature: add "
                "floatscope.probes.te_features.directory() to feature_dirs and FloatscopeStats to the "
                f"configuration, or {HOW}."
            )
        elif not any(is_stateless(recipe) for recipe in recipes):
            text = f"te_inspect=True, but Transformer Engine's debug API is off. To have it on, {HOW}."
        else:
            text = (
                "this recipe of Transformer Engine keeps no amax and no scale, so those and underflow, NaN "
                f"and SQNR of FP8 tensors are missing. To have them, {HOW}."
            )
        self._guard.say_once("te debug", text)

    def remove(self) -> None:
        """Leaves the feature."""
        if self._watchers is not None:
            self._watchers.discard(self)
            self._watchers = None


def _ask_again(module: Any, iteration: int) -> None:
    """Has the layer ask its features from ``iteration`` on, unless it does so earlier."""
    if _NEXT in module.__dict__:
        planned = module.__dict__[_NEXT]
        module.__dict__[_NEXT] = iteration if planned is None else min(planned, iteration)


def _trim_cache() -> None:
    """Empties the package's cache of calls, which has an entry per layer, tensor and step."""
    registry = getattr(sys.modules.get("nvdlfw_inspect.registry"), "Registry", None)
    api = getattr(getattr(registry, "data", {}).get("transformer_engine"), "api", None)
    cache = getattr(api, "__dict__", {}).get("_api_cache")
    if isinstance(cache, dict) and len(cache) > _MOST_CACHED:
        cache.clear()
    logger = getattr(sys.modules.get("nvdlfw_inspect.logging"), "LOGGER", None)
    for name in ("logged_api_encountered", "logged_api_executed"):
        said = getattr(logger, name, None)
        if isinstance(said, set) and len(said) > _MOST_CACHED:
            said.clear()

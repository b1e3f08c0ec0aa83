"""All probes of a torch training loop as one: found, installed in the right order, collected, removed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.capture import Keeper
from floatscope.catalog import Catalog
from floatscope.config import MonitorConfig
from floatscope.guard import Guard
from floatscope.look import GLANCE, Look
from floatscope.probes.batch_keeper import keep_batch, keep_random
from floatscope.probes.casts import probe_casts
from floatscope.probes.coordinates import find_coordinates
from floatscope.probes.deepspeed import find_deepspeed
from floatscope.probes.gpu import GpuProbe
from floatscope.probes.hashes import find_hashes
from floatscope.probes.inputs import InputCheck, vocabulary_of
from floatscope.probes.lanes import Lanes
from floatscope.probes.layer_hooks import find_inspectors, find_plain_layers
from floatscope.probes.naming import CallOrder, layers_of
from floatscope.probes.optimizer import find_optimizer
from floatscope.probes.plain_kinds import casts_itself
from floatscope.probes.probe import Finder, Probe, Scene
from floatscope.probes.readout import Reading, Readout
from floatscope.probes.te_current import find_current_scaling
from floatscope.probes.te_inspect import find_debug_feature
from floatscope.probes.te_recipe import PLAIN_RECIPES, recipe_of
from floatscope.probes.te_weights import find_quantised_weights
from floatscope.probes.tensor_stats import TensorStats
from floatscope.probes.torchao_float8 import find_float8_layers
from floatscope.probes.transformer_engine import find_state_taps
from floatscope.rows import Row

FINDERS: tuple[tuple[Finder, str, str], ...] = (
    (find_inspectors, "finding layers that tell what they cast", "statistics of whole tensors"),
    (find_plain_layers, "finding plain layers", "statistics of plain layers"),
    (find_float8_layers, "finding torchao layers", "statistics of torchao's FP8 tensors"),
    (find_debug_feature, "finding Transformer Engine's debug API", "statistics of whole FP8 tensors"),
    # after what measures tensors: where two give the same statistic, what the recipe itself has seen wins
    (find_quantised_weights, "finding quantised weights", "scales of quantised weights"),
    (find_current_scaling, "finding current scaling", "amax and scale of FP8 tensors"),
    (find_state_taps, "finding FP8 state", "amax and scale of FP8 tensors"),
    (find_deepspeed, "finding DeepSpeed", "its loss_scale, skipped_steps and gradient norm"),
    (find_optimizer, "finding the optimizer", "gradient norms, weight updates and loss_scale"),
    (find_coordinates, "finding the rank's place", "the rank's coordinates"),
    (find_hashes, "finding what ranks share", "the comparison of ranks by hash"),
)
"""Every kind of probe, in the order in which they are installed and collected, with what is lost without."""


class TorchProbes:
    """All probes of one monitor (see ``probes.ProbeSet``)."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        config: MonitorConfig,
        *,
        guard: Guard,
        catalog: Catalog,
        gpu: GpuProbe | None,
    ) -> None:
        self._guard = guard
        self._catalog = catalog
        self._gpu = gpu
        self._order = CallOrder()
        self._readout = Readout()
        self._lanes = Lanes()
        self._reading = guard.area("reading the step", loses="statistics of some steps")
        self._stats = TensorStats(
            catalog=catalog, order=self._order, guard=guard, check_format=config.check_format
        )
        self._is_first = True
        self._inputs = InputCheck(
            catalog=catalog, area=guard.area("input check", loses="facts about the batches")
        )
        scene = Scene(model, optimizer, config, {}, self._order, catalog, self._stats, guard)
        with guard.area("finding layers", loses="statistics of layers and tensors"):
            layers = layers_of(
                model,
                refuse=lambda why: guard.say_once("layers", f"left out: {why}."),
                layer_offset=config.layer_offset,
            )
            scene = Scene(model, optimizer, config, layers, self._order, catalog, self._stats, guard)
            self._order.install(layers)
            catalog.describe(vocab_size=vocabulary_of(model))
        self._layers = scene.layers
        self._probes: list[Probe] = [self._inputs, *self._install(scene)]
        with guard.area("compiling kernels", loses="time in the first sampled step"):
            self._stats.prepare(
                (parameter for module in self._layers for parameter in module.parameters(recurse=False)),
                with_casts=any(casts_itself(module) for module in self._layers),
            )
        with guard.area("trying casts", loses="what a cast does with values that do not fit"):
            catalog.describe(recipe=probe_casts())

    def _install(self, scene: Scene) -> Iterable[Probe]:
        installed: list[Probe] = []
        for find, doing, loses in FINDERS:
            with self._guard.area(doing, loses=loses):
                for probe in find(scene):
                    installed.append(probe)  # first, so that a probe that fails half-way is removed as well
                    probe.install()
        return installed

    def begin(self, look: Look) -> None:
        """See ProbeSet."""
        self._stats.begin(look)
        for probe in self._probes:
            probe.begin(look)

    def batch(self, batch: Any) -> None:
        """See ProbeSet."""
        self._inputs.see(batch)

    def read_later(self, name: str, tensor: Any) -> None:
        """See ProbeSet."""
        self._readout.add(tensor, partial(_into_scalar, name))

    def has_readings(self) -> bool:
        """See ProbeSet."""
        return self._stats.has_readings or any(probe.has_readings for probe in self._probes)

    def collect(self, row: Row) -> Reading:
        """See ProbeSet."""
        readout, self._readout = self._readout, Readout()
        with self._reading:
            self._collect_into(readout, row)
        reading = Reading([], [])
        with self._reading:
            reading = readout.seal(self._lanes)
        return reading

    def _collect_into(self, readout: Readout, row: Row) -> None:
        if self._is_first:
            self._is_first = False
            self._order.settle()
            self._name_recipe()
        passes = max([self._stats.passes, *(probe.passes for probe in self._probes)], default=0)
        if passes > 1:
            row.scalars.setdefault("passes", float(passes))
        stats = Readout()
        self._stats.collect(stats)
        readout.join(stats)
        for probe in self._probes:
            probe.collect(readout, row)
        if self._gpu is not None:
            row.scalars.update(self._gpu.latest())

    def _name_recipe(self) -> None:
        """After the first step: FP8 modules have their recipe, and layers have shown what they compute in."""
        recipe = recipe_of(self._layers)
        formats = self._stats.formats()
        if not recipe and formats:
            most = max(sorted(set(formats)), key=formats.count)
            recipe = {"name": PLAIN_RECIPES[most]} if most in PLAIN_RECIPES else {}
        self._catalog.describe(recipe=recipe)

    def keeper(self) -> Keeper:
        """See ProbeSet."""
        return Keeper(keep_random, keep_batch)

    def remove(self) -> None:
        """See ProbeSet."""
        self._stats.begin(GLANCE)  # hooks on gradients of a step under way are still to come
        for probe in (self._order, *self._probes, self._gpu):
            if probe is not None:
                with self._reading:
                    probe.remove()


def _into_scalar(name: str, values: NDArray[np.float64], row: Row) -> None:
    row.scalars[name] = float(values[0])

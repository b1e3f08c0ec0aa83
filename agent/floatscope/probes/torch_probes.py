"""The probes of a torch training loop, found and installed in the right order."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from floatscope.catalog import Catalog
from floatscope.config import MonitorConfig
from floatscope.guard import Guard
from floatscope.probes.casts import probe_casts
from floatscope.probes.gpu import GpuProbe
from floatscope.probes.inputs import InputCheck, vocabulary_of
from floatscope.probes.loss_scaler import LossScalerProbe, calling_scaler, find_scaler
from floatscope.probes.naming import CallOrder, layers_of
from floatscope.probes.optimizer import OptimizerProbe, inner_optimizer
from floatscope.probes.readout import Reading, Readout
from floatscope.probes.te_recipe import PLAIN_RECIPES, recipe_of
from floatscope.probes.tensor_stats import Inspectors, PlainLayers, TensorStats
from floatscope.probes.transformer_engine import StateTap, managers_of, real_manager
from floatscope.probes.weight_updates import WeightUpdates
from floatscope.rows import Row


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
        self._config = config
        self._guard = guard
        self._catalog = catalog
        self._gpu = gpu
        self._order = CallOrder()
        self._layers: dict[nn.Module, str] = {}
        self._readout = Readout()
        self._reading = guard.area("reading the step", loses="statistics of some steps")
        self._stats = TensorStats(catalog=catalog, order=self._order)
        self._inputs = InputCheck(
            catalog=catalog, area=guard.area("input check", loses="facts about the batches")
        )
        self._taps: list[StateTap] = []
        self._plain: PlainLayers | None = None
        self._inspectors: Inspectors | None = None
        self._optimizer: OptimizerProbe | None = None
        self._scaler: LossScalerProbe | None = None
        self._hooked = 0
        self._is_first = True
        with guard.area("finding layers", loses="statistics of layers and tensors"):
            self._install_layers(model)
        with guard.area("finding the optimizer", loses="gradient norms and weight updates"):
            self._install_optimizer(model, optimizer)
        with guard.area("finding the loss scaler", loses="loss_scale and skipped_steps"):
            self._install_scaler(config.scaler or (find_scaler() if optimizer is not None else None))

    def _install_layers(self, model: Any) -> None:
        self._layers = layers_of(
            model, refuse=lambda why: self._guard.say_once("layers", f"left out: {why}.")
        )
        self._order.install(self._layers)
        managers = managers_of(self._layers)
        if real_manager() in managers:
            self._catalog.describe(recipe={"saturating_cast": True})  # its kernels cast with satfinite
        self._catalog.describe(recipe=probe_casts(), vocab_size=vocabulary_of(model))
        for manager in managers:
            tap = StateTap(
                manager,
                self._layers,
                catalog=self._catalog,
                order=self._order,
                area=self._guard.area("FP8 state tap", loses="amax and scale of FP8 tensors"),
            )
            tap.install()
            self._taps.append(tap)
        area = self._guard.area("tensor statistics", loses="statistics of whole tensors")
        self._inspectors = Inspectors(self._stats, self._layers, area)
        self._inspectors.install()
        if self._config.layer_hooks:
            self._plain = PlainLayers(self._stats, self._layers, area)
            self._hooked = self._plain.install()
        if is_compiled(model):
            self._say_compiled("the model is compiled")

    def _install_optimizer(self, model: Any, optimizer: Any) -> None:
        if optimizer is None:
            return
        found = inner_optimizer(optimizer)
        if found is None:
            self._guard.say(
                f"{type(optimizer).__name__} is not a torch optimizer; gradients and updates are left out."
            )
            return
        config = self._config
        updates = WeightUpdates(budget_bytes=config.copy_budget_bytes, turn_steps=config.stats_every)
        probe = OptimizerProbe(
            model,
            found,
            catalog=self._catalog,
            order=self._order,
            area=self._guard.area("optimizer probe", loses="gradient norms and weight updates"),
            updates=updates if config.weight_updates else None,
            on_first_steps=lambda: self._install_scaler(config.scaler or calling_scaler()),
        )
        probe.install()
        self._optimizer = probe

    def _install_scaler(self, scaler: Any) -> None:
        if scaler is None:
            self._scaler = None
        elif self._scaler is None or self._scaler.scaler is not scaler:
            area = self._guard.area("loss scaler probe", loses="loss_scale and skipped_steps")
            self._scaler = LossScalerProbe(scaler, area=area)

    def begin(self, *, is_sampled: bool) -> None:
        """See ProbeSet."""
        self._stats.is_sampled = is_sampled
        if self._optimizer is not None:
            self._optimizer.is_sampled = is_sampled

    def batch(self, batch: Any) -> None:
        """See ProbeSet."""
        self._inputs.see(batch)

    def read_later(self, name: str, tensor: Any) -> None:
        """See ProbeSet."""
        self._readout.add(tensor, partial(_into_scalar, name))

    def has_readings(self) -> bool:
        """See ProbeSet."""
        return (
            self._stats.has_readings
            or self._inputs.has_readings
            or any(tap.has_readings for tap in self._taps)
            or (self._optimizer is not None and self._optimizer.has_readings)
        )

    def collect(self, row: Row) -> Reading:
        """See ProbeSet."""
        readout, self._readout = self._readout, Readout()
        with self._reading:
            self._collect_into(readout, row)
        reading = Reading([], [])
        with self._reading:
            reading = readout.seal()
        return reading

    def _collect_into(self, readout: Readout, row: Row) -> None:
        if self._is_first:
            self._is_first = False
            self._order.settle()
            self._name_recipe()
            did_train = self._optimizer is not None and self._optimizer.has_readings
            if self._hooked and did_train and not self._stats.has_readings:
                self._say_compiled("no hook of a layer ran in the first step; if the model is compiled")
        passes = max([self._stats.passes, *(tap.passes for tap in self._taps)], default=0)
        if passes > 1:
            row.scalars.setdefault("passes", float(passes))
        self._inputs.collect(readout)
        self._stats.collect(readout)
        for tap in self._taps:  # after the inspectors: what the recipe itself has seen wins
            tap.collect(readout)
        if self._optimizer is not None:
            self._optimizer.collect(readout, may_skip=self._scaler is not None)
        if self._scaler is not None:
            self._scaler.collect(readout)
        if self._gpu is not None:
            row.scalars.update(self._gpu.latest())

    def _say_compiled(self, why: str) -> None:
        self._guard.say_once(
            "compiled",
            f"{why}: hooks inside compiled code do nothing, so statistics of plain layers are left out. "
            "Gradients, weights and FP8 state are recorded.",
        )

    def _name_recipe(self) -> None:
        """After the first step: FP8 modules have their recipe, and layers have shown what they compute in."""
        recipe = recipe_of(self._layers)
        formats = self._stats.formats()
        if not recipe and formats:
            most = max(sorted(set(formats)), key=formats.count)
            recipe = {"name": PLAIN_RECIPES[most]} if most in PLAIN_RECIPES else {}
        self._catalog.describe(recipe=recipe)

    def remove(self) -> None:
        """See ProbeSet."""
        for probe in (self._order, *self._taps, self._plain, self._inspectors, self._optimizer, self._gpu):
            if probe is not None:
                with self._reading:
                    probe.remove()


def is_compiled(model: Any) -> bool:
    """Whether torch.compile has wrapped the model, or will compile its call."""
    parts = model if isinstance(model, list | tuple) else [model]
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in parts
    )


def _into_scalar(name: str, values: NDArray[np.float64], row: Row) -> None:
    row.scalars[name] = float(values[0])

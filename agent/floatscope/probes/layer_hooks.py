"""Hooks at layers: where the tensors come from that ``tensor_stats`` measures.

Layers that tell what they cast (an inspector at the quantizer) are measured with scale and cast; plain
``torch.nn.Linear`` and ``Embedding`` layers by hooks, without a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from floatscope.guard import Area, Guard
from floatscope.probes.hook import Hook
from floatscope.probes.naming import format_of, in_backward, is_compiling
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.tensor_stats import TensorStats
from floatscope.rows import Row


def find_inspectors(scene: Scene) -> Iterable[Probe]:
    """The probe of layers whose FP8 manager takes inspectors."""
    return [Inspectors(scene.stats, scene.layers, _area(scene))]


def find_plain_layers(scene: Scene) -> Iterable[Probe]:
    """The probe of Linear and Embedding layers, unless ``layer_hooks`` is off."""
    if not scene.config.layer_hooks:
        return []
    return [
        PlainLayers(
            scene.stats, scene.layers, _area(scene), guard=scene.guard, is_compiled=is_compiled(scene.model)
        )
    ]


def _area(scene: Scene) -> Area:
    return scene.guard.area("tensor statistics", loses="statistics of whole tensors")


def is_compiled(model: Any) -> bool:
    """Whether torch.compile has wrapped the model, or will compile its call."""
    parts = model if isinstance(model, list | tuple) else [model]
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in parts
    )


class Inspectors(Probe):
    """Registers with managers whose layers tell what they cast (``manager.register_inspector``)."""

    def __init__(self, stats: TensorStats, layers: Mapping[nn.Module, str], area: Area) -> None:
        self._stats = stats
        self._layers = layers
        self._area = area
        self._handles: list[Any] = []

    def install(self) -> None:
        """Registers once with each manager found on the layers."""
        managers: dict[int, Any] = {}
        for module in self._layers:
            manager: Any = getattr(module, "fp8_global_state", None)
            if hasattr(manager, "register_inspector"):
                managers[id(manager)] = manager
        for manager in managers.values():
            self._handles.append(manager.register_inspector(self._inspect))

    def _inspect(
        self, module: nn.Module, role: str, tensor: Tensor, used: Tensor, scale: Tensor | None, fmt: str
    ) -> None:
        if self._stats.look.is_idle or self._area.tripped:
            return
        layer = self._layers.get(module)
        if layer is None or not self._stats.look.wants(layer):
            return
        with self._area:
            once = role == "weight" or (role == "input" and in_backward())
            self._stats.measure(layer, role, tensor, used=used, scale=scale, fmt=fmt, once=once)

    def remove(self) -> None:
        """Unregisters."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class PlainLayers(Probe):
    """Forward hooks on Linear and Embedding layers without FP8 state.

    A forward call inside the backward pass is activation recomputation; it counts only if there was no other
    with gradients enabled. The gradient of the output is caught by a hook on the output tensor, and only on
    sampled steps: a module's backward hook would wrap the output on every step and forbid to change it in
    place.
    """

    def __init__(
        self,
        stats: TensorStats,
        layers: Mapping[nn.Module, str],
        area: Area,
        *,
        guard: Guard,
        is_compiled: bool,
    ) -> None:
        self._stats = stats
        self._layers = layers
        self._area = area
        self._guard = guard
        self._is_compiled = is_compiled
        self._has_run = False
        self._is_first = True
        self._handles: list[Any] = []

    def install(self) -> None:
        """Hooks the layers."""
        if self._is_compiled:
            self._say_compiled("the model is compiled")
        for module, layer in self._layers.items():
            if hasattr(module, "fp8_global_state") or getattr(module, "fp8_meta", None):
                continue
            if isinstance(module, nn.Linear):
                self._handles.append(module.register_forward_hook(Hook(self._after_linear, layer)))
            elif isinstance(module, nn.Embedding):
                self._handles.append(module.register_forward_hook(Hook(self._after_embedding, layer)))

    def collect(self, readout: Readout, row: Row) -> None:
        """After the first step, says so if layers have trained without any hook having run."""
        if self._is_first and self._stats.look.is_sampled:
            self._is_first = False
            if self._handles and not self._has_run and self._has_gradients():
                self._say_compiled("no hook of a layer ran in the first step; if the model is compiled")

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for module in self._layers for p in module.parameters(recurse=False))

    def _say_compiled(self, why: str) -> None:
        self._guard.say_once(
            "compiled",
            f"{why}: hooks inside compiled code do nothing, so statistics of plain layers are left out. "
            "Gradients, weights and FP8 state are recorded.",
        )

    def _after_linear(self, layer: str, module: nn.Module, args: Any, output: Any) -> None:
        stats = self._stats
        if is_compiling() or not stats.look.wants(layer) or self._area.tripped:
            return
        with self._area:
            if not torch.is_grad_enabled():
                return
            self._has_run = True
            fmt = _compute_format(output)
            if args:
                stats.measure(layer, "input", args[0], fmt=fmt, once=in_backward())
            stats.measure(layer, "weight", module.weight, fmt=fmt, once=True)
            if isinstance(output, Tensor) and output.requires_grad:
                _hookable(output).register_hook(self._gradient_hook(layer, fmt))

    def _gradient_hook(self, layer: str, fmt: str | None) -> Callable[[Tensor], None]:
        def on_gradient(gradient: Tensor) -> None:
            if self._stats.look.wants(layer) and not self._area.tripped:
                with self._area:
                    self._stats.measure(layer, "grad_output", gradient, fmt=fmt)

        return on_gradient

    def _after_embedding(self, layer: str, module: nn.Module, args: Any, output: Any) -> None:
        if is_compiling() or not self._stats.look.wants(layer) or self._area.tripped:
            return
        with self._area:
            if torch.is_grad_enabled():
                self._has_run = True
                self._stats.measure(layer, "output", output, fmt=_compute_format(output), once=in_backward())

    def remove(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _hookable(output: Tensor) -> Any:
    """The tensor whose gradient hook survives a change in place.

    For inputs of three dimensions a linear layer returns a view of its product; changing a view in place
    drops the node that a hook on the view sits on, but not the one of what it views.
    """
    base = output._base
    return base if base is not None and base.requires_grad and base.numel() == output.numel() else output


def _compute_format(output: Any) -> str | None:
    """The format a layer computed in, which under autocast is its output's."""
    return format_of(output.dtype) if isinstance(output, Tensor) else None

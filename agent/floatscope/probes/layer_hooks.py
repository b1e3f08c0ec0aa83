"""Hooks at layers: where the tensors come from that ``tensor_stats`` measures.

Layers that tell what they cast (an inspector at the quantizer) are measured with scale and cast; plain layers
with weight matrices (linear, convolution, embedding, attention) by hooks, without a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from floatscope.guard import Area, Guard
from floatscope.look import Look
from floatscope.probes.compiled_layers import CompiledLayers
from floatscope.probes.hook import Hook
from floatscope.probes.naming import format_of, in_backward, is_compiling, is_transformed
from floatscope.probes.plain_kinds import Kind, plain_layers, stored, tensor_of
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.tensor_stats import TensorStats
from floatscope.rows import Row


def find_inspectors(scene: Scene) -> Iterable[Probe]:
    """The probe of layers whose FP8 manager takes inspectors."""
    return [Inspectors(scene.stats, scene.layers, _area(scene))]


def find_plain_layers(scene: Scene) -> Iterable[Probe]:
    """The probe of layers with weight matrices that nobody casts, unless ``layer_hooks`` is off."""
    if not scene.config.layer_hooks:
        return []
    compiled = None
    if scene.config.compiled_layers:
        compiled = CompiledLayers(scene.stats, scene.layers, _area(scene), guard=scene.guard)
    plain = PlainLayers(
        scene.stats,
        scene.layers,
        _area(scene),
        guard=scene.guard,
        is_compiled=is_compiled(scene.model),
        compiled=compiled,
    )
    return [plain] if compiled is None else [plain, compiled]


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
    """Forward hooks on the layers that ``plain_layers`` finds.

    A forward call inside the backward pass is activation recomputation. It counts if the forward pass it
    repeats ran without gradients (reentrant checkpointing), or if there was no other. The gradient of the
    output is caught by a hook on the output tensor, and only on steps that are looked at: a module's backward
    hook would wrap the output on every step and forbid to change it in place.
    """

    def __init__(
        self,
        stats: TensorStats,
        layers: Mapping[nn.Module, str],
        area: Area,
        *,
        guard: Guard,
        is_compiled: bool,
        compiled: CompiledLayers | None = None,
    ) -> None:
        self._stats = stats
        self._layers = layers
        self._area = area
        self._guard = guard
        self._is_compiled = is_compiled
        self._compiled = compiled
        self._has_run = False
        self._is_first = True
        self._ahead: dict[str, int] = {}  # forward passes without gradients, to be repeated in the backward
        self._handles: list[Any] = []

    def install(self) -> None:
        """Hooks the layers."""
        if self._is_compiled and self._compiled is None:
            self._say_compiled("the model is compiled")
        for module, layer, kind in plain_layers(self._layers):
            after = {
                Kind.WEIGHTED: self._after_weighted,
                Kind.EMBEDDING: self._after_embedding,
                Kind.ATTENTION: self._after_attention,
            }[kind]
            self._handles.append(module.register_forward_hook(Hook(after, layer)))

    def begin(self, look: Look) -> None:
        """A pass without gradients that was not repeated was an evaluation."""
        if self._ahead:
            self._ahead.clear()

    def collect(self, readout: Readout, row: Row) -> None:
        """After the first step, says so if layers have trained without any hook having run."""
        if self._is_first and self._stats.look.is_sampled:
            self._is_first = False
            has_run = self._has_run or (self._compiled is not None and self._compiled.has_run)
            if self._handles and not has_run and self._has_gradients():
                self._say_compiled("no hook of a layer ran in the first step; if the model is compiled")

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for module in self._layers for p in module.parameters(recurse=False))

    def _say_compiled(self, why: str) -> None:
        self._guard.say_once(
            "compiled",
            f"{why}: hooks inside compiled code do nothing, so statistics of plain layers are left out. "
            "Gradients, weights and FP8 state are recorded. compiled_layers=True, given before the first "
            "compiled call, has the layers measured.",
        )

    def _after_weighted(self, layer: str, module: nn.Module, args: Any, output: Any) -> None:
        if is_compiling() or not self._stats.look.wants(layer) or self._area.tripped:
            return
        with self._area:
            once = self._once(layer)
            if once is None:
                return
            result = tensor_of(output)
            fmt = _compute_format(result)
            if args:
                self._measure(layer, "input", args[0], fmt, once=once)
            self._measure(layer, "weight", stored(module, "weight"), fmt, once=True)
            self._catch_gradient(layer, result, fmt)

    def _after_embedding(self, layer: str, module: nn.Module, args: Any, output: Any) -> None:
        if is_compiling() or not self._stats.look.wants(layer) or self._area.tripped:
            return
        with self._area:
            once = self._once(layer)
            if once is not None:
                self._measure(layer, "output", output, _compute_format(output), once=once)

    def _after_attention(self, layer: str, module: nn.Module, args: Any, output: Any) -> None:
        """torch.nn.MultiheadAttention calls no layers: its projections are its own weights."""
        into, out_of = f"{layer}.in_proj", f"{layer}.out_proj"
        look = self._stats.look
        if is_compiling() or not (look.wants(into) or look.wants(out_of)) or self._area.tripped:
            return
        with self._area:
            once = self._once(layer)
            if once is None:
                return
            result = tensor_of(output)
            fmt = _compute_format(result)
            if args:
                self._measure(into, "input", args[0], fmt, once=once)
            self._measure(into, "weight", stored(module, "in_proj_weight"), fmt, once=True)
            last = getattr(module, "out_proj", None)
            if isinstance(last, nn.Module):
                self._measure(out_of, "weight", stored(last, "weight"), fmt, once=True)
            self._catch_gradient(out_of, result, fmt)

    def _once(self, layer: str) -> bool | None:
        """Whether this pass counts only if there was no other in the step; None if it does not count."""
        if is_transformed():
            return None
        if in_backward():
            ahead = self._ahead.get(layer, 0)
            if ahead:
                self._ahead[layer] = ahead - 1
            once = not ahead
        elif not torch.is_grad_enabled():
            self._ahead[layer] = self._ahead.get(layer, 0) + 1
            return None
        else:
            self._ahead.pop(layer, None)
            once = False
        self._has_run = True
        return once if torch.is_grad_enabled() else None

    def _measure(self, layer: str, role: str, tensor: Any, fmt: str | None, *, once: bool) -> None:
        self._stats.measure(layer, role, tensor, fmt=fmt, once=once, is_cast=False)

    def _catch_gradient(self, layer: str, output: Any, fmt: str | None) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            _hookable(output).register_hook(self._gradient_hook(layer, fmt))

    def _gradient_hook(self, layer: str, fmt: str | None) -> Callable[[Tensor], None]:
        def on_gradient(gradient: Tensor) -> None:
            if self._stats.look.wants(layer) and not self._area.tripped:
                with self._area:
                    self._measure(layer, "grad_output", gradient, fmt, once=False)

        return on_gradient

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

"""Tensors inside code that torch.compile has compiled, on request (``compiled_layers=True``).

A hook that torch.compile traces leaves one call of ``floatscope::see`` per tensor in the compiled code: an
operation that the compiler does not look into, without a result. So nothing of ours is compiled: whether a
step is looked at is decided when the call runs, in Python, and changing it compiles nothing again. The price
is that the tensor has to exist: the compiler cannot fuse it away. See decision 0036.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from floatscope.guard import Area, Guard
from floatscope.look import Look
from floatscope.probes.hook import Hook
from floatscope.probes.naming import format_of, in_backward, is_compiling
from floatscope.probes.plain_kinds import Kind, plain_layers, stored, tensor_of
from floatscope.probes.probe import Probe
from floatscope.probes.tensor_stats import TensorStats
from floatscope.probes.torchao_float8 import cast_again, is_float8_linear

OLDEST_TORCH = (2, 13)
"""The first whose compiler takes hooks on gradients without a break; nothing older was tried."""

_keys = itertools.count()  # the same in every run of a program, so that compiled code is found in caches
_watching: weakref.WeakValueDictionary[int, CompiledLayers] = weakref.WeakValueDictionary()
# Operations of torch belong to the process and take numbers and text: by its number one finds its monitor.


@functools.cache
def _operation() -> tuple[Any, Any]:
    """The library, which has to stay alive, and the operation; defined once in a process."""
    make: Any = torch.library.Library
    library = make("floatscope", "FRAGMENT")
    library.define("see(Tensor x, int monitor, str layer, str role, str format) -> ()")
    library.impl("see", _see, "CompositeExplicitAutograd")
    fallthrough: Any = torch.library.fallthrough_kernel
    library.impl("see", fallthrough, "Autograd")  # it has no derivative, and changes nothing
    library.impl("see", _see_nothing, "FuncTorchBatched")  # under vmap there are no whole tensors
    register_fake: Any = torch.library.register_fake
    register_fake("floatscope::see", _see_nothing, lib=library)
    operation: Any = torch.ops.floatscope.see.default
    keep: Any = torch.fx.node.has_side_effect
    keep(operation)  # it gives no result, and must not be removed as dead code
    return library, operation


def _see(x: Tensor, monitor: int, layer: str, role: str, format: str) -> None:
    probe = _watching.get(monitor)
    if probe is not None:
        probe.see(layer, role, x, format or None)


def _see_nothing(*_: Any) -> None:
    """While the compiler traces there are no values."""


def can_see() -> bool:
    """Whether this torch's compiler takes the hooks."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= OLDEST_TORCH


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _takes_gradient_hooks() -> bool:
    """Called while tracing. With compiled autograd a hook makes a backward pass outside of it raise."""
    config: Any = torch._dynamo.config
    compiled_autograd: Any = torch._dynamo.compiled_autograd
    return not (config.compiled_autograd or compiled_autograd.compiled_autograd_enabled)


class CompiledLayers(Probe):
    """Input, weight and gradient of the output of layers with a weight matrix, also torchao's float8 layers.

    Only what the matrix products read and so exists anyway in most compiled code; outputs of embeddings and
    torch's ``MultiheadAttention`` are left out. A step under CUDA graphs runs no Python, so nothing is seen.
    """

    def __init__(
        self, stats: TensorStats, layers: Mapping[nn.Module, str], area: Area, *, guard: Guard
    ) -> None:
        self._stats = stats
        self._area = area
        self._guard = guard
        self._key = next(_keys)
        self._modules = {layer: m for m, layer, kind in plain_layers(layers) if kind is Kind.WEIGHTED}
        self._float8 = {layer: module for module, layer in layers.items() if is_float8_linear(module)}
        self._forward: set[str] = set()
        self._operation: Any = None
        self._handles: list[Any] = []
        self.has_run = False

    def install(self) -> None:
        """Hooks the layers; code that is compiled already never calls the hooks."""
        if not can_see():
            self._guard.say_once(
                "compiled torch",
                f"compiled_layers needs torch {'.'.join(map(str, OLDEST_TORCH))} or later, this is "
                f"{torch.__version__}; layers inside compiled code are not measured.",
            )
            return
        self._operation = _operation()[1]
        _watching[self._key] = self
        for layer, module in (self._modules | self._float8).items():
            self._handles.append(module.register_forward_hook(Hook(self._trace, layer)))

    def begin(self, look: Look) -> None:
        """A step begins."""
        self._forward.clear()

    def _trace(self, layer: str, module: nn.Module, args: Any, output: Any) -> None:
        """Runs while torch.compile traces; what is written here must not break the graph.

        Not in an exported program, which has to load where floatscope is not installed; not in code for
        evaluation. DTensors have no rule for operations that they do not know.
        """
        if not is_compiling() or torch.compiler.is_exporting() or not torch.is_grad_enabled():
            return
        result: Any = tensor_of(output)
        if not args or type(args[0]) is not Tensor or type(result) is not Tensor:
            return
        see, key = self._operation, self._key
        fmt = format_of(result.dtype) or ""
        see(args[0], key, layer, "input", fmt)
        if result.requires_grad and _takes_gradient_hooks():

            def on_gradient(gradient: Tensor) -> None:
                see(gradient, key, layer, "grad_output", fmt)

            hook: Any = result.register_hook
            hook(on_gradient)

    def see(self, layer: str, role: str, tensor: Tensor, fmt: str | None) -> None:
        """Runs inside compiled code: measures a tensor if the step is looked at."""
        self.has_run = True
        if not self._stats.look.wants(layer) or self._area.tripped:
            return
        with self._area, torch.no_grad():
            again = in_backward()  # recomputation, which counts where there was no forward pass (reentrant)
            once = role == "input" and again and layer in self._forward
            if role == "input" and not again:
                self._forward.add(layer)
            float8 = self._float8.get(layer)
            if float8 is not None:
                if not once:
                    cast_again(float8, role, tensor)
                return
            self._stats.measure(layer, role, tensor, fmt=fmt, once=once, is_cast=False)
            if role == "input":
                weight = stored(self._modules[layer], "weight")
                self._stats.measure(layer, "weight", weight, fmt=fmt, once=True, is_cast=False)

    def remove(self) -> None:
        """Takes the hooks off. Calls in compiled code stay and return at once."""
        _watching.pop(self._key, None)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

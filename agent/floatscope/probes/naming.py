"""Names of layers and weights, the same whether or not a model is wrapped, and the order of first calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from floatscope.probes.hook import Hook
from floatscope.protocol.names import MAX_NAME_BYTES, MAX_TENSORS

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Name parts put in by torch.compile, FSDP and checkpointing; without them runs stay comparable."""

MOST_LAYER_BYTES = MAX_NAME_BYTES - 64  # leaves room for an expert's number and a role
MOST_LAYERS = MAX_TENSORS // 4

_EXPERT_WEIGHT = re.compile(r"weight(\d+)")
_FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def models_of(model: Any) -> list[tuple[str, nn.Module]]:
    """The modules to watch with the prefix of their names; a list of model chunks is numbered."""
    if isinstance(model, nn.Module):
        return [("", model)]
    if isinstance(model, list | tuple) and all(isinstance(part, nn.Module) for part in model):
        return [(f"{index}." if len(model) > 1 else "", part) for index, part in enumerate(model)]
    return []


def clean(name: str) -> str:
    """A qualified name without wrappers; ``/`` would end the layer, so it becomes ``_``."""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    if parts and parts[0] == "module":  # DistributedDataParallel
        parts = parts[1:]
    return ".".join(parts).replace("/", "_")


def layers_of(model: Any, *, refuse: Callable[[str], None]) -> dict[nn.Module, str]:
    """Every module by its layer name, in the order of definition; the model itself is ``model``.

    refuse: called with a reason where layers are left out: names that no record can hold, or too many.
    """
    found: dict[nn.Module, str] = {}
    for prefix, root in models_of(model):
        for name, module in root.named_modules():
            layer = prefix + (clean(name) or "model")
            if not is_recordable(layer):
                refuse(
                    f"layer names of over {MOST_LAYER_BYTES} bytes or with control characters: {layer[:60]!r}"
                )
            elif len(found) >= MOST_LAYERS:
                refuse(f"more than {MOST_LAYERS:,} layers; further ones are left out")
                return found
            else:
                found.setdefault(module, layer)
    return found


def is_recordable(layer: str) -> bool:
    """Whether tensors of the layer can have valid names."""
    return len(layer.encode("utf-8", "replace")) <= MOST_LAYER_BYTES and layer.isprintable()


def parameters_of(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Every parameter once, by its qualified name, where that can be recorded."""
    for prefix, root in models_of(model):
        for name, parameter in root.named_parameters():
            qualified = prefix + clean(name)
            if is_recordable(qualified):
                yield qualified, parameter


def weight_tensor(name: str, parameter: torch.Tensor) -> str | None:
    """The tensor ``layer/weight`` of a parameter, or None for one that has no statistics of its own (biases).

    ``a.weight`` gives ``a/weight``, ``a.fc1_weight`` ``a.fc1/weight``, ``a.weight3`` ``a.experts.3/weight``.
    """
    layer, _, leaf = name.rpartition(".")
    layer = layer or "model"
    if leaf == "weight":
        return f"{layer}/weight"
    if leaf.endswith("_weight"):
        return f"{layer}.{leaf.removesuffix('_weight')}/weight"
    expert = _EXPERT_WEIGHT.fullmatch(leaf)
    if expert is not None:
        return f"{layer}.experts.{expert.group(1)}/weight"
    return f"{name}/weight" if parameter.dim() >= 2 else None


def format_of(dtype: torch.dtype) -> str | None:
    """The protocol's name of a dtype, None if it has none."""
    return _FORMATS.get(dtype)


def is_compiling() -> bool:
    """Whether torch.compile is tracing this; a hook then leaves nothing in the compiled code."""
    return bool(torch.compiler.is_compiling())


def in_backward() -> bool:
    """Whether autograd is running: a forward call then is activation recomputation, not a forward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


class CallOrder:
    """In which order layers are first called: a fault crosses the network inside one step.

    Hooks on modules that hold parameters note the order, once.
    """

    def __init__(self) -> None:
        self._order: dict[str, int] = {}
        self._called: set[str] = set()
        self._handles: dict[str, Any] = {}

    def install(self, layers: Mapping[nn.Module, str]) -> None:
        """Watches the first calls of all modules with parameters of their own or FP8 state."""
        for module, layer in layers.items():
            if module._parameters or hasattr(module, "fp8_meta"):
                self._handles[layer] = module.register_forward_pre_hook(Hook(self._note, layer))

    def _note(self, layer: str, module: nn.Module, args: Any) -> None:
        if not is_compiling():
            self._called.add(layer)
            self._order.setdefault(layer, len(self._order))

    def of(self, layer: str) -> int:
        """The layer's place; a layer not seen so far takes the next one."""
        return self._order.setdefault(layer, len(self._order))

    def settle(self) -> None:
        """At the end of the first step, takes off the hooks that have done their work.

        A hook that has not been called may be inside compiled code, where its removal would cost a second
        compilation; it does nothing there and stays.
        """
        for layer in self._called & self._handles.keys():
            self._handles.pop(layer).remove()

    def remove(self) -> None:
        """Takes all hooks off."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

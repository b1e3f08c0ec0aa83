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
    while parts and parts[0] == "module":  # DistributedDataParallel, and Megatron's two wrappers
        parts = parts[1:]
    return ".".join(parts).replace("/", "_")


class Names:
    """Names of modules and parameters that mean the same on every rank of a job.

    Under pipeline parallelism each rank numbers its layers from 0. Megatron's layers know their number in the
    whole model (``layer_number``, from 1), which takes the place of the local one; for others
    ``layer_offset`` is added to the first number of a name. Of several chunks of a model (virtual pipeline)
    the names are kept apart by the chunk's index, unless global numbers do that already.
    """

    def __init__(self, model: Any, *, layer_offset: int = 0) -> None:
        self._offset = layer_offset
        self._roots = models_of(model)
        self._numbers = [_global_numbers(root) for _, root in self._roots]
        self._claimed: dict[str, int] = {}
        if len(self._roots) > 1 and any(self._numbers):
            for chunk, (_, root) in enumerate(self._roots):
                for name in {self._renamed(chunk, clean(name)) for name, _ in root.named_modules()}:
                    self._claimed[name] = self._claimed.get(name, 0) + 1

    def roots(self) -> Iterator[tuple[int, nn.Module]]:
        """The model's chunks, numbered."""
        for chunk, (_, root) in enumerate(self._roots):
            yield chunk, root

    def of(self, chunk: int, name: str) -> str:
        """The name of a module or a parameter of a chunk, out of its qualified name; empty for the chunk."""
        renamed = self._renamed(chunk, clean(name))
        owner = renamed
        while owner and owner not in self._claimed:
            owner = owner.rpartition(".")[0]
        if self._claimed.get(owner) == 1 and owner:
            return renamed
        prefix = self._roots[chunk][0]
        return prefix + renamed if renamed else (prefix + "model" if prefix else "")

    def _renamed(self, chunk: int, name: str) -> str:
        numbers = self._numbers[chunk]
        parts = name.split(".")
        if numbers:
            for end in range(len(parts), 0, -1):
                number = numbers.get(".".join(parts[:end]))
                if number is not None:
                    return ".".join([*parts[: end - 1], str(number), *parts[end:]])
        if self._offset:
            for at, part in enumerate(parts):
                if at and part.isdecimal():
                    parts[at] = str(int(part) + self._offset)
                    break
        return ".".join(parts)


def _global_numbers(root: nn.Module) -> dict[str, int]:
    """The numbers, from 0, that Megatron's layers have in the whole model, by their local names.

    Lists in which two layers have one number, or one has none, are left alone.
    """
    lists: dict[str, dict[str, int]] = {}
    for name, module in root.named_modules():
        parent, _, leaf = clean(name).rpartition(".")
        if leaf.isdecimal() and _is_megatron_layer(module):
            number = getattr(module, "layer_number", None)
            lists.setdefault(parent, {})[leaf] = number - 1 if type(number) is int else -1
    return {
        f"{parent}.{leaf}": number
        for parent, numbers in lists.items()
        if min(numbers.values()) >= 0 and len(set(numbers.values())) == len(numbers)
        for leaf, number in numbers.items()
    }


def _is_megatron_layer(module: nn.Module) -> bool:
    return hasattr(module, "layer_number") and any(
        base.__module__.startswith("megatron.") or base.__name__ == "TransformerLayer"
        for base in type(module).__mro__
    )


def first_expert(local_experts: int, ep_rank: int) -> int:
    """Global number of a rank's first expert, where experts are spread evenly over ``ep_rank``s."""
    return local_experts * ep_rank


def layers_of(model: Any, *, refuse: Callable[[str], None], layer_offset: int = 0) -> dict[nn.Module, str]:
    """Every module by its layer name, in the order of definition; the model itself is ``model``.

    refuse: called with a reason where layers are left out: names that no record can hold, or too many.
    layer_offset: see ``Names``.
    """
    found: dict[nn.Module, str] = {}
    names = Names(model, layer_offset=layer_offset)
    for chunk, root in names.roots():
        for name, module in root.named_modules():
            layer = names.of(chunk, name) or "model"
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


def parameters_of(
    model: Any, *, layer_offset: int = 0, ep_rank: int = 0
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Every parameter once, by its qualified name, where that can be recorded.

    Experts that lie side by side in one module (``weight0``, ``weight1``) get their global numbers.
    layer_offset: see ``Names``.
    """
    names = Names(model, layer_offset=layer_offset)
    for chunk, root in names.roots():
        experts = _expert_counts(root) if ep_rank else {}
        for name, parameter in root.named_parameters():
            owner, _, leaf = name.rpartition(".")
            expert = _EXPERT_WEIGHT.fullmatch(leaf) if owner in experts else None
            if expert is not None:
                name = f"{owner}.weight{int(expert[1]) + first_expert(experts[owner], ep_rank)}"
            qualified = names.of(chunk, name)
            if is_recordable(qualified):
                yield qualified, parameter


def _expert_counts(root: nn.Module) -> dict[str, int]:
    """Modules that hold several experts (GroupedLinear), with how many."""
    counts = {name: getattr(module, "num_gemms", None) for name, module in root.named_modules()}
    return {name: count for name, count in counts.items() if type(count) is int and count > 1}


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
    return f"{name}/weight" if not is_lazy(parameter) and parameter.dim() >= 2 else None


def is_lazy(tensor: Any) -> bool:
    """Whether the tensor has no shape before the first forward pass (torch.nn.LazyLinear)."""
    return bool(nn.parameter.is_lazy(tensor))


def format_of(dtype: torch.dtype) -> str | None:
    """The protocol's name of a dtype, None if it has none."""
    return _FORMATS.get(dtype)


def is_compiling() -> bool:
    """Whether torch.compile is tracing this; a hook then leaves nothing in the compiled code."""
    return bool(torch.compiler.is_compiling())


def is_transformed() -> bool:
    """Whether torch.func is at work (grad, vmap): tensors then stand for many, or for none in particular."""
    return torch._C._functorch.peek_interpreter_stack() is not None


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

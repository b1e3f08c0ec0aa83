"""The torch optimizers behind what the user gives: wrappers, lists and containers of frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from floatscope.probes.naming import models_of
from floatscope.probes.weights import is_fully_sharded

_PARTS = ("chained_optimizers", "optimizers")  # Megatron; torchtitan, multi-optimizer classes
_INNER = ("optimizer", "_optimizer", "base_optimizer")
_DEPTH = 8


def optimizers_of(given: Any) -> list[torch.optim.Optimizer]:
    """Every torch optimizer that steps when ``given`` does, each once, the innermost of wrappers."""
    found: dict[int, torch.optim.Optimizer] = {}
    for one in _walk(given, _DEPTH):
        found.setdefault(id(one), one)
    return list(found.values())


def _walk(given: Any, depth: int) -> Iterator[torch.optim.Optimizer]:
    if depth == 0 or given is None:
        return
    parts: Any = None
    if isinstance(given, list | tuple):
        parts = given
    elif isinstance(given, dict):
        parts = list(given.values())
    else:
        for name in _PARTS:
            held = getattr(given, name, None)
            parts = held if parts is None and isinstance(held, list | tuple) else parts
    inner: list[torch.optim.Optimizer] = []
    if parts is not None:
        inner = [one for part in parts for one in _walk(part, depth - 1)]
    else:
        for name in _INNER:
            held = getattr(given, name, None)
            if held is not None and held is not given and not callable(held):
                inner = list(_walk(held, depth - 1))
            if inner:
                break
    if inner:
        yield from inner
    elif isinstance(given, torch.optim.Optimizer):
        yield given


def is_partitioned(given: Any) -> bool:
    """Whether a rank steps only its part of the weights, in tensors that do not say so (DeepSpeed ZeRO)."""
    for _ in range(_DEPTH):
        if given is None or hasattr(given, "chained_optimizers"):
            return False
        if any("DeepSpeedZeroOptimizer" in kind.__name__ for kind in type(given).__mro__):
            return True
        given = getattr(given, "optimizer", None)
    return False


def where_clipped(model: Any, optimizer: Any) -> str:
    """What may have clipped the gradients before the optimizer's step without torch's own functions."""
    for one in optimizer if isinstance(optimizer, list | tuple) else (optimizer,):
        package = type(one).__module__.partition(".")[0]
        if package == "megatron":
            clip = getattr(getattr(one, "config", None), "clip_grad", None)
            return ", without clipping" if clip == 0 else ", after Megatron's clipping"
        if package == "deepspeed":
            clip = getattr(one, "clip_grad", None)
            return ", without clipping" if clip == 0 else ", after DeepSpeed's clipping"
    if any(is_fully_sharded(module) for _, root in models_of(model) for module in root.modules()):
        return ", after the clipping of FullyShardedDataParallel.clip_grad_norm_, if the loop calls it"
    return "; no clipping by torch.nn.utils was seen before it"

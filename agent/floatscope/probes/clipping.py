"""Sees gradients just before they are clipped by torch.

``torch.nn.utils.clip_grad_norm_`` looks up ``_clip_grads_with_norm_`` in its own module (since torch 2.6), so
wrapping that one also sees loops that imported ``clip_grad_norm_`` before. Loops that compute the norm over
all ranks themselves (torchtitan) call ``torch.nn.utils.clip_grads_with_norm_``. Clipping by value is seen
where it is called as ``torch.nn.utils.clip_grad_value_``. Trainers that clip with their own kernels (FSDP1,
Megatron, DeepSpeed) are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from floatscope.guard import Area
from floatscope.probes.function_patch import FunctionPatch, Observer

_BY_NORM = "_clip_grads_with_norm_"
_Watch = Callable[[Sequence[Any], Tensor | None], None]


class ClipWatch:
    """Calls ``before`` with the parameters whose gradients are about to be clipped and the norm, if it is
    known; ``after`` with the parameters once they are. What fails in them stays in ``area``."""

    def __init__(self, before: _Watch, after: Callable[[Sequence[Any]], None], *, area: Area) -> None:
        self._area = area
        self._before = before
        self._after = after
        self._patches: list[FunctionPatch] = []

    def install(self) -> None:
        """Wraps torch's functions."""
        utils = torch.nn.utils
        inner: Any = utils.clip_grad
        targets = [(utils, "clip_grad_value_"), (inner, "clip_grad_value_")]
        if hasattr(inner, _BY_NORM):
            targets += [(inner, _BY_NORM), (utils, "clip_grads_with_norm_")]
        else:  # before torch 2.6 all in one function: early imports of it are not seen
            targets += [(inner, "clip_grad_norm_"), (utils, "clip_grad_norm_")]
        observer = Observer(self._area, self._leave, self._enter)
        for module, name in targets:
            if hasattr(module, name):
                self._patches.append(FunctionPatch(module, name, observer, prepare=_listed))

    def remove(self) -> None:
        """Puts the functions back."""
        for patch in reversed(self._patches):
            patch.remove()
        self._patches.clear()

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        norm = args[2] if len(args) > 2 else kwargs.get("total_norm")
        self._before(_parameters(args, kwargs), norm if isinstance(norm, Tensor) else None)

    def _leave(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._after(_parameters(args, kwargs))


def _listed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """An iterator can be read once, and the clipping has to read it as well."""
    return (list(args[0]), *args[1:]) if args and isinstance(args[0], Iterator) else args


def _parameters(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    given = args[0] if args else kwargs.get("parameters", ())
    if isinstance(given, Tensor):
        return (given,)
    return () if isinstance(given, Iterator) else tuple(given)

"""Where a parameter's gradient is, and norms of many tensors in a few kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.probes.host_norms import host_norms
from floatscope.probes.naming import is_lazy
from floatscope.rows import Row


def gradient_of(parameter: Any) -> Tensor | None:
    """This rank's part of the gradient, or None where there is none that can be read.

    With fused gradient accumulation (Megatron) the sum is in ``main_grad`` and ``grad`` is None or a dummy.
    """
    grad = parameter.grad
    main = getattr(parameter, "main_grad", None)
    if isinstance(main, Tensor) and (grad is None or getattr(parameter, "grad_added_to_main_grad", False)):
        grad = main
    return None if grad is None else local_values(grad)


def is_plain(parameter: Any) -> bool:
    """Whether the gradient is sure to be dense and real whenever there is one that is not sparse."""
    return (
        type(parameter) is torch.nn.Parameter
        and parameter.layout is torch.strided
        and is_computed_with(parameter)
        and parameter.device.type != "meta"
        and parameter.numel() > 0
        and not hasattr(parameter, "main_grad")
    )


def local_values(tensor: Any) -> Tensor | None:
    """A dense real view, without a copy, of a tensor's part on this rank; None if there is no such view, or
    no arithmetic on it."""
    if hasattr(tensor, "to_local"):  # DTensor: FSDP2, tensor parallelism
        tensor = tensor.to_local()
    if (
        not isinstance(tensor, Tensor)
        or is_lazy(tensor)
        or tensor.layout != torch.strided
        or tensor.device.type == "meta"
    ):
        return None
    if tensor.is_quantized or type(tensor).__name__ in _CAST_TYPES:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach())
    return tensor.detach() if is_computed_with(tensor) and tensor.numel() > 0 else None


def is_computed_with(tensor: Tensor) -> bool:
    """Whether torch has arithmetic for its dtype: floating point, but not FP8 and FP4, just stored."""
    return tensor.is_floating_point() and tensor.element_size() > 1


def is_empty(tensor: Any) -> bool:
    """Whether this rank has no elements of the tensor: an uneven split leaves some ranks without any."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bool(local.numel() == 0)


_CAST_TYPES = frozenset({"Float8Tensor", "MXFP8Tensor", "Float8BlockwiseQTensor", "NVFP4Tensor"})
"""Transformer Engine's quantised parameters: arithmetic on them dequantises, which costs memory."""


def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norms, [n], of tensors on one device, summed and given in float32; float64 tensors in float64.

    On the CPU in float64.
    """
    norms: Sequence[Tensor]
    if tensors and tensors[0].device.type == "cpu":
        return host_norms(tensors)
    if all(tensor.dtype != torch.float64 for tensor in tensors):
        norms = torch._foreach_norm(list(tensors), 2, dtype=torch.float32)
    else:
        norms = [_norm(tensor).double() for tensor in tensors]
    return torch.stack(list(norms))


def _norm(tensor: Tensor) -> Tensor:
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=dtype)
    return norm


def by_device(tensors: Iterable[Tensor]) -> dict[torch.device, list[int]]:
    """Positions of the tensors on each device."""
    places: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        places.setdefault(tensor.device, []).append(index)
    return places


def places_of(tensors: Sequence[Tensor], *, is_one_device: bool) -> Sequence[Sequence[int]]:
    """Positions of the tensors, by device."""
    return [range(len(tensors))] if is_one_device and tensors else list(by_device(tensors).values())


class RootOfSquares:
    """A scalar that is the L2 norm over parts read separately; written when the last part is there.

    All parts are announced with ``part`` before the first arrives: they are announced while a step runs and
    arrive once it has ended.  is_local: it is the norm of this rank's part only, to be added up over ranks.
    """

    def __init__(self, name: str, *, is_local: bool = False) -> None:
        self._name = name
        self._is_local = is_local
        self._left = 0
        self._sum = 0.0
        self._is_whole = True

    def part(self, shares: NDArray[np.float64] | None = None) -> Callable[[NDArray[np.float64], Row], None]:
        """The consumer of one part: norms of some tensors.

        shares: [n], how much of each square counts in a local norm; 1 / r where r ranks hold the same
        elements, so that the squares of all ranks add up to that of the whole.
        """
        self._left += 1
        return partial(self._add, shares if self._is_local else None)

    def spoil(self) -> None:
        """Something belongs to the norm and cannot be read: there will be no such scalar."""
        self._is_whole = False

    def _add(self, shares: NDArray[np.float64] | None, values: NDArray[np.float64], row: Row) -> None:
        squares = np.square(values)
        self._sum += float(np.sum(squares if shares is None else squares * shares))
        self._left -= 1
        if self._left == 0 and self._is_whole:
            row.scalars.setdefault(self._name, float(np.sqrt(self._sum)))  # the loop's own value stays


class ZeroShare:
    """A percentage of elements that are zero, out of counts of the others that are read separately."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._left = 0
        self._nonzero = 0.0
        self._numel = 0

    def part(self, numel: int) -> Callable[[NDArray[np.float64], Row], None]:
        """The consumer of one part of ``numel`` elements: how many are not zero."""
        self._left += 1
        self._numel += numel
        return self._add

    def _add(self, values: NDArray[np.float64], row: Row) -> None:
        self._nonzero += float(values[0])
        self._left -= 1
        if self._left == 0:
            row.scalars.setdefault(self._name, 100.0 * (1.0 - self._nonzero / self._numel))

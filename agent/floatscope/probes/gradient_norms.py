"""Reads the gradients of some weights: one fused norm per device, and on sampled steps how many are zero.

What is read early, before clipping, is kept until the step shows that it was what the step used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.probes.gradients import (
    RootOfSquares,
    ZeroShare,
    gradient_of,
    is_empty,
    norms_of,
    places_of,
)
from floatscope.probes.readout import Consumer, Readout
from floatscope.probes.statistics import block_of
from floatscope.probes.weights import Weight
from floatscope.rows import Row


@dataclass(frozen=True, eq=False)
class _Part:
    """Norms of the gradients on one device, [n], of ``weights``; nonzero: how many elements are not 0."""

    weights: Sequence[Weight]
    norms: Tensor
    nonzero: Tensor | None
    numel: int


@dataclass(frozen=True, eq=False)
class GradientReading:
    """What was read of the gradients of some weights at one moment.

    is_whole: False where a gradient could not be read.
    """

    weights: Sequence[Weight]
    parts: Sequence[_Part]
    is_whole: bool

    @property
    def is_empty(self) -> bool:
        """Whether there was no gradient to read."""
        return not self.parts

    def hand_over(self, readout: Readout, total: RootOfSquares, zeros: ZeroShare) -> None:
        """Puts the norms into the readout, as ``grad_norm`` of their weights and as parts of the totals."""
        if not self.is_whole:
            total.spoil()
        for part in self.parts:
            shares = np.array([weight.share for weight in part.weights])
            whole = total.part(shares)
            readout.add(part.norms, _Norms([weight.tensor for weight in part.weights], whole))
            if part.nonzero is not None:
                readout.add(part.nonzero, zeros.part(part.numel))


def read_gradients(
    weights: Sequence[Weight], *, with_zeros: bool, is_one_device: bool, scale: Tensor | None
) -> GradientReading:
    """Reads the gradients as they are now.

    with_zeros: also counts elements that are not 0.  scale: what the gradients are multiplied by, if they
    still are.
    """
    found: list[Weight] = []
    grads: list[Tensor] = []
    is_whole = True
    for weight in weights:
        grad = weight.parameter.grad
        if not weight.is_plain or (grad is not None and grad.layout is not torch.strided):
            seen = grad
            grad = gradient_of(weight.parameter)
            if grad is None and seen is not None and not is_empty(seen):
                is_whole = False  # no norm of all without it
        if grad is not None:
            found.append(weight)
            grads.append(grad)
    parts: list[_Part] = []
    for indices in places_of(grads, is_one_device=is_one_device):
        part = [grads[i] for i in indices]
        norms = norms_of(part)
        if scale is not None:
            norms = norms / scale.to(norms.device)
        nonzero = torch.stack([torch.count_nonzero(grad) for grad in part]).sum() if with_zeros else None
        parts.append(_Part([found[i] for i in indices], norms, nonzero, sum(g.numel() for g in part)))
    return GradientReading(weights, parts, is_whole)


@dataclass(frozen=True)
class GradientToken:
    """Equal to another one if gradients were not written to in between: the first of them by its address, and
    its count of writes.

    Backward passes and clipping write to all gradients, so one stands for all. It is not kept alive, and not
    by a weak reference either: these may go before the gradient does.
    """

    address: int
    writes: int


def gradient_token(weights: Sequence[Weight]) -> GradientToken | None:
    """The token of the gradients as they are now; None if there are none."""
    for weight in weights:
        grad: Any = weight.parameter.grad
        if grad is not None and not grad.is_inference():
            return GradientToken(int(grad._cdata), int(grad._version))
    return None


class _Norms:
    """Norms of gradients as the statistic ``grad_norm`` of their weights, and as a part of the total."""

    def __init__(self, names: Sequence[str | None], total: Consumer) -> None:
        self._keep = np.array([i for i, name in enumerate(names) if name is not None], np.intp)
        self._names = tuple(name for name in names if name is not None)
        self._total = total

    def __call__(self, values: NDArray[np.float64], row: Row) -> None:
        self._total(values, row)
        if self._names:
            row.blocks.append(block_of(self._names, {"grad_norm": values[self._keep]}, {}))

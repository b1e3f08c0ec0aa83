"""Norms of tensors in host memory, where torch's own are slow or inexact.

Measured with torch 2.13 on one thread, per million float32 elements: ``_foreach_norm`` 0.24 ms, and 5.7 ms
where squares are subnormal (elements below 1e-19); the dot product of a vector with itself 0.20 and 0.4 ms.
The largest magnitude by ``_foreach_norm(inf)`` 2.8 ms, by ``aminmax`` 0.12. Of 16 million equal elements
``_foreach_norm`` is 1 % off, since it adds in float32; dot products of a million elements at a time are
within 4e-5. Of small tensors one fused call costs less than a call each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK = 2**20  # elements; also where a bfloat16 chunk widened to float32 still fits a cache


SMALL = 2**14  # elements; float32 sums are good enough for so few


def host_norms(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norms, float64 [n], of host tensors."""
    small = [i for i, x in enumerate(tensors) if x.numel() <= SMALL and x.dtype != torch.float64]
    if len(small) == len(tensors):
        return torch.stack(torch._foreach_norm(list(tensors), 2, dtype=torch.float32)).double()
    found = [0.0] * len(tensors)
    if small:
        few = torch._foreach_norm([tensors[i] for i in small], 2, dtype=torch.float32)
        for i, norm in zip(small, torch.stack(few).tolist(), strict=True):
            found[i] = norm
    for i, x in enumerate(tensors):
        if x.numel() > SMALL or x.dtype == torch.float64:
            found[i] = host_norm(x)
    return torch.tensor(found, dtype=torch.float64, device="cpu")


def host_norm(x: Tensor) -> float:
    """L2 norm of a host tensor of any real floating-point dtype and shape; NaN and Inf where it has any."""
    x = x.detach()
    if x.dtype == torch.float64 or not x.is_contiguous():
        return float(torch.linalg.vector_norm(x, dtype=torch.float64))
    total = 0.0
    for chunk in _chunks(x):
        wide = chunk.float()
        total += float(torch.dot(wide, wide))
    if math.isfinite(total):
        return math.sqrt(total)
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))  # squares beyond float32, or truly not


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    flat = x.view(-1)
    return torch.split(flat, CHUNK) if flat.numel() > CHUNK else (flat,)


def host_amax(x: Tensor) -> Tensor:
    """Largest magnitude, shape (), of a host tensor; NaN where it has one."""
    low, high = torch.aminmax(x.detach())
    return torch.maximum(high, -low)

"""Histograms of a tensor's exponents, from the bits of its values.

A value of exponent e is 2**e or more and less than 2**(e+1). Counted are finite non-zero elements; exponents
below -40 and above 23 are counted at the ends. Subnormal values of the narrow formats are far below -40.
"""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.protocol.names import HIST_BINS

LOWEST_EXPONENT = -40
_SPREAD = 256  # places per bin that a device counts in at the same time, so that its counters do not collide

_BITS: dict[torch.dtype, tuple[torch.dtype, int, int, int]] = {
    torch.float64: (torch.int64, 52, 0x7FF, 1023),
    torch.float32: (torch.int32, 23, 0xFF, 127),
    torch.bfloat16: (torch.int16, 7, 0xFF, 127),
}
"""Integers of the same size, bits of the fraction, mask and bias of the exponent."""


def exponents(x: Tensor) -> Tensor:
    """Counts, int64 [HIST_BINS], on the tensor's device, without looking at any value.

    x: real floating-point, any shape; float16 is widened, since its subnormal values lie inside the range.
    """
    flat = x.detach().reshape(-1)
    if flat.dtype not in _BITS:
        flat = flat.float()
    whole, fraction_bits, mask, bias = _BITS[flat.dtype]
    field = (flat.view(whole) >> fraction_bits) & mask
    bins = (field - (bias + LOWEST_EXPONENT)).clamp_(0, HIST_BINS - 1)
    counts = count_on_cpu(bins) if bins.device.type == "cpu" else count_on_device(bins)
    zeros = flat.numel() - torch.count_nonzero(flat)
    counts.narrow(0, 0, 1).sub_(zeros)  # they were counted in the lowest bin
    counts.narrow(0, HIST_BINS - 1, 1).sub_(torch.count_nonzero(field == mask))  # NaN and infinity
    return counts


def count_on_cpu(bins: Tensor) -> Tensor:
    """Counts, int64 [HIST_BINS], of bin numbers of any integer dtype."""
    return torch.bincount(bins, minlength=HIST_BINS)


def count_on_device(bins: Tensor) -> Tensor:
    """The same without waiting: bincount looks at the largest value first, adding into places does not."""
    index = bins.to(torch.int32)
    index += HIST_BINS * (torch.arange(len(bins), dtype=torch.int32, device=bins.device) % _SPREAD)
    places = torch.zeros(HIST_BINS * _SPREAD, dtype=torch.int32, device=bins.device)
    places.index_add_(0, index, torch.ones_like(index))
    return places.view(_SPREAD, HIST_BINS).sum(dim=0)

"""Scales per block: 1 x 128 and 128 x 128 blocks (Float8BlockScaling) and 1 x 32 blocks with E8M0 scales
(MXFP8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

E8M0_LOWEST, E8M0_HIGHEST = -127, 127
"""Exponents an E8M0 scale can have (OCP MX 1.0, section 5.4.1)."""


@dataclass(frozen=True)
class BlockShape:
    """Rows and columns of a block, and which way its power-of-two scale is rounded.

    down: the multiplying scale is rounded down, so the largest element never passes the maximum by rounding
    (Float8BlockScaling, `force_pow_2_scales`).  e8m0: the stored inverse scale amax / limit is rounded up to
    an E8M0 number, which is the same but for the range of exponents and for a block of zeros.
    """

    rows: int
    columns: int
    rounding: Literal["down", "e8m0"]

    @property
    def is_square(self) -> bool:
        """Whether the blocks of the transpose are the transposed blocks."""
        return self.rows == self.columns

    def grid(self, size: torch.Size) -> tuple[int, int]:
        """Number of blocks down and across; the last ones may be cut off."""
        return -(-size[0] // self.rows), -(-size[1] // self.columns)


def block_scales(values: Tensor, *, shape: BlockShape, limit: float) -> Tensor:
    """The scale of each block, shape `shape.grid(values.shape)`. A block's amax drops NaN.

    down: 2^floor(log2(limit / amax)); 1 where amax is 0 or infinite (`compute_scale_from_amax`).
    e8m0: 2^-ceil(log2(amax / limit)), exponent within E8M0; a block of zeros gets the largest scale, an
    infinite one the smallest.
    """
    down, across = shape.grid(values.shape)
    padded = functional.pad(
        values, (0, across * shape.columns - values.shape[1], 0, down * shape.rows - values.shape[0])
    )
    blocks = padded.view(down, shape.rows, across, shape.columns)
    low, high = blocks.amin(dim=(1, 3)), blocks.amax(dim=(1, 3))
    largest = torch.maximum(-low, high)
    if largest.isnan().any():
        largest = blocks.abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(dim=(1, 3))
    if shape.rounding == "down":
        usable = torch.isfinite(largest) & (largest > 0)
        quotient = (limit / largest).clamp_(max=torch.finfo(torch.float32).max)
        return torch.where(usable, (quotient.view(torch.int32) & ~0x7FFFFF).view(torch.float32), 1.0)
    mantissa, exponent = torch.frexp(
        largest / limit
    )  # quotient = mantissa * 2^exponent with mantissa in [0.5, 1)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)  # an exact power of two is not rounded up
    exponent = exponent.to(torch.float32)
    exponent = torch.where(largest == 0, float(E8M0_LOWEST), exponent)
    exponent = torch.where(torch.isinf(largest), float(E8M0_HIGHEST), exponent)
    return torch.exp2(-exponent.clamp(E8M0_LOWEST, E8M0_HIGHEST))


def expand_blocks(scales: Tensor, *, shape: BlockShape, like: Tensor) -> Tensor:
    """Each element's scale, same shape as `like`."""
    rows = scales if shape.rows == 1 else scales.repeat_interleave(shape.rows, dim=0)[: like.shape[0]]
    return rows.repeat_interleave(shape.columns, dim=1)[:, : like.shape[1]]

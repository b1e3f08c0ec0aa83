"""Which rows of a very large tensor are measured.

Picked before anything is computed: what a cast left is dequantised for these rows alone, so that the memory a
measurement takes is bounded, however large the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from floatscope.probes.blocks import block_shape


@dataclass(frozen=True)
class RowSample:
    """Every so many-th band of rows of a tensor seen as a matrix; with ``every`` 1 all of it, as it is.

    height: rows of a band: those that share their scales.  bands: whole ones in the tensor.
    """

    every: int = 1
    height: int = 1
    bands: int = 0

    def of(self, x: Tensor) -> Tensor:
        """The rows, (rows, columns); copies at most those."""
        if self.every == 1:
            return x
        if x.dim() == 2 or x.is_contiguous():
            matrix = x if x.dim() == 2 else x.view(-1, x.shape[-1])
            if self.height == 1:
                return self._every_band(matrix)
            whole = matrix.narrow(0, 0, self.bands * self.height)
            return self._every_band(whole.view(self.bands, self.height, -1)).flatten(0, 1)
        rows = torch.arange(self.bands * self.height, device=x.device).view(self.bands, self.height)
        index = self._every_band(rows).flatten()
        places = []
        for length in reversed(x.shape[:-1]):
            places.append(index % length)
            index = index // length
        return x[tuple(reversed(places))]

    def scales(self, scale: Tensor) -> Tensor:
        """The scales of those rows, of one per tensor, column or block."""
        if self.every == 1 or scale.numel() == 1:
            return scale
        grid = scale.reshape(-1, scale.shape[-1])
        return scale if grid.shape[0] == 1 else self._every_band(grid.narrow(0, 0, self.bands))

    def _every_band(self, x: Tensor) -> Tensor:
        """``x[:: every]``, a view."""
        return x.unfold(0, 1, self.every).squeeze(-1)


ALL_ROWS = RowSample()

Used = Tensor | Callable[[RowSample], Tensor | None]
"""What a GEMM uses in place of a tensor: it, or a function that makes given rows of it."""


def row_sample(x: Tensor, scale: Tensor | None, *, most: int) -> RowSample | None:
    """Rows with some ``most`` elements together; None where it cannot be told which have which scale.

    x: before the cast.  scale: shape (), one per column, or one per block.
    """
    if x.numel() <= most or x.dim() < 2:
        return ALL_ROWS
    rows = x.numel() // x.shape[-1]
    every, height = -(-x.numel() // most), 1
    if scale is not None and scale.numel() > 1:
        shape = block_shape(scale, x)
        if shape is None:
            return None
        height = shape[0] if scale.numel() > scale.shape[-1] else 1
    bands = rows // height
    return RowSample(min(every, bands), height, bands)

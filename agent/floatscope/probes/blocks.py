"""Scales that belong to blocks of a tensor: which element has which, and the largest value of each block."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

BLOCK_SIDES = (1, 128, 32, 16)
"""Sides of blocks in use: 1 x 128 and 128 x 128 (block scaling), 1 x 32 (MX), 1 x 16 (NVFP4); 1 for rows."""


def block_shape(scale: Tensor, x: Tensor) -> tuple[int, int] | None:
    """Rows and columns of a block of x (seen as a matrix), or None if the scales do not tile it."""
    rows, columns = _matrix_shape(x)
    if scale.dim() < 2:
        return None
    down, across = scale.numel() // scale.shape[-1], scale.shape[-1]
    height, width = _side(rows, down), _side(columns, across)
    return None if height is None or width is None else (height, width)


def _side(length: int, count: int) -> int | None:
    """The side of a block when ``count`` of them cover ``length``; the last one may be cut off."""
    if count == 1:
        return length
    for side in BLOCK_SIDES:
        if -(-length // side) == count:
            return side
    return length // count if count and length % count == 0 else None


def spread_scale(scale: Tensor, x: Tensor) -> Tensor | None:
    """Each element's scale, of shape () or the shape of x; None if it cannot be told."""
    if scale.numel() == 1:
        return scale.reshape(()).float()
    shape = block_shape(scale, x)
    if shape is None:
        return None
    rows, columns = _matrix_shape(x)
    grid = scale.reshape(-1, scale.shape[-1]).float()
    down, across = grid.shape
    tiles = grid.view(down, 1, across, 1).expand(down, shape[0], across, shape[1])
    whole = tiles.reshape(down * shape[0], across * shape[1])
    return whole.narrow(0, 0, rows).narrow(1, 0, columns).reshape(x.shape)


def block_amax(x: Tensor, scale: Tensor) -> Tensor | None:
    """Largest finite abs(x) of each block, (blocks down, blocks across); None for one scale per tensor."""
    if scale.numel() == 1:
        return None
    shape = block_shape(scale, x)
    if shape is None:
        return None
    rows, columns = _matrix_shape(x)
    down, across = -(-rows // shape[0]), -(-columns // shape[1])
    size = torch.nan_to_num(x.reshape(rows, columns).abs(), nan=0.0, posinf=0.0)
    padded = functional.pad(size, (0, across * shape[1] - columns, 0, down * shape[0] - rows))
    return padded.view(down, shape[0], across, shape[1]).amax(dim=(1, 3))


def _matrix_shape(x: Tensor) -> tuple[int, int]:
    columns = x.shape[-1] if x.dim() else 1
    return x.numel() // max(columns, 1), columns

"""How much the largest values of a tensor's blocks and rows differ, for blocks as scales are given to.

With a histogram it says what scales per block or row would do: blocks that differ more than chance explains
have sizes of their own, and a histogram of the whole tensor then misleads.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.protocol.batch import Bool, Float32
from floatscope.rows import Block

SIZES = (16, 32, 128)
"""Elements of a row that share a scale: NVFP4, MX, block scaling."""

_NAMES = (*(f"block{size}" for size in SIZES), "row")
SD_STATS = tuple(f"{name}_amax_sd_log2" for name in _NAMES)
MEAN_STATS = tuple(f"{name}_amax_mean_log2" for name in _NAMES)
"""Standard deviation and mean, in octaves, of log2 amax over whole blocks and over rows that are not all zero
and hold no NaN or infinity."""

MOMENTS = 3
"""Numbers per statistic: how many blocks, the mean of log2 amax, the sum of squares around it."""


def block_spread(x: Tensor) -> Tensor:
    """float32 [len(SD_STATS) * MOMENTS] on the tensor's device, without looking at any value.

    x: real floating-point; rows are along the last axis. One pass over x, the rest is a sixteenth of it.
    """
    columns = x.shape[-1] if x.dim() else 1
    rows = x.detach().reshape(-1, columns)
    size = rows.abs()
    found: list[Tensor] = []
    fine, width = size, 1
    for wanted in SIZES:
        whole = columns // wanted
        if whole:
            step = wanted // width
            fine = fine.narrow(1, 0, whole * step).reshape(len(rows), whole, step).amax(dim=2)
            width = wanted
            found.append(_moments(fine))
        else:
            found.append(size.new_zeros(MOMENTS, dtype=torch.float32))
    covered = columns // width * width
    row = fine.narrow(1, 0, columns // width).amax(dim=1)
    if covered < columns:
        row = torch.maximum(row, size.narrow(1, covered, columns - covered).amax(dim=1))
    found.append(_moments(row))
    return torch.cat(found)


def _moments(amax: Tensor) -> Tensor:
    log = torch.log2(amax.float())
    is_usual = torch.isfinite(log)  # not those of zeros, whose logarithm is -inf
    count = is_usual.sum()
    mean = torch.where(is_usual, log, 0).sum() / count.clamp(min=1)
    square = torch.where(is_usual, log - mean, 0).square().sum()
    return torch.stack([count.float(), mean, square])


def spread_block(found: list[tuple[int, NDArray[np.float64]]], names: tuple[str, ...]) -> Block:
    """Statistics of measured tensors; several passes of one count as one tensor.

    found: number of the tensor and its ``block_spread``.  A statistic of fewer than two blocks is missing.
    """
    slots = sorted({slot for slot, _ in found})
    place = {slot: index for index, slot in enumerate(slots)}
    total = np.zeros((len(slots), len(SD_STATS), MOMENTS))
    for slot, values in found:
        _join(total[place[slot]], values.reshape(len(SD_STATS), MOMENTS))
    count = total[:, :, 0]
    sd = np.sqrt(total[:, :, 2] / np.maximum(count, 1)).astype(np.float32)
    present = count >= 2
    mean = total[:, :, 1].astype(np.float32)
    stats: dict[str, Float32] = {}
    masks: dict[str, Bool] = {}
    for k in range(len(SD_STATS)):
        if present[:, k].any():
            stats[SD_STATS[k]], stats[MEAN_STATS[k]] = sd[:, k], mean[:, k]
            masks[SD_STATS[k]] = masks[MEAN_STATS[k]] = present[:, k]
    return Block(tuple(names[slot] for slot in slots), stats, masks)


def _join(total: NDArray[np.float64], more: NDArray[np.float64]) -> None:
    """Adds moments to moments (Chan, Golub and LeVeque 1979)."""
    count = total[:, 0] + more[:, 0]
    share = np.divide(more[:, 0], count, out=np.zeros(len(count)), where=count > 0)
    apart = more[:, 1] - total[:, 1]
    total[:, 2] += more[:, 2] + apart**2 * total[:, 0] * share
    total[:, 1] += apart * share
    total[:, 0] = count

"""Blocks that are not alike: rows or regions of a tensor that are larger than others as a whole.

Taken is x = r z: one log-normal size r per block, and a generalised Gaussian z, density exp(-abs(z)**p), that
falls into blocks by chance. Two equations give p and the spread of r: the variances of log2 r and log2
abs(z) add up to the histogram's, and those of log2 r and of log2 block amax of z to the one that was logged.
Where the mean of log2 block amax was logged too, it decides p, and block amaxes of z are made to agree.
Richardson-Lucy steps (Richardson 1972, Lucy 1974) then fit z to the histogram. Source of the model: own
derivation, checked by ``benchmarks/whatif``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from floatscope_diagnostics.whatif.block_model import (
    amax_log2,
    amax_weights,
    as_logged,
    with_block_scales,
)
from floatscope_diagnostics.whatif.density import Floats, Points
from floatscope_diagnostics.whatif.grids import Grid
from floatscope_diagnostics.whatif.spread import BlockAmax
from floatscope_diagnostics.whatif.tensor_model import Losses
from floatscope_diagnostics.whatif.variant import ScaleKind

_CELLS_PER_OCTAVE = 12
_STEPS = 2
_POWERS = tuple(np.geomspace(0.25, 6.0, 24).tolist())
"""p: 2 is Gaussian, 1 Laplace, below that heavier."""
_PHASES = (0.0, 0.25, 0.5, 0.75)
"""Parts of an octave: scales that are powers of two do the same to blocks that are an octave apart."""
_WIDE = tuple(np.linspace(-2.4, 2.4, 9).tolist())


@dataclass(frozen=True, eq=False)
class UnlikeBlocks:
    """z, the standard deviation of log2 r, and each point's probability to be the largest of a block."""

    z: Points
    sd: float
    p: Floats
    zero_share: float = 0.0


def unlike_blocks(points: Points, block: int, logged: BlockAmax, zero_share: float = 0.0) -> UnlikeBlocks:
    """The model of a tensor.  logged: of blocks that are not alike.  zero_share: as in ``amax_weights``."""
    u = np.log2(points.x)
    mean = float(points.w @ u)
    variance = float(points.w @ (u - mean) ** 2)
    best, sd, miss = points, logged.sd, math.inf
    for power in _POWERS:
        z = _generalised_gaussian(power, points.n)
        v = np.log2(z.x)
        own = float(z.w @ (v - float(z.w @ v)) ** 2)
        between = variance - own
        if between <= 0:
            continue
        if logged.mean is None:
            off = abs(math.hypot(math.sqrt(between), amax_log2(z, block, zero_share).sd) - logged.sd)
        else:
            above = float(amax_weights(z, block, zero_share) @ v) - float(z.w @ v)
            off = abs(above - (logged.mean - mean))
        if off < miss:
            best, sd, miss = z, math.sqrt(between), off
    shift = mean - float(best.w @ np.log2(best.x)) if best is not points else 0.0
    z = _fitted(points, Points(best.x * 2.0**shift, best.w, best.n), sd)
    p = amax_weights(z, block, zero_share)
    if logged.mean is not None:
        p = as_logged(z, p, math.sqrt(max(logged.sd**2 - sd**2, 0.0)), logged.mean)
    return UnlikeBlocks(z, sd, p, zero_share)


def with_unlike_blocks(
    model: UnlikeBlocks, grid: Grid, kind: ScaleKind, block: int, whole_amax: float
) -> Losses:
    """As ``with_block_scales``."""
    z, sd, zero = model.z, model.sd, model.zero_share
    if kind == "fp32":  # a block twice as large has half the scale and loses the same share
        return with_block_scales(z, grid, kind, block, whole_amax, p=model.p, zero_share=zero)
    if kind == "nv":
        parts = [(t * sd, math.exp(-t * t / 2)) for t in _WIDE]
    else:
        parts = [(phase, 1.0) for phase in _PHASES]
    found: list[tuple[float, Losses, float]] = []
    for shift, weight in parts:
        moved = Points(z.x * 2.0**shift, z.w, z.n)
        power = weight * 4.0**shift if kind == "nv" else weight
        whole = max(whole_amax, float(moved.x[-1]))  # no block is larger than the tensor
        found.append(
            (weight, with_block_scales(moved, grid, kind, block, whole, p=model.p, zero_share=zero), power)
        )
    by_count = sum(weight for weight, _, _ in found)
    by_power = sum(power for _, _, power in found)
    return Losses(
        under=sum(weight * part.under for weight, part, _ in found) / by_count,
        over=sum(weight * part.over for weight, part, _ in found) / by_count,
        noise=sum(power * part.noise for _, part, power in found) / by_power,
        bulk_noise=sum(power * part.bulk_noise for _, part, power in found) / by_power,
        power=found[0][1].power,
        bulk_power=found[0][1].bulk_power,
        chance=sum(power * part.chance for _, part, power in found) / by_power,
    )


def _generalised_gaussian(power: float, n: float) -> Points:
    """abs(z) from where 1 in 100 n is smaller to where 1 in n is larger."""
    u = np.arange(-30 * _CELLS_PER_OCTAVE, 24 * _CELLS_PER_OCTAVE) / _CELLS_PER_OCTAVE
    log_w = u * math.log(2.0) - np.exp2(np.minimum(u * power, 60.0))
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    above = np.cumsum(w[::-1])[::-1]
    kept = (above > 1.0 / n) & (np.cumsum(w) > 0.01 / n)
    return Points(np.exp2(u[kept]), w[kept] / w[kept].sum(), n)


def _fitted(points: Points, z: Points, sd: float) -> Points:
    """z after some steps towards what makes the histogram of x."""
    u = np.log2(z.x)
    reach = max(round(4 * sd * _CELLS_PER_OCTAVE), 1)
    t = np.arange(-reach, reach + 1) / _CELLS_PER_OCTAVE
    kernel = np.exp(-0.5 * (t / max(sd, 1e-6)) ** 2)
    kernel /= kernel.sum()
    half = 0.5 / _CELLS_PER_OCTAVE
    edges = u[0] - half + np.arange(-reach, len(u) + reach + 1) / _CELLS_PER_OCTAVE
    seen: Floats = np.histogram(np.log2(points.x), edges, weights=points.w)[0]
    w = z.w
    for _ in range(_STEPS):
        made = np.convolve(w, kernel)
        ratio = np.divide(seen, made, out=np.ones_like(made), where=made > 1e-9)
        w = w * np.convolve(ratio, kernel, mode="valid")
        w = w / w.sum()
    return Points(z.x, w, z.n)

"""What one scale per block or row does to a distribution whose elements fall into blocks by chance."""

from __future__ import annotations

import math

import numpy as np

from floatscope_diagnostics.whatif.chance import Drawn, chance, first_of_few
from floatscope_diagnostics.whatif.density import Floats, Points
from floatscope_diagnostics.whatif.grids import Grid
from floatscope_diagnostics.whatif.scales import scales
from floatscope_diagnostics.whatif.spread import BlockAmax
from floatscope_diagnostics.whatif.tensor_model import BULK_WITHOUT, Losses, rounded
from floatscope_diagnostics.whatif.variant import ScaleKind

_UNLIKELY = 1e-9
_LEAST_SD = 0.03  # in octaves, about the distance of points
_MOST_CELLS = 4_000_000
_NOISE = 2  # among the sums


def amax_weights(points: Points, block: int, zero_share: float = 0.0) -> Floats:
    """Probability that a point is the largest of a block that is not all zero.

    P(amax <= a) = G(a)**block, with G = z + (1 - z) F of all elements.  zero_share: z, 0 to below 1, of zeros
    that lie among the others by chance.
    """
    cdf = _cdf(points, zero_share)
    weights: Floats = np.diff(np.concatenate([[zero_share], cdf]) ** block)
    return weights / max(float(weights.sum()), 1e-300)


def amax_log2(points: Points, block: int, zero_share: float = 0.0) -> BlockAmax:
    """Mean and standard deviation of log2 block amax of blocks that are alike."""
    p = amax_weights(points, block, zero_share)
    u = np.log2(points.x)
    mean = float(p @ u)
    return BlockAmax(math.sqrt(max(float(p @ (u - mean) ** 2), 0.0)), mean)


def _cdf(points: Points, zero_share: float) -> Floats:
    """Of all elements, zeros included, at each point."""
    cdf: Floats = zero_share + (1.0 - zero_share) * np.minimum(np.cumsum(points.w), 1.0)
    cdf[-1] = 1.0
    return cdf


def as_logged(points: Points, p: Floats, sd: float, mean: float) -> Floats:
    """The weights nearest to p (in Kullback-Leibler divergence) with this mean and deviation of log2 amax.

    They are p exp(a v + b v**2), found by Newton's method; p itself where there are none. The few largest
    elements keep theirs: each lies in a block of its own, and so far out a tilt would move them most.
    """
    u = np.log2(points.x)
    v = (u - mean) / max(sd, _LEAST_SD)
    is_few = np.cumsum(points.w[::-1])[::-1] * points.n <= BULK_WITHOUT
    moved = (p > 0) & ~is_few
    few: Floats = np.where(is_few, p, 0.0)
    rest = 1.0 - float(few.sum())
    if rest <= 0.0:
        return p
    log_p = np.log(np.where(moved, p, 1.0))
    at = np.zeros(2)
    q: Floats = p
    for _ in range(60):
        log_q = np.where(moved, log_p + at[0] * v + at[1] * v * v, -np.inf)
        q = np.exp(log_q - log_q.max())
        q /= q.sum()
        m = [float(q @ v**k) for k in range(1, 5)]
        off = rest * np.array(m[:2]) + [float(few @ v), float(few @ v**2) - 1.0]
        if np.abs(off).max() < 1e-4:
            return few + rest * q
        slope = np.array([[m[1] - m[0] ** 2, m[2] - m[0] * m[1]], [m[2] - m[0] * m[1], m[3] - m[1] ** 2]])
        step = np.linalg.solve(rest * slope + 1e-9 * np.eye(2), off)
        at = at - step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        if not np.isfinite(at).all():
            return p
    return few + rest * q if np.abs(off).max() < 0.05 else p


def with_block_scales(
    points: Points,
    grid: Grid,
    kind: ScaleKind,
    block: int,
    whole_amax: float,
    *,
    per_group: int = 3,
    p: Floats | None = None,
    zero_share: float = 0.0,
) -> Losses:
    """Sums over the amax a of a block: one of its elements is a, the others follow G given x <= a.

    points: ascending.  per_group: neighbouring amaxes that share a scale in the sum where scales are
    continuous.  p: probability of each point to be the largest of a block, if it is not that of G**block.
    zero_share: as in ``amax_weights``.
    Source: own derivation, checked by ``benchmarks/whatif``.
    """
    if p is None:
        p = amax_weights(points, block, zero_share)
    cdf = _cdf(points, zero_share)
    likely = np.flatnonzero(p > _UNLIKELY)
    if kind == "fp32" and per_group > 1:
        last = likely[-1:]
        likely = np.unique(np.concatenate([likely[per_group // 2 :: per_group], last]))
        p = _grouped(p, likely)
    of_amax = scales(points.x[likely], grid, kind, whole_amax)
    different, which = np.unique(of_amax, return_inverse=True)
    unit = 1.0 / points.x[-1]
    bulk = points.bulk(BULK_WITHOUT)
    is_bulk = np.divide(bulk, points.w, out=np.zeros_like(bulk), where=points.w > 0)
    sums = np.zeros(4)
    few = first_of_few(points)
    largest, smaller = np.zeros((2, 3, len(points.x) - few))  # of a block: weight, noise, its square
    filled = np.cumsum(points.w)[likely] * (1.0 - zero_share) / cdf[likely]
    elements = float(p[likely] @ (1.0 + (block - 1) * filled))  # of a block, that are not zero
    rows = max(_MOST_CELLS // len(points.x), 1)
    for first in range(0, len(different), rows):
        some = different[first : first + rows, None]
        error, zero, over = rounded(points.x, points.x * some, grid, 1.0 / some)
        noise = (error * unit) ** 2
        mine = np.flatnonzero((which >= first) & (which < first + rows))
        row, column = which[mine] - first, likely[mine]
        share = p[column]
        others = share * (block - 1) * (1.0 - zero_share) / elements / cdf[column]
        for k, (values, weights) in enumerate(
            ((zero, points.w), (over, points.w), (noise, points.w), (noise, bulk))
        ):
            below = np.cumsum(values * weights, axis=1)[row, column]
            own = values[row, column] * (is_bulk[column] if k == 3 else 1.0)
            sums[k] += float(others @ below + share @ own / elements)
            if k == _NOISE:
                large = column >= few
                at, which_row = column[large] - few, row[large]
                above = np.zeros((len(some), len(points.x) - few))  # weight of larger amaxes by scale
                np.add.at(above, (which_row, at), others[large])
                above = points.w[few:] * np.cumsum(above[:, ::-1], axis=1)[:, ::-1]
                one = noise[:, few:]
                smaller += np.stack([above.sum(0), (above * one).sum(0), (above * one**2).sum(0)])
                weight = share[large] / elements
                drags = own[large] + others[large] / np.maximum(weight, 1e-300) * below[large]
                largest[:, at] = np.stack([weight, weight * drags, weight * drags**2])
    square = (points.x * unit) ** 2
    power = float(points.w @ square)
    return Losses(
        under=float(sums[0]),
        over=float(sums[1]),
        noise=float(sums[_NOISE]),
        bulk_noise=float(sums[3]),
        power=power,
        bulk_power=float(bulk @ square),
        chance=chance(points, (Drawn(*largest), Drawn(*smaller)), float(sums[_NOISE]), power),
    )


def _grouped(p: Floats, chosen: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Floats:
    """The weights of all points, moved to the nearest chosen ones."""
    edges = (chosen[1:] + chosen[:-1] + 1) // 2
    out = np.zeros_like(p)
    out[chosen] = np.add.reduceat(p, np.concatenate([[0], edges]))
    return out

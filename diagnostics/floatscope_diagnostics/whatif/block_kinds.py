"""Whether a tensor's blocks are alike, told from how their largest values are spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from floatscope_diagnostics.whatif.block_model import amax_log2, amax_weights
from floatscope_diagnostics.whatif.density import Points
from floatscope_diagnostics.whatif.spread import ROW, BlockAmax, Spread

WIDER, NARROWER, MUCH_NARROWER = 1.2, 0.75, 0.6
"""Ratio of the logged spread of log2 block amax to that of blocks that are alike: 0.68 to 1.16 on every kind
of data for which that model holds, up to 10 where rows have their own scale, 0.2 to 0.7 with outlier channels
or a few large rows."""
LOWER, LOWER_IN_SMALL, HIGHER, APART = -0.35, -0.16, 0.2, 0.1
"""Octaves that the logged mean of log2 block amax is above that of blocks that are alike: -0.26 to 0.09 on
every kind of data for which that model holds (-0.07 at the lowest in blocks of 16 and 32), down to -7 where
large values keep together in some blocks, 0.2 to 1 where each block has its share of them; smaller ones count
where the spread is odd too.  Both were measured on the kinds of data of ``benchmarks/whatif``."""
_LEAST_DIFFERENCE = 0.05
"""Octaves of spread; smaller ones are below the distance of the points of a distribution."""
_SURE = 4.0
"""Standard errors."""
_SMALL = 32
_IMPROBABLE = 1e-4

Blocks = Literal["alike", "unlike", "even", "unknown"]


@dataclass(frozen=True)
class BlockKind:
    """unlike: large values keep together in some blocks; even: they lie in the same places of every row.

    ratio: of the logged spread of log2 block amax to that of blocks that are alike.  apart: octaves that the
    logged mean is above theirs.  zero_share: of zeros that lie among the other values by chance; 0 if they
    keep to blocks of their own.
    """

    state: Blocks
    ratio: float | None = None
    apart: float | None = None
    zero_share: float = 0.0


def block_kind(spread: Spread, points: Points, size: int) -> BlockKind:
    """Of blocks of a size (``ROW`` for rows)."""
    elements = spread.row_length if size == ROW else size
    zero = min(max(spread.zero_share, 0.0), 1.0 - 1e-9)
    if elements is None or elements < 2 or elements > points.n / 2:
        return BlockKind("unknown", zero_share=zero)
    logged = spread.blocks.get(size)
    if logged is None:
        smallest = spread.amax_min_block if spread.min_block_size == elements else None
        is_odd = smallest is not None and _is_improbable(points, elements, smallest)
        return BlockKind("unlike" if is_odd else "unknown", zero_share=zero)
    expected = amax_log2(points, elements, zero)
    if zero and logged.mean is not None and expected.mean is not None:
        together = amax_log2(points, elements)
        if together.mean is not None and abs(logged.mean - together.mean) < abs(logged.mean - expected.mean):
            expected, zero = together, 0.0
    state, ratio, apart = _compared(
        logged, expected, points.n / (1.0 - zero) / elements, LOWER_IN_SMALL if elements <= _SMALL else LOWER
    )
    return BlockKind(state, ratio, apart, zero)


def _compared(
    logged: BlockAmax, expected: BlockAmax, blocks: float, lower: float
) -> tuple[Blocks, float, float | None]:
    ratio = logged.sd / max(expected.sd, 1e-3)
    wider = logged.sd - expected.sd
    ratio_says = ratio if abs(wider) > _LEAST_DIFFERENCE else 1.0
    if logged.mean is None or expected.mean is None:
        return "unlike" if ratio_says > WIDER else "even" if ratio_says < NARROWER else "alike", ratio, None
    apart = logged.mean - expected.mean
    if abs(apart) <= _SURE * logged.sd / math.sqrt(blocks):
        return "alike", ratio, apart
    is_odd = ratio_says > WIDER or ratio_says < MUCH_NARROWER
    if apart < lower or (apart < -APART and is_odd):
        return "unlike", ratio, apart
    if apart > HIGHER or (apart > APART and ratio_says < NARROWER):
        return "even", ratio, apart
    return "alike", ratio, apart


def _is_improbable(points: Points, elements: int, smallest: float) -> bool:
    """Whether no block of as many would by chance have as small an amax."""
    below = float(amax_weights(points, elements)[points.x <= smallest].sum())
    return below * points.n / elements < _IMPROBABLE

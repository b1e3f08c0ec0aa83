"""What a run has stored of a tensor's values at one step: the input of a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.names import HIST_BINS

LOWEST_EXPONENT = -40
"""Of the first bin (``floatscope.probes.exponents``); what is smaller is counted in it."""

ROW = 0
"""Stands for a row among the sizes of blocks."""

BLOCK_NAMES = {16: "block16", 32: "block32", 128: "block128", ROW: "row"}
"""By size of the block: begin the names of the agent's statistics ``..._amax_sd_log2`` and
``..._amax_mean_log2``, the standard deviation and mean of log2 of the blocks' amaxes."""


@dataclass(frozen=True)
class BlockAmax:
    """Of log2 block amax, in octaves.  mean: None if it was not logged."""

    sd: float
    mean: float | None = None


@dataclass(frozen=True, eq=False)
class Spread:
    """How the values of a tensor are spread over the powers of two, and over its blocks.

    counts: [64], finite non-zero elements by exponent from -40 to 23.  amax: largest abs value, None if
    unknown.  rms: root mean square of all finite elements, zeros included.  scale: the multiplying scale that
    the run used, of ``format_in_use`` (the protocol's name).
    row_length: elements of a row.  blocks: how log2 block amax is spread, by elements of a block, ``ROW`` for
    rows; absent where not logged.  zero_share: 0 to 1, of all finite elements.  amax_min_block: smallest amax
    of a block of ``min_block_size`` elements.  rows_every: of so many rows one was looked at.  step: of the
    histogram; stats_step: of the other numbers, None if the same.
    """

    counts: NDArray[np.int64]
    amax: float | None = None
    rms: float | None = None
    scale: float | None = None
    format_in_use: str | None = None
    row_length: int | None = None
    blocks: Mapping[int, BlockAmax] = field(default_factory=dict)
    amax_min_block: float | None = None
    min_block_size: int | None = None
    zero_share: float = 0.0
    rows_every: int = 1
    step: int | None = None
    stats_step: int | None = None

    @property
    def n(self) -> int:
        """Elements in the histogram."""
        return int(self.counts.sum())

    @property
    def top_exponent(self) -> int:
        """Exponent of the highest bin that is not empty; only of a histogram with counts."""
        return int(np.flatnonzero(self.counts)[-1]) + LOWEST_EXPONENT

    @property
    def largest(self) -> float:
        """amax where it belongs to this histogram, else the upper end of its highest bin.

        In the last bin, which also holds everything above, only amax can say.
        """
        top = self.top_exponent
        amax = self.amax
        if amax is None or not math.isfinite(amax) or amax <= 0:
            return 2.0 ** (top + 1)
        exponent = math.frexp(amax)[1] - 1
        if exponent == top:
            return amax
        is_end = top == LOWEST_EXPONENT + HIST_BINS - 1 and exponent > top
        is_low = top == LOWEST_EXPONENT and exponent < top
        return amax if is_end or is_low or (exponent > top and self.rows_every > 1) else 2.0 ** (top + 1)

    @property
    def power(self) -> float | None:
        """Mean square of the non-zero elements over that of ``largest``; None where no rms was logged, or one
        that this histogram cannot have.
        """
        rms = self.rms
        if rms is None or not math.isfinite(rms) or not self.n or self.zero_share >= 1.0:
            return None
        at = np.flatnonzero(self.counts)
        share = self.counts[at] / self.n
        low = np.exp2(at + float(LOWEST_EXPONENT)) / self.largest
        high = np.append(2.0 * low[:-1], 1.0)
        low[at == 0] = 0.0  # all that is smaller is counted there
        power = (rms / self.largest) ** 2 / (1.0 - self.zero_share)
        if not share @ low**2 <= power <= share @ high**2:
            return None
        return power


def histogram(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Counts as the agent's: finite non-zero elements by exponent, clamped at the ends."""
    size = np.abs(values[np.isfinite(values) & (values != 0)]).astype(np.float64)
    bins = np.clip(np.frexp(size)[1] - 1 - LOWEST_EXPONENT, 0, HIST_BINS - 1)
    return np.bincount(bins, minlength=HIST_BINS).astype(np.int64)


def block_amax_of(values: NDArray[np.float32], size: int) -> BlockAmax | None:
    """Spread of log2 amax over the whole blocks of a matrix's rows; None below two with values.

    values: [rows, columns].  size: elements of a block, ``ROW`` for whole rows.  The definition of the
    agent's statistics (``floatscope.probes.block_spread``).
    """
    rows, columns = values.shape
    width = columns if size == ROW else size
    whole = columns // width * width
    if not whole:
        return None
    amax = np.abs(values[:, :whole]).reshape(rows, -1, width).max(axis=2)
    amax = amax[np.isfinite(amax) & (amax > 0)].astype(np.float64)
    log = np.log2(amax)
    return BlockAmax(float(log.std()), float(log.mean())) if amax.size > 1 else None


def spread_of(values: NDArray[np.float32]) -> Spread:
    """What the agent would store of a matrix. values: [rows, columns], finite."""
    size = np.abs(values)
    found = {width: block_amax_of(values, width) for width in BLOCK_NAMES}
    return Spread(
        counts=histogram(values),
        amax=float(size.max()) if size.size else None,
        rms=float(np.sqrt(np.mean(values.astype(np.float64) ** 2))) if size.size else None,
        row_length=values.shape[1],
        blocks={width: one for width, one in found.items() if one is not None},
        zero_share=1.0 - np.count_nonzero(values) / values.size if values.size else 0.0,
    )

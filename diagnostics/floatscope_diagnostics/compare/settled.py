"""The part of a pair of runs that is judged: past the learning rate's warm-up and the first tenth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.judge import Comparison
from floatscope_diagnostics.compare.side import Side

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

FIRST_SHARE = 0.1
"""Of the common steps, left out: there the losses fall so fast that rounding decides little."""
MAX_VALUES = 50_000
"""Of a longer series means of neighbours are judged: the answer is the same, and a million steps take no more
time than these."""
WARM = 0.99  # of the highest learning rate: warm-up is over


@dataclass(frozen=True, eq=False)
class Settled:
    """The pairs that count.

    step: int64 [n].  gap: float64 [n], nats, run minus baseline, finite.  first_step, last_step: of all that
    is common.  warm_until: first step at the full learning rate; None if not logged.  warming: the learning
    rate still rose at the last pair.  width: pairs in each value of gap, 1 but for long series.  span: steps
    that are judged.  pairs: that were paired in them.
    """

    step: Int64
    gap: Float64
    first_step: int
    last_step: int
    warm_until: int | None
    warming: bool
    stride: int
    width: int = 1

    @property
    def pairs(self) -> int:
        return len(self.step) * self.width

    @property
    def span(self) -> int:
        return int(self.step[-1] - self.step[0]) + 1 if len(self.step) else 0


def settled(c: Comparison) -> Settled:
    """The judged part of a comparison; it may be empty."""
    pairs = c.pairs
    first, last = int(pairs.step[0]), int(pairs.step[-1])
    warm, warming = _warm(c.base, first, last)
    if warm is None:
        warm, warming = _warm(c.run, first, last)
    start = first + FIRST_SHARE * (last - first)
    if warm is not None and not warming:
        start = max(start, warm)
    keep = np.isfinite(pairs.gap) & (pairs.step >= start)
    width = max(math.ceil(int(keep.sum()) / MAX_VALUES), 1)
    step, gap = (averaged(values[keep], width) for values in (pairs.step.astype(np.float64), pairs.gap))
    return Settled(step.astype(np.int64), gap, first, last, warm, warming, pairs.stride * width, width)


def averaged(values: Float64, width: int) -> Float64:
    """Means of ``width`` neighbours each; a rest at the end is left out."""
    whole = len(values) // width * width
    return values if width == 1 else values[:whole].reshape(-1, width).mean(axis=1)


def _warm(side: Side, first: int, last: int) -> tuple[int | None, bool]:
    """The first step at the full learning rate, and whether the rate was still rising at the end."""
    good = np.isfinite(side.lr) & (side.step <= last)
    if not good.any():
        return None, False
    step, lr = side.step[good], side.lr[good]
    top = float(lr.max())
    if top <= 0.0:
        return None, False
    warm = int(step[int(np.argmax(lr >= WARM * top))])
    tail = lr[-max(len(lr) // 10, 2) :]
    rising = bool(len(lr) >= 10 and warm > first and (np.diff(tail) > 0.0).all())
    return warm, rising

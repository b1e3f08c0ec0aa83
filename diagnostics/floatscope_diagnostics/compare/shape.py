"""Whether the gap between two runs is constant, widens or closes.

A biased forward pass (rounding that truncates, a wrong cast) costs a constant number of nats; an error that
builds up in the state (weights that are not updated, gradients or moments that lose their low bits) costs
more with every step. Least squares line; its error comes from block sums of the residuals (Newey and West
1987 with non-overlapping blocks; Student's t with the blocks' degrees of freedom).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.noise import noise_of, student_quantile

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

MIN_BLOCKS = 6
CONSTANT_SHARE = 0.5  # a change over the stretch certainly below this share of the gap is no slope
Kind = Literal["none", "constant", "widening", "closing", "cannot_tell_yet"]


@dataclass(frozen=True)
class Shape:
    """The gap over a stretch of steps, as a line.

    change, low, high: of the gap from the first to the last step, in nats, with its band.  start, end: the
    line's gap at either.  per_1000: change a thousand steps.
    """

    kind: Kind
    first_step: int
    last_step: int
    start: float | None = None
    end: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def per_1000(self) -> float | None:
        span = self.last_step - self.first_step
        return None if self.change is None or span == 0 else 1000.0 * self.change / span


def shape_of(step: Int64, gap: Float64, *, confidence: float, apart: bool) -> Shape:
    """The shape of ``gap`` [n] at ``step`` [n]. apart: whether there is a gap at all."""
    first, last = int(step[0]), int(step[-1])
    size = float(np.abs(gap).max(initial=0.0))
    if size == 0.0:
        return Shape("none", first, last, 0.0, 0.0, 0.0, 0.0, 0.0)
    n = len(gap)
    if n < MIN_BLOCKS or first == last:
        return Shape("cannot_tell_yet" if apart else "none", first, last)
    x = (step - step.mean()) / (last - first)
    y = gap / size
    power = float(x @ x)
    slope = float(x @ y) / power
    rest = y - y.mean() - slope * x
    noise = noise_of(rest)
    width = max(min(max(noise.block, math.ceil(n / noise.n_eff)), n // MIN_BLOCKS), 1)
    blocks = n // width
    score = (x * rest)[: blocks * width].reshape(blocks, width).sum(axis=1)
    error = math.sqrt(float(score @ score) * blocks / (blocks - 2)) / power
    error = max(error, noise.long_run_sd / math.sqrt(power))
    half = (
        student_quantile(0.5 + 0.5 * confidence, float(min(blocks - 2, max(noise.n_eff - 2.0, 1.0)))) * error
    )
    mean = float(y.mean())
    start, end = mean + slope * float(x[0]), mean + slope * float(x[-1])
    low, high = slope - half, slope + half
    kind: Kind = "none"
    if apart:
        toward = math.copysign(1.0, mean)
        if min(toward * low, toward * high) > 0.0:
            kind = "widening"
        elif max(toward * low, toward * high) < 0.0:
            kind = "closing"
        else:
            kind = "constant" if max(-low, high) < CONSTANT_SHARE * abs(mean) else "cannot_tell_yet"
        if kind != "cannot_tell_yet" and max(-low, high) < 0.5 * CONSTANT_SHARE * abs(mean):
            kind = "constant"  # a slope that is certain but small beside the gap
    return Shape(
        kind, first, last, start * size, end * size, slope * size, low * size, high * size
    )  # fmt: skip

"""Stretches in which a curve stands above the lowest level it had reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from floatscope_diagnostics.curve_shapes.bins import Float64

BACK_SHARE = 0.3  # of the peak's height: back
ONSET_SHARE = 0.15  # of the height, left for good on the way up


@dataclass(frozen=True)
class Excursion:
    """Indices into the curve's bins. low: where the lowest level before it was reached.  onset: first bin
    that is on the way up for good.  noticed: first bin above the threshold.  peak: highest bin.  end: first
    bin that is back, None while it has not come back.  base: the lowest level.  height: of the peak above it.
    """

    low: int
    onset: int
    noticed: int
    peak: int
    end: int | None
    base: float
    height: float


def excursions(y: Float64, *, threshold: float, noise: float) -> Iterator[Excursion]:
    """All excursions of more than ``threshold`` above the running minimum, in order.

    noise: standard deviation of an entry; a curve is back when it is within two of it.
    """
    base, low = np.inf, 0
    begun: int | None = None
    noticed = peak = 0
    for i, value in enumerate(y.tolist()):
        if begun is None:
            if value < base:
                base, low = value, i
            elif value - base > threshold:
                begun, noticed, peak = low, i, i
            continue
        if value > y[peak]:
            peak = i
        height = float(y[peak]) - base
        if value - base <= max(BACK_SHARE * height, 2.0 * noise):
            yield _made(y, low, noticed, peak, i, base)
            begun = None
            if value < base:
                base, low = value, i
    if begun is not None:
        yield _made(y, low, noticed, peak, None, base)


def _made(y: Float64, low: int, noticed: int, peak: int, end: int | None, base: float) -> Excursion:
    height = float(y[peak]) - base
    early = _left(y, low, peak, base + ONSET_SHARE * height)
    half = _left(y, low, peak, base + 0.5 * height)
    back = round((half - early) * ONSET_SHARE / (0.5 - ONSET_SHARE))  # a slope, drawn back to the base
    onset = max(early - back, low) + 1
    return Excursion(low, min(onset, noticed), noticed, peak, end, base, height)


def _left(y: Float64, low: int, peak: int, level: float) -> int:
    """Last entry before the peak that is at or below a level."""
    return low + int(np.flatnonzero(y[low:peak] <= level)[-1]) if peak > low else low

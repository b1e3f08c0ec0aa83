"""Stretches in which a curve stands above the lowest level it had reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from floatscope_diagnostics.curve_shapes.bins import Float64

BACK_SHARE = 0.3  # of the peak's height: back
RELAPSE_BINS = 3
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

    noise: standard deviation of an entry; a curve is back when it is within two of it.  One that rises again
    within RELAPSE_BINS from a level it had not quite come down to is one excursion.
    """
    held: Excursion | None = None
    for e in _separate(y, threshold=threshold, noise=noise):
        if held is not None and _relapse(y, held, e):
            peak = held.peak if y[held.peak] >= y[e.peak] else e.peak
            height = float(y[peak]) - held.base
            held = Excursion(held.low, held.onset, held.noticed, peak, e.end, held.base, height)
            continue
        if held is not None:
            yield held
        held = e
    if held is not None:
        yield held


def _relapse(y: Float64, held: Excursion, e: Excursion) -> bool:
    if held.end is None or e.noticed - held.end > RELAPSE_BINS:
        return False
    return float(y[held.end : e.noticed].min()) - held.base > ONSET_SHARE * held.height


def _separate(y: Float64, *, threshold: float, noise: float) -> Iterator[Excursion]:
    base, low = np.inf, 0
    begun = False
    noticed = peak = 0
    for i, value in enumerate(y.tolist()):
        if not begun:
            if value < base:
                base, low = value, i
            elif value - base > threshold:
                begun, noticed, peak = True, i, i
            continue
        if value > y[peak]:
            peak = i
        height = float(y[peak]) - base
        if value - base <= max(BACK_SHARE * height, 2.0 * noise):
            yield _made(y, low, noticed, peak, i, base)
            begun = False
            if value < base:
                base, low = value, i
    if begun:
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

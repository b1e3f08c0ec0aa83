"""Running centre and spread of many series at once: the healthy level a signal is compared with.

An exponentially weighted mean and mean absolute deviation whose updates are clipped (Huber's psi), so that
one odd step moves them little; memory is two numbers a series. Where a detector has an alarm open the series
is frozen, or the fault would become the new normal within a window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

WINDOW_ROWS = 32  # effective memory; the faults looked for are abrupt or grow over at least ten steps
CLIP_DEVIATIONS = 3.0  # a step moves the centre at most as if it were this many deviations away
YOUNG_ROWS = 4
MAD_TO_SIGMA = 1.2533  # mean absolute deviation to standard deviation of a normal: sqrt(pi / 2)
_RATES = 1.0 / np.clip(np.arange(WINDOW_ROWS + 1), 1, None)  # by count: the plain mean at first


class Tracker:
    """Centre and deviation of K x S series.

    floor: smallest deviation by signal, shape (K, 1), in the signal's unit: a constant series must not alarm
    at the last digit.
    """

    def __init__(self, floor: Float64, size: int = 0) -> None:
        self.floor = floor
        shape = (len(floor), size)
        self.center = np.zeros(shape)
        self.spread = np.zeros(shape)
        self.count = np.zeros(shape, np.int32)

    def resize(self, size: int) -> None:
        have = self.center.shape[1]
        if size == have:
            return
        for name in ("center", "spread", "count"):
            old = getattr(self, name)
            new = np.zeros((old.shape[0], size), old.dtype)
            new[:, :have] = old
            setattr(self, name, new)

    def deviation(self) -> Float64:
        """Standard deviation (K, S) as estimated, at least the floor."""
        return np.maximum(self.spread * MAD_TO_SIGMA, self.floor)

    def update(self, x: Float64, *, frozen: Bool | None = None) -> None:
        """Takes one row (K, S); NaN and frozen series keep their state."""
        use = ~np.isnan(x)
        if frozen is not None:
            use &= ~frozen
        self.take(x - self.center, use)

    def take(self, away: Float64, use: Bool) -> None:
        """Takes one row given as its distance from the centre (K, S), where ``use`` is set."""
        self.count += use
        rate = _RATES.take(self.count, mode="clip")
        limit = np.maximum(self.spread, self.floor)
        limit *= CLIP_DEVIATIONS
        # the first rows set the level; clipping them against a spread of 0 would pin it
        np.copyto(limit, np.inf, where=self.count <= YOUNG_ROWS)
        step = np.where(use, away, 0.0)
        np.minimum(step, limit, out=step)
        np.maximum(step, np.negative(limit, out=limit), out=step)
        self.center += rate * step
        np.abs(step, out=step)
        np.copyto(step, 0.0, where=self.count <= 1)
        step -= self.spread
        step *= rate
        np.copyto(step, 0.0, where=~use)
        self.spread += step

    def restart(self, series: Bool | None = None) -> None:
        """A new segment or phase: learn the level afresh, of all or of the series (S,) that are set."""
        where = slice(None) if series is None else series
        for array in (self.center, self.spread, self.count):
            array[:, where] = 0

    def state(self) -> dict[str, Any]:
        return {"center": self.center, "spread": self.spread, "count": self.count}

    def load(self, state: Mapping[str, Any]) -> None:
        self.center, self.spread, self.count = state["center"], state["spread"], state["count"]

"""Running level of one scalar: the same clipped averages as ``tracker``, in plain floats for a handful of
series."""

from __future__ import annotations

from collections.abc import Sequence

from floatscope_diagnostics.tracker import CLIP_DEVIATIONS, MAD_TO_SIGMA, WINDOW_ROWS


class Level:
    """Centre and mean absolute deviation of a scalar. floor: smallest deviation, in the scalar's unit."""

    __slots__ = ("center", "count", "floor", "spread")

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.center = 0.0
        self.spread = 0.0
        self.count = 0

    def sigma(self) -> float:
        return max(self.spread * MAD_TO_SIGMA, self.floor)

    def away(self, value: float) -> float:
        """Distance from the level in the scalar's unit."""
        return value - self.center

    def update(self, value: float) -> None:
        self.count += 1
        rate = 1.0 / min(self.count, WINDOW_ROWS)
        step = value - self.center
        if self.count > 4:
            limit = max(self.spread, self.floor) * CLIP_DEVIATIONS
            step = min(max(step, -limit), limit)
        self.center += rate * step
        if self.count > 1:
            self.spread += rate * (abs(step) - self.spread)

    def restart(self) -> None:
        self.center, self.spread, self.count = 0.0, 0.0, 0

    def state(self) -> list[float]:
        return [self.center, self.spread, float(self.count)]

    def load(self, state: Sequence[float]) -> None:
        self.center, self.spread = float(state[0]), float(state[1])
        self.count = int(state[2])

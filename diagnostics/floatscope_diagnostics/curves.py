"""Thinned series of a run for a report: at most POINTS values a series, whatever the length of the run."""

from __future__ import annotations

import numpy as np

from floatscope.protocol.batch import Batch

POINTS = 512
WORST = {"overflow_pct": "clipped %", "underflow_pct": "underflow %"}


class Curve:
    """Largest value of each of at most POINTS bins of steps; bins merge in pairs when they run out."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[float] = []
        self.bad: list[bool] = []  # a NaN or Inf fell into the bin
        self._width = 1
        self._filled = 0

    def add(self, step: int, value: float) -> None:
        finite = np.isfinite(value)
        if self._filled and self._filled < self._width:
            self._filled += 1
            if finite and not self.values[-1] >= value:
                self.values[-1] = value
            self.bad[-1] = self.bad[-1] or not finite
            return
        if len(self.steps) >= POINTS:
            self._merge()
        self._filled = 1
        self.steps.append(step)
        self.values.append(value if finite else float("nan"))
        self.bad.append(not finite)

    def _merge(self) -> None:
        self.steps = self.steps[::2]
        pairs = zip(self.values[::2], [*self.values[1::2], float("nan")], strict=False)
        self.values = [b if not a >= b and b == b else a for a, b in pairs]
        self.bad = [a or b for a, b in zip(self.bad[::2], [*self.bad[1::2], False], strict=False)]
        self._width *= 2


class Curves:
    """Loss and the worst clipping and underflow of any tensor, of the lowest rank."""

    def __init__(self) -> None:
        self.series: dict[str, Curve] = {}
        self._rank: int | None = None

    def add(self, rank: int, batch: Batch) -> None:
        if self._rank is None:
            self._rank = rank
        if rank != self._rank:
            return
        loss, here = batch.scalar("loss")
        for t, step in enumerate(batch.step.tolist()):
            if here[t]:
                self._curve("loss").add(step, float(loss[t]))
        for stat, name in WORST.items():
            values, present = batch.stat(stat)
            if present.any():
                worst = np.where(present & np.isfinite(values), values, -np.inf).max(axis=1)
                for d, row in enumerate(batch.stat_row.tolist()):
                    if np.isfinite(worst[d]):
                        self._curve(name).add(int(batch.step[row]), float(worst[d]))

    def _curve(self, name: str) -> Curve:
        return self.series.setdefault(name, Curve())

"""Two runs that were alike part from one step to the next.

A difference that grows over some steps, or that follows larger and larger ones, is no break: it is what
becomes of an earlier fault, or of chance. So the pairs just before must have been calm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope_diagnostics.detectors.level import Level
from floatscope_diagnostics.episodes import EpisodeLog

READY_PAIRS = 16
BREAK_PAIRS = 3  # in a row: one hard batch amplifies a small difference, three do not
BREAK_SIGMA = 12.0
BREAK_NATS = 0.03
CALM_PAIRS = 24  # before the break
CALM_TIMES = 4.0  # the break is so many times what any of them was away from the level
GAP_FLOOR_NATS = 0.0005  # printed digits; clean pairs at low learning rate differ by 0.0008


class BreakWatch:
    """Takes the differences pair by pair."""

    def __init__(self) -> None:
        self.level = Level(GAP_FLOOR_NATS)
        self.calm: list[float] = []  # distances of the last pairs before a possible break
        self.apart: list[int] = []  # steps in a row far above the level, since a calm one
        self.pairs = 0
        self.log = EpisodeLog()

    def add(self, step: int, gap: float) -> None:
        """One pair; gap is finite, in nats."""
        self.pairs += 1
        away = self.level.away(gap)
        if self.level.count < READY_PAIRS or away <= max(BREAK_NATS, BREAK_SIGMA * self.level.sigma()):
            self.apart = []
            self.calm = [*self.calm, abs(away)][-CALM_PAIRS:]
            self.level.update(gap)
            self.log.close(row=self.pairs)
            return
        abrupt = away > CALM_TIMES * max(self.calm, default=0.0)
        if not self.apart and not abrupt:
            self.calm = [*self.calm, abs(away)][-CALM_PAIRS:]
        elif len(self.apart) < BREAK_PAIRS:
            self.apart = [*self.apart, step]
        if len(self.apart) >= BREAK_PAIRS:
            self.log.hit(
                "paired_break",
                step=step,
                row=self.pairs,
                segment=0,
                values=away,
                onset=self.apart[0],
                expected=self.level.center,
                gap_rows=8,
            )
        self.log.close(row=self.pairs)

    def state(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {"level": self.level.state(), "log": self.log.state(), "plain": plain}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> BreakWatch:
        out = cls()
        out.level.load(state["level"])
        out.log = EpisodeLog.load(state["log"])
        for name in _PLAIN:
            setattr(out, name, state["plain"][name])
        return out


_PLAIN = ("calm", "apart", "pairs")

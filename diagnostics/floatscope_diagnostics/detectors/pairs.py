"""Paired loss difference against a baseline on the same steps (and, if both log it, the same ``data_id``).

Pairing takes the noise of the data out of the comparison: on the same batches from the same checkpoint the
difference of two runs
is 10 to 300 times quieter than the loss. Own steps wait until the baseline has passed them, so it does not
matter which came first.
Signal: ``paired_gap``: the mean of 48 pairs is above zero by four of its own standard errors, which come from
the
means of blocks of eight pairs, so that runs that part by chance (their gap gets louder, not larger) stay
silent.
``slope`` tells a gap that widens from a constant offset. ``paired_break``: runs that were alike part from one
step to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.detectors.level import Level
from floatscope_diagnostics.episodes import EpisodeLog, Symptom

BLOCK_PAIRS = 8  # pairs a block: longer than the memory of one batch's difficulty
BLOCKS = 6  # blocks judged together: 48 pairs
BLOCKS_ABOVE = 5  # of them on the same side
GAP_SIGMA = (
    4.0  # mean over its standard error, taken from the blocks themselves: runs that part by chance get louder
)
GAP_NATS = 0.02  # healthy FP8 stays within 0.01 of BF16 after billions of tokens, within 0.02 early on
READY_PAIRS = 16
BREAK_PAIRS = 3  # in a row: one hard batch amplifies a small difference, three do not
BREAK_SIGMA = 12.0
BREAK_NATS = 0.03
CALM_SIGMA = 4.0  # the pair before the break
GAP_FLOOR_NATS = 0.0005  # printed digits; clean pairs at low learning rate differ by 0.0008
MAX_WAITING = 1 << 18  # own or baseline steps that wait for their partner: 4 MiB
MAX_WAITING_UNASKED = 4096  # own steps kept while no baseline is declared: it may still be named
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class PairedLoss:
    """Own steps, baseline steps, and the running difference of those that met."""

    def __init__(self) -> None:
        self.own: dict[int, tuple[float, float]] = {}
        self.base: dict[int, tuple[float, float]] = {}
        self.base_last: int | None = None
        self.pairs = 0
        self.mismatched = 0
        self.level = Level(GAP_FLOOR_NATS)
        self.before = 0.0  # how far the pair before was above the level
        self.apart: list[int] = []  # steps in a row far above the level, since a calm one
        self.block: list[float] = []  # gaps of the block being filled
        self.block_step = 0
        self.blocks: list[list[float]] = []  # [first step, mean] of the last blocks
        self.since: int | None = None  # first step of the blocks above zero
        self.early: list[float] = []  # means of the first blocks of the gap, for the slope
        self.last: int | None = None
        self.log = EpisodeLog()
        self.breaks = EpisodeLog()

    @property
    def used(self) -> bool:
        return self.pairs > 0 or bool(self.base)

    def add_baseline(self, step: Int64, loss: Float64, data_id: Float64 | None) -> None:
        """Takes steps of the baseline, ascending."""
        ids = np.full(len(step), np.nan) if data_id is None else data_id
        for s, value, ident in zip(step.tolist(), loss.tolist(), ids.tolist(), strict=True):
            self.base_last = s if self.base_last is None else max(self.base_last, s)
            if (self.last is None or s > self.last) and len(self.base) < MAX_WAITING:
                self.base[s] = (value, ident)
        self._meet()

    def add_own(
        self, step: int, loss: float, data_id: float, ref_loss: float | None, *, declared: bool
    ) -> None:
        """Takes one own step; with ref_loss in the log the pair is complete. declared: the run names a
        baseline."""
        if ref_loss is not None:
            self._pair(step, loss - ref_loss)
            return
        limit = MAX_WAITING if declared or self.base_last is not None else MAX_WAITING_UNASKED
        if len(self.own) >= limit:
            del self.own[next(iter(self.own))]  # the oldest: insertion order is step order
        if self.last is None or step > self.last:
            self.own[step] = (loss, data_id)
            if self.base:
                self._meet()

    def _meet(self) -> None:
        if self.base_last is None:
            return
        for step in sorted(s for s in self.own if s <= self.base_last):
            loss, ident = self.own.pop(step)
            partner = self.base.get(step)
            self.last = step
            if partner is None:
                continue
            if not math.isnan(ident) and not math.isnan(partner[1]) and ident != partner[1]:
                self.mismatched += 1
                continue
            self._pair(step, loss - partner[0])
        if self.last is not None:
            for old in [s for s in self.base if s <= self.last]:
                del self.base[old]

    def _pair(self, step: int, gap: float) -> None:
        if not math.isfinite(gap):
            return
        self.pairs += 1
        self._break(step, gap)
        if not self.block:
            self.block_step = step
        self.block.append(gap)
        if len(self.block) < BLOCK_PAIRS:
            return
        self.blocks = [*self.blocks, [float(self.block_step), math.fsum(self.block) / BLOCK_PAIRS]][-BLOCKS:]
        self.block = []
        self._judge(step)

    def _break(self, step: int, gap: float) -> None:
        """The runs were alike and part from one step to the next."""
        away = self.level.away(gap)
        sigma = self.level.sigma()
        before, self.before = self.before, away
        if self.level.count < READY_PAIRS or away <= max(BREAK_NATS, BREAK_SIGMA * sigma):
            self.apart = []
            self.level.update(gap)
            self.breaks.close(row=self.pairs)
            return
        abrupt = abs(before) <= max(CALM_SIGMA * sigma, BREAK_NATS / 6)
        if self.apart or abrupt:
            self.apart = [*self.apart, step] if len(self.apart) < BREAK_PAIRS else self.apart
        if len(self.apart) >= BREAK_PAIRS:
            self.breaks.hit(
                "paired_break",
                step=step,
                row=self.pairs,
                segment=0,
                values=away,
                onset=self.apart[0],
                expected=self.level.center,
                gap_rows=8,
            )
        self.breaks.close(row=self.pairs)

    def symptoms(self, columns: Columns) -> list[Symptom]:
        """Of both logs; rank -1 means: of the run as a whole."""
        return [
            *self.log.symptoms(columns, rank=-1, row=self.pairs // BLOCK_PAIRS),
            *self.breaks.symptoms(columns, rank=-1, row=self.pairs),
        ]

    def _judge(self, step: int) -> None:
        means = [m for _, m in self.blocks]
        row = self.pairs // BLOCK_PAIRS
        if len(means) == BLOCKS:
            center = math.fsum(means) / BLOCKS
            error = math.sqrt(math.fsum((m - center) ** 2 for m in means) / (BLOCKS - 1) / BLOCKS)
            above = sum(m > 0 for m in means) >= BLOCKS_ABOVE
            if above and center > max(GAP_NATS, GAP_SIGMA * error):
                if self.since is None:
                    self.since = int(next(s for s, m in self.blocks if m > center / 3))
                    self.early = means
                slope = center - math.fsum(self.early) / len(self.early)
                self.log.hit(
                    "paired_gap",
                    step=step,
                    row=row,
                    segment=0,
                    values=center,
                    onset=self.since,
                    expected=0.0,
                    gap_rows=4,
                    extra={"slope": slope, "mean": center, "error": error},
                )
        self.log.close(row=row)
        if not self.log.is_open("paired_gap"):
            self.since = None

    def state(self) -> dict[str, Any]:
        return {
            "own": _table(self.own),
            "base": _table(self.base),
            "level": self.level.state(),
            "log": self.log.state(),
            "breaks": self.breaks.state(),
            "plain": {name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> PairedLoss:
        out = cls()
        out.own, out.base = _untable(state["own"]), _untable(state["base"])
        out.level.load(state["level"])
        out.log = EpisodeLog.load(state["log"])
        out.breaks = EpisodeLog.load(state["breaks"])
        for name in _PLAIN:
            setattr(out, name, state["plain"][name])
        return out


_PLAIN = (
    "base_last",
    "pairs",
    "mismatched",
    "before",
    "apart",
    "block",
    "block_step",
    "blocks",
    "since",
    "early",
    "last",
)


def _table(rows: Mapping[int, tuple[float, float]]) -> dict[str, Any]:
    steps = sorted(rows)
    values = np.array([rows[s] for s in steps], np.float64).reshape(len(steps), 2)
    return {"step": np.array(steps, np.int64), "values": values}


def _untable(saved: Mapping[str, Any]) -> dict[int, tuple[float, float]]:
    pairs = zip(saved["step"].tolist(), saved["values"].tolist(), strict=True)
    return {s: (float(v[0]), float(v[1])) for s, v in pairs}

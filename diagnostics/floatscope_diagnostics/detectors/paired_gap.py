"""A paired loss difference that stays above what two healthy runs differ by.

Pairs are gathered into blocks; the block means play a bet against "not above the margin" (``betting``), which
may be read after every block for as long as the run lasts: a run whose difference is as likely below the
margin as above it opens a gap with probability ALPHA at most, ever. The margin is GAP_NATS, or more where the
pairs are noisy: runs that part by chance are apart by less than NOISE_SHARE of the noise of their pairs. What
neighbouring blocks have in common is taken out of each before the bet.

While the gap is open, its size comes with the band of a block bootstrap over the newest block means, and a
line through the means since it opened tells an offset from a slope. Memory: RING block means and RING merged
ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from floatscope_diagnostics.compare.betting import Bet
from floatscope_diagnostics.compare.bootstrap import mean_band
from floatscope_diagnostics.compare.separation import carried_over
from floatscope_diagnostics.compare.shape import shape_of
from floatscope_diagnostics.episodes import EpisodeLog

BLOCK_PAIRS = 4  # differences of healthy pairs have an autocorrelation of 0.1 or less from pair to pair
RING = 64  # block means that are kept: 256 pairs
ALPHA = 0.01  # chance of a false gap over a whole run
GAP_NATS = 0.02  # healthy FP8 ends within 0.019 of BF16 (15 pairs of 2,000 steps), within 0.01 at scale
NOISE_SHARE = 2.0  # healthy pairs that parted by chance: up to 1.7 times the sd of single pairs
QUIET_BLOCKS = 8  # without a sign that end a gap
CONFIDENCE = 0.95
NOISE_RATE = 1.0 / 16.0  # of the running noise estimates, in blocks
FRESH_BLOCKS = 8  # after which a gap is measured only every so many blocks
CARRY_EVERY = 8  # blocks between two looks at what neighbours have in common
SHAPES = ("none", "constant", "widening", "closing", "cannot_tell_yet")  # as a number in ``extra``


class GapWatch:
    """Takes the differences pair by pair."""

    def __init__(self) -> None:
        self.bet = Bet()
        self.block: list[float] = []
        self.block_step = 0
        self.blocks = 0
        self.ring: list[list[float]] = []  # [first step, mean] of the newest blocks
        self.opened: list[list[float]] = []  # the same since the gap opened, neighbours merged when too many
        self.merged = 1  # blocks a full entry of ``opened`` stands for
        self.filled = 0  # blocks in its last entry
        self.sd = 0.0  # of single pairs, from inside the blocks
        self.scale = 0.0  # typical size of what is bet on
        self.carry = 0.0
        self.before = 0.0
        self.since = 0  # blocks since the gap opened
        self.extra: dict[str, float] = {}  # size and shape of the open gap, as last computed
        self.log = EpisodeLog()

    def add(self, step: int, gap: float) -> None:
        """One pair; gap is finite, in nats."""
        if not self.block:
            self.block_step = step
        self.block = [*self.block, gap]
        if len(self.block) < BLOCK_PAIRS:
            return
        block, self.block = self.block, []
        mean = math.fsum(block) / BLOCK_PAIRS
        margin = self.margin()
        self.ring = [*self.ring, [float(self.block_step), mean]][-RING:]
        if self.log.is_open("paired_gap"):
            self._follow(step, mean, margin)
        else:
            self._bet(step, mean, margin)
        self._learn(block, mean)
        self.blocks += 1
        self.log.close(row=self.blocks)

    def margin(self) -> float:
        """What a difference must exceed, in nats; from the blocks before."""
        return max(GAP_NATS, NOISE_SHARE * self.sd)

    def _learn(self, block: list[float], mean: float) -> None:
        """Noise inside the blocks, so that a gap does not count as noise; the first blocks weigh more."""
        rate = max(NOISE_RATE, 1.0 / (self.blocks + 1))
        inside = math.sqrt(math.fsum((g - mean) ** 2 for g in block) / (BLOCK_PAIRS - 1))
        if self.blocks >= 4:
            inside = min(inside, 4.0 * self.sd + 0.25 * GAP_NATS)  # one spike is not the noise
        self.sd += rate * (inside - self.sd)
        self.before = mean
        if self.blocks % CARRY_EVERY == 0:
            self.carry = carried_over(np.array([m for _, m in self.ring]))

    def _bet(self, step: int, mean: float, margin: float) -> None:
        fresh = mean - self.carry * self.before - (1.0 - self.carry) * margin
        self.bet.add(fresh, scale=self.scale if self.scale > 0.0 else margin)
        self.scale += max(NOISE_RATE, 1.0 / (self.blocks + 1)) * (abs(fresh) - self.scale)
        if self.bet.log_capital() < math.log(1.0 / ALPHA):
            return
        count = min(self.blocks + 1 - self.bet.beginning(), len(self.ring))
        self.opened = self.ring[-count:]
        self.merged = self.filled = 1
        self.since = 0
        self.bet = Bet(blocks=self.blocks + 1)  # a later gap is bet on with what is left of the shares
        self._hit(step)

    def _follow(self, step: int, mean: float, margin: float) -> None:
        self._append(float(self.block_step), mean)
        self.since += 1
        newest = [m for _, m in self.ring[-QUIET_BLOCKS:]]
        if math.fsum(newest) / len(newest) > 0.5 * margin:
            self._hit(step)
        self.bet.blocks = self.blocks + 1

    def _append(self, step: float, mean: float) -> None:
        if self.filled < self.merged:
            self.filled += 1
            first, before = self.opened[-1]
            self.opened = [*self.opened[:-1], [first, before + (mean - before) / self.filled]]
            return
        if len(self.opened) >= RING:
            pairs = zip(self.opened[::2], self.opened[1::2], strict=True)
            self.opened = [[a[0], 0.5 * (a[1] + b[1])] for a, b in pairs]
            self.merged *= 2
        self.opened = [*self.opened, [step, mean]]
        self.filled = 1

    def _hit(self, step: int) -> None:
        if self.since < FRESH_BLOCKS or self.since % FRESH_BLOCKS == 0:
            self._measure()
        self.log.hit(
            "paired_gap",
            step=step,
            row=self.blocks,
            segment=0,
            values=self.extra["mean"],
            onset=int(self.opened[0][0]),
            expected=0.0,
            gap_rows=QUIET_BLOCKS,
            extra=self.extra,
        )

    def _measure(self) -> None:
        """Size and shape of the gap, with their bands; a few milliseconds, so not at every block."""
        means = np.array([m for _, m in self.ring[-min(len(self.ring), RING // 2) :]])
        since = np.array([m for _, m in self.opened])
        means = means[-max(len(since) * self.merged, QUIET_BLOCKS) :]
        band = mean_band(means, confidence=CONFIDENCE)
        at = np.array([int(s) for s, _ in self.opened], np.int64)
        shape = shape_of(at, since, confidence=CONFIDENCE, apart=True)
        extra = {
            "mean": band.mean,
            "low": band.low,
            "high": band.high,
            "shape": float(SHAPES.index(shape.kind)),
            "margin": self.margin(),
        }
        for name, value in (
            ("change", shape.change),
            ("change_low", shape.low),
            ("change_high", shape.high),
            ("start", shape.start),
            ("end", shape.end),
        ):
            if value is not None:
                extra[name] = value
        self.extra = extra

    def state(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {"bet": self.bet.state(), "log": self.log.state(), "plain": plain}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> GapWatch:
        out = cls()
        out.bet = Bet.load(state["bet"])
        out.log = EpisodeLog.load(state["log"])
        for name in _PLAIN:
            setattr(out, name, state["plain"][name])
        return out


_PLAIN = (
    "block", "block_step", "blocks", "ring", "opened", "merged", "filled", "sd", "scale", "carry", "before",
    "since", "extra",
)  # fmt: skip

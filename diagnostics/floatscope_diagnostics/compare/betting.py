"""A bet against "the difference is not above a margin" that may be looked at after every block.

A gambler with 1 unit bets on each block mean x in turn and wins the factor 1 + tanh(stake * (x - margin)). If
x is as likely to lie a distance below the margin as above it, or lies lower still, no stake makes a profit on
average, whatever the distribution, its width, and however the width changes. By Ville's inequality the
capital then ever reaches 1 / alpha with probability alpha at most: over all blocks and all looks together.
The bet is split over several stakes, and over the block at which it begins, since the difference may begin
anywhere (the mixture form of Shiryaev and Roberts, kept in one number a stake).

Sources: Ville 1939; Waudby-Smith and Ramdas 2024 (testing by betting); Shin, Ramdas and Rinaldo 2024
(e-detectors). 1 + tanh is exp(s) / cosh(s), the likelihood ratio that is fair for every symmetric law (de la
Pena 1999).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

STAKES = (0.125, 0.5, 2.0)  # times 1 / scale: for differences far below, near and far above the noise
_LOG_SUM = math.log(2.1098)  # sum over k >= 2 of 1 / (k log(k)^2)


def log_start_weight(block: int) -> float:
    """Natural logarithm of the share of the bet that begins at ``block`` (from 0); all shares sum to 1."""
    k = block + 2
    return -math.log(k) - 2.0 * math.log(math.log(k)) - _LOG_SUM


@dataclass
class Bet:
    """The bet on one side. capital: its natural logarithm, by stake, without what has not been staked yet.

    run: of the best single beginning, by stake, with the block at which it began.
    """

    blocks: int = 0
    capital: list[float] = field(default_factory=lambda: [-math.inf] * len(STAKES))
    run: list[float] = field(default_factory=lambda: [0.0] * len(STAKES))
    begun: list[int] = field(default_factory=lambda: [0] * len(STAKES))

    def add(self, excess: float, *, scale: float, log_weight: float | None = None) -> None:
        """Plays one block. excess: block mean minus margin.

        scale: typical size of a block mean's noise, > 0, which must not depend on the sign of ``excess``.
        log_weight: logarithm of the share that begins here, default ``log_start_weight``.
        """
        weight = log_start_weight(self.blocks) if log_weight is None else log_weight
        for i, stake in enumerate(STAKES):
            win = _log_one_plus_tanh(stake * excess / scale)
            self.capital[i] = _log_add(self.capital[i], weight) + win
            if self.run[i] <= 0.0:
                self.run[i], self.begun[i] = 0.0, self.blocks
            self.run[i] += win
        self.blocks += 1

    def log_capital(self) -> float:
        """Natural logarithm of the capital that was staked, over all stakes; -inf before the first block."""
        total = -math.inf
        for part in self.capital:
            total = _log_add(total, part)
        return total - math.log(len(STAKES))

    def beginning(self) -> int:
        """The block at which the most successful single bet began."""
        best = max(range(len(STAKES)), key=lambda i: self.run[i])
        return self.begun[best]

    def state(self) -> dict[str, Any]:
        return {
            "blocks": self.blocks,
            "capital": list(self.capital),
            "run": list(self.run),
            "begun": list(self.begun),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Bet:
        return cls(
            int(state["blocks"]),
            _floats(state["capital"]),
            _floats(state["run"]),
            [int(b) for b in state["begun"]],
        )


def played(excess: Float64, *, scale: float, log_weight: float, enough: float) -> tuple[int, int] | None:
    """``Bet`` over many blocks at once, each with the same share of the bet: the block at which the logarithm
    of its capital reaches ``enough``, and where the most successful bet began. None if it never does.

    excess: [K], as of ``Bet.add``. With W the sum of what was won up to a block, the capital after block k is
    exp(W_k) times the sum over j <= k of the share times exp(-W_(j-1)), and the best single bet began at the
    last minimum of W before k.
    """
    before = np.zeros((len(STAKES), len(excess) + 1))
    for row, stake in zip(before, STAKES, strict=True):
        np.cumsum(_log_one_plus_tanhs(stake / scale * excess), out=row[1:])
    staked = np.logaddexp.accumulate(-before[:, :-1], axis=1)
    capital = before[:, 1:] + staked + log_weight
    total = np.logaddexp.reduce(capital, axis=0) - math.log(len(STAKES))
    reached = np.flatnonzero(total >= enough)
    if not len(reached):
        return None
    block = int(reached[0])
    so_far = before[:, block::-1]  # from the block back to the first
    at = np.argmin(so_far, axis=1)
    best = int(np.argmax(before[:, block + 1] - so_far[np.arange(len(STAKES)), at]))
    return block, block - int(at[best])


def _log_one_plus_tanhs(x: Float64) -> Float64:
    """``_log_one_plus_tanh`` of many."""
    return math.log(2.0) - np.logaddexp(0.0, -2.0 * x)


def _floats(values: Sequence[float]) -> list[float]:
    return [float(v) for v in values]


def _log_one_plus_tanh(x: float) -> float:
    """log(1 + tanh(x)) = log(2) - log(1 + exp(-2 x)), without overflow."""
    return math.log(2.0) - (math.log1p(math.exp(-2.0 * x)) if x > -350.0 else -2.0 * x)


def _log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))

"""What is known about a claim beyond its words: the ground on which its confidence is calibrated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MAX_SIGNALS = 3  # evidence of more kinds than this counts as this many


@dataclass(frozen=True)
class Clues:
    """stated: the rule's confidence, 0 to 1.  rival: that of the best other explanation, 0 without one.
    signals: kinds of evidence.  earlier: whether the run had another incident before.
    """

    rule: str
    cause: str
    stated: float
    rival: float = 0.0
    signals: int = 1
    earlier: bool = False

    @property
    def group(self) -> str:
        return f"{self.rule}/{self.cause}"

    def features(self) -> Mapping[str, float]:
        """Numbers the calibration weighs, by name."""
        return {
            "slope": logit(self.stated),
            "rival": self.rival,
            "signals": float(min(self.signals, MAX_SIGNALS) - 1),
            "earlier": float(self.earlier),
        }


def logit(p: float) -> float:
    """Log odds, of a probability kept away from 0 and 1 by 1 %."""
    p = min(max(p, 0.01), 0.99)
    return math.log(p / (1.0 - p))


def sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z)) if z >= 0 else math.exp(z) / (1.0 + math.exp(z))

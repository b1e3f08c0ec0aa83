"""Numbers of a rule that people may move, declared beside the rule that uses them.

A threshold is looked at where the rule reads the symptoms, never in a detector: moving one changes what this
rule says and nothing that another rule sees, and it holds for all steps of a run at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

COUNTED = ("logged steps", "halvings")  # units of which there are no parts


class Moved(Protocol):
    """What has the thresholds of one rule that were moved: the run's facts as the rule gets them."""

    @property
    def thresholds(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Threshold:
    """A number of a rule that may be moved.

    unit: in words, "%" or "nats".  default: as the rule decides by itself.  lowest, highest: what makes
    sense.  meaning: one sentence about what it does.
    """

    name: str
    unit: str
    default: float
    lowest: float
    highest: float
    meaning: str

    def of(self, run: Moved) -> float:
        """Its value for this run."""
        return run.thresholds.get(self.name, self.default)

    @property
    def whole(self) -> bool:
        """Whether it counts something."""
        return self.unit in COUNTED

    def allows(self, value: float) -> bool:
        """Whether it may be set to this number; NaN never."""
        if not math.isfinite(value) or (self.whole and not value.is_integer()):
            return False
        return self.lowest <= value <= self.highest

    @property
    def range(self) -> str:
        """What it may be, in words."""
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.lowest:,.10g} to {self.highest:,.10g} {self.unit}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "default": self.default,
            "lowest": self.lowest,
            "highest": self.highest,
            "whole": self.whole,
            "meaning": self.meaning,
        }

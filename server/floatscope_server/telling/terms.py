"""On which terms a channel is told: from which severity, how often again, after how long, when not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from floatscope_server.errors import Refused
from floatscope_server.telling.quiet_hours import QuietHours
from floatscope_server.telling.states import rank_of

LEAST_S, MOST_S = 60.0, 30 * 86_400.0


@dataclass(frozen=True)
class Terms:
    """repeat_s: tells again of what fires and nobody acknowledged; None: never. escalate_s: tells only of
    what nobody acknowledged for so long; None: at once. quiet: hours in which only critical is told.
    group_s: how long a warning waits for others of its run. flap_s: an alert that comes back within it waits
    as long for being stable.
    """

    min_severity: str = "warning"
    repeat_s: float | None = None
    escalate_s: float | None = None
    quiet: QuietHours | None = None
    group_s: float = 30.0
    flap_s: float = 600.0

    def wants(self, severity: str) -> bool:
        return rank_of(severity) >= rank_of(self.min_severity)


def check_repeat_s(value: float | None) -> float | None:
    """The interval of repeats in s, or None for never. Raises Refused."""
    return _seconds(value, "repeat_s")


def check_escalate_s(value: float | None) -> float | None:
    """How long nobody may acknowledge before this channel is told, in s, or None. Raises Refused."""
    return _seconds(value, "escalate_s")


def _seconds(value: float | None, field: str) -> float | None:
    if value is None:
        return None
    if not math.isfinite(value) or not LEAST_S <= value <= MOST_S:
        raise Refused(field, f"seconds from {LEAST_S:.0f} to {MOST_S:,.0f}, or null", value)
    return float(value)

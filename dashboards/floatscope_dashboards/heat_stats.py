"""Which tensor statistics the heat map can show: words, unit, worst direction and colour range of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HeatStat:
    """One statistic. `worst` is "low", "high" or "none"; `low` to `high` is the colour range in its unit."""

    name: str
    label: str
    unit: str
    worst: str
    low: float
    high: float


# In the order of the buttons. Ranges: headroom 0 is clipping, 5 binades is far away; the others where a
# trained eye starts to worry (5 % clipped, 20 % rounded to 0) and far beyond it. Only statistics of a bounded
# range: the payload's cells are 254 even steps from lowest to highest, which would show a scale of 3 as 0
# beside one of 10,000. Amax and scale appear here as headroom, which is their logarithm.
HEAT_STATS: tuple[HeatStat, ...] = (
    HeatStat("headroom_log2", "Headroom", "binades", "low", 0.0, 5.0),
    HeatStat("overflow_pct", "Clipped", "%", "high", 0.0, 5.0),
    HeatStat("underflow_pct", "Underflow", "%", "high", 0.0, 20.0),
    HeatStat("sqnr_db", "SNR", "dB", "low", 0.0, 40.0),
    HeatStat("zero_pct", "Zeros", "%", "none", 0.0, 100.0),
    HeatStat("unchanged_pct", "Unchanged", "%", "high", 0.0, 100.0),
)
_BY_NAME: Mapping[str, HeatStat] = {stat.name: stat for stat in HEAT_STATS}


def offered(names: Iterable[str]) -> tuple[HeatStat, ...]:
    """The statistics among `names` that can be shown, in the order of the buttons."""
    return tuple(sorted((_BY_NAME[name] for name in set(names) & set(_BY_NAME)), key=HEAT_STATS.index))


def first_choice(names: Iterable[str], signals: Iterable[str]) -> str | None:
    """What to show first: what the worst finding quotes, else headroom, else the first there is.

    Clipping is better seen as headroom, which shows it coming.
    """
    available = [stat.name for stat in offered(names)]
    quoted = ["headroom_log2" if name == "overflow_pct" else name for name in signals]
    for name in (*quoted, "headroom_log2"):
        if name in available:
            return name
    return available[0] if available else None


def as_json(stat: HeatStat) -> dict[str, Any]:
    """The statistic for the page's script."""
    return {
        "name": stat.name,
        "label": stat.label,
        "unit": stat.unit,
        "worst": stat.worst,
        "low": stat.low,
        "high": stat.high,
    }

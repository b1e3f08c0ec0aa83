"""Which tensor statistics the heat map can show: words, unit, worst direction and colour range of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.wording import signal_of


@dataclass(frozen=True)
class HeatStat:
    """One statistic. `worst` is "low", "high" or "none"; `low` to `high` is the colour range in its unit
    (None: of the data). `log` colours by log2, for statistics that span many powers of two; 0 is then its
    own, lowest step."""

    name: str
    label: str
    unit: str
    worst: str
    low: float | None = None
    high: float | None = None
    log: bool = False


# In the order of the buttons. Ranges: headroom 0 is clipping, 5 binades is far away; the others where a
# trained eye starts to worry (0 to 5 % clipped, 0 to 20 % rounded to 0) and far beyond it.
HEAT_STATS: tuple[HeatStat, ...] = (
    HeatStat("headroom_log2", "Headroom", "binades", "low", 0.0, 5.0),
    HeatStat("overflow_pct", "Clipped", "%", "high", 0.0, 5.0),
    HeatStat("underflow_pct", "Underflow", "%", "high", 0.0, 20.0),
    HeatStat("sqnr_db", "SNR", "dB", "low", 0.0, 40.0),
    HeatStat("amax", "Amax", "", "none", log=True),
    HeatStat("scale", "Scale", "", "none", log=True),
    HeatStat("sat", "Saturation", "", "high", 0.0, 1.5),
    HeatStat("rms", "RMS", "", "none", log=True),
    HeatStat("zero_pct", "Zeros", "%", "none", 0.0, 100.0),
    HeatStat("nan_count", "NaN", "", "high", 0.0, 1.0),
    HeatStat("inf_count", "Inf", "", "high", 0.0, 1.0),
    HeatStat("amax_min_block", "Least block amax", "", "none", log=True),
    HeatStat("grad_norm", "Grad norm", "", "none", log=True),
    HeatStat("update_ratio", "Update ratio", "", "none", log=True),
    HeatStat("unchanged_pct", "Unchanged", "%", "high", 0.0, 100.0),
)
_BY_NAME: Mapping[str, HeatStat] = {stat.name: stat for stat in HEAT_STATS}
_ORDER: Mapping[str, int] = {stat.name: index for index, stat in enumerate(HEAT_STATS)}


def heat_stat(name: str) -> HeatStat:
    """The statistic by name; an unknown one is shown neutrally, on the range of its data."""
    signal = signal_of(name)
    return _BY_NAME.get(name, HeatStat(name, signal.label, signal.unit, "none"))


def offered(names: Iterable[str]) -> tuple[HeatStat, ...]:
    """The statistics that have data, in the order of the buttons."""
    return tuple(
        heat_stat(name) for name in sorted(set(names), key=lambda name: (_ORDER.get(name, 99), name))
    )


def first_choice(names: Iterable[str], signals: Iterable[str]) -> str | None:
    """What to show first: the statistic that the worst finding quotes, else headroom, else the first there
    is."""
    available = [stat.name for stat in offered(names)]
    for name in (*signals, "headroom_log2"):
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
        "log": stat.log,
    }

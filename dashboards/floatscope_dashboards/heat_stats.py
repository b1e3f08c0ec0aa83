"""Which tensor statistics the heat map can show: words, unit, worst direction and colour range of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class HeatStat:
    """One statistic: the worst of a pooled cell is its "low" or its "high" value; `ramp` names its colours
    from `low` to `high` in its unit; the words say what the ends of the scale mean."""

    name: str
    label: str
    unit: str
    worst: str
    ramp: str
    low: float
    high: float
    decimals: int
    low_word: str = ""
    high_word: str = ""
    log2: bool = False
    """Asked for and shown as the logarithm of its value: for statistics that span many binades."""


# In the order of the buttons. Ranges: headroom 0 uses the format to its end, which is where current scaling
# puts every tensor; below it values clip, and far above it the low values are lost. The others: where a
# trained eye starts to worry (5 % clipped, 20 % rounded to 0) and far beyond. The payload's cells are 254
# even steps from lowest to highest, which would show a scale of 3 as 0 beside one of 10,000: statistics
# without a bounded range are shown as their logarithm.
HEAT_STATS: tuple[HeatStat, ...] = (
    HeatStat("headroom_log2", "Headroom", "binades", "low", "both", -4.0, 8.0, 2, "clips", "unused"),
    HeatStat("overflow_pct", "Clipped", "%", "high", "high", 0.0, 5.0, 2),
    HeatStat("underflow_pct", "Underflow", "%", "high", "high", 0.0, 20.0, 2),
    HeatStat("sqnr_db", "SNR", "dB", "low", "low", 0.0, 40.0, 1),
    HeatStat("zero_pct", "Zeros", "%", "high", "none", 0.0, 100.0, 2),
    HeatStat("unchanged_pct", "Unchanged", "%", "high", "high", 0.0, 100.0, 2),
    HeatStat("amax", "Amax", "log2", "high", "none", -16.0, 16.0, 1, log2=True),
    HeatStat("scale", "Scale", "log2", "high", "none", -16.0, 16.0, 1, log2=True),
    HeatStat("rms", "RMS", "log2", "high", "none", -16.0, 16.0, 1, log2=True),
    HeatStat("grad_norm", "Gradient norm", "log2", "high", "none", -24.0, 8.0, 1, log2=True),
    HeatStat("update_ratio", "Update ratio", "log2", "high", "none", -24.0, 0.0, 1, log2=True),
    HeatStat("amax_min_block", "Smallest block amax", "log2", "low", "none", -24.0, 16.0, 1, log2=True),
)
MARK_STATS: tuple[tuple[str, ...], ...] = (("rms",), ("nan_count", "inf_count"))
"""Where non-finite values of a tensor are seen, best first. RMS is NaN or Inf if one element is, while an
amax leaves NaN out, as Transformer Engine's does."""
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


def mark_stats(names: Iterable[str]) -> tuple[str, ...]:
    """The statistics among `names` that tell where values are not finite; empty when there are none."""
    available = set(names)
    for wanted in MARK_STATS:
        found = tuple(name for name in wanted if name in available)
        if found:
            return found
    return ()


def as_json(stat: HeatStat) -> dict[str, Any]:
    """The statistic for the page's script."""
    return asdict(stat)

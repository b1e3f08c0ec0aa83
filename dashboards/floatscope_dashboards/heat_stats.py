"""Which tensor statistics the heat map can show: words, unit, worst direction and colour range of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from floatscope_dashboards.say import Say, later


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
# without a bounded range are shown as their logarithm, in the range that they have (0 to 0 here).
HEAT_STATS: tuple[HeatStat, ...] = (
    HeatStat(
        *("headroom_log2", later("Headroom"), later("binades"), "low", "both", -4.0, 8.0, 2),
        *(later("clips"), later("unused")),
    ),
    HeatStat("overflow_pct", later("Clipped"), "%", "high", "high", 0.0, 5.0, 2),
    HeatStat("underflow_pct", later("Underflow"), "%", "high", "high", 0.0, 20.0, 2),
    HeatStat("scale", later("Scale"), "log2", "high", "none", 0.0, 0.0, 1, log2=True),
    HeatStat("sqnr_db", later("SNR"), "dB", "low", "low", 0.0, 40.0, 1),
    HeatStat("sat", later("Saturation"), later("of the format's maximum"), "high", "high", 1.0, 8.0, 2),
    HeatStat("amax", later("Amax"), "log2", "high", "none", 0.0, 0.0, 1, log2=True),
    HeatStat("rms", later("RMS"), "log2", "high", "none", 0.0, 0.0, 1, log2=True),
    HeatStat("zero_pct", later("Zeros"), "%", "high", "none", 0.0, 100.0, 2),
    HeatStat("unchanged_pct", later("Unchanged weights"), "%", "high", "high", 0.0, 100.0, 2),
    HeatStat("grad_norm", later("Gradient norm"), "log2", "high", "none", 0.0, 0.0, 1, log2=True),
    HeatStat("update_ratio", later("Update ratio"), "log2", "high", "none", 0.0, 0.0, 1, log2=True),
    HeatStat("amax_min_block", later("Smallest block amax"), "log2", "low", "none", 0.0, 0.0, 1, log2=True),
    HeatStat("nan_count", later("NaN values"), "", "high", "high", 0.0, 1.0, 0),
    HeatStat("inf_count", later("Inf values"), "", "high", "high", 0.0, 1.0, 0),
)
BUTTONS = 4
"""The first so many that a run has are buttons; the others are in a menu."""
MARK_STATS: tuple[tuple[str, ...], ...] = (("nan_count", "inf_count"), ("rms",))
"""Where non-finite values of a tensor are seen, best first. An amax leaves NaN out, as Transformer Engine's
does, and an RMS is missing where no element is finite."""
_BY_NAME: Mapping[str, HeatStat] = {stat.name: stat for stat in HEAT_STATS}


def offered(names: Iterable[str]) -> tuple[HeatStat, ...]:
    """Every statistic among `names`: those with a fixed meaning in the order of the buttons, then others by
    name, whose range is that of their values (`low` equals `high`).
    """
    known = [_BY_NAME[name] for name in set(names) & set(_BY_NAME)]
    others = sorted(set(names) - set(_BY_NAME))
    return (
        *sorted(known, key=HEAT_STATS.index),
        *(HeatStat(name, name, "", "high", "none", 0.0, 0.0, 4) for name in others),
    )


def first_choice(names: Iterable[str], signals: Iterable[str]) -> str | None:
    """What to show first: what the worst finding quotes, else headroom, else the first there is.

    Clipping is better seen as headroom, which shows it coming.
    """
    available = [stat.name for stat in offered(names)]
    quoted = ["headroom_log2" if name == "overflow_pct" else name for name in signals]
    for name in (*quoted, "headroom_log2"):
        if name in available and name in _BY_NAME:
            return name
    return available[0] if available else None


@dataclass(frozen=True)
class Choices:
    """The switch: a few buttons, and a menu of the others."""

    buttons: tuple[HeatStat, ...]
    others: tuple[HeatStat, ...]


def buttons(names: Iterable[str]) -> Choices:
    """The statistics among `names` as the switch offers them."""
    found = offered(names)
    return Choices(found[:BUTTONS], found[BUTTONS:])


def mark_stats(names: Iterable[str]) -> tuple[str, ...]:
    """The statistics among `names` that tell where values are not finite; empty when there are none."""
    available = set(names)
    for wanted in MARK_STATS:
        found = tuple(name for name in wanted if name in available)
        if found:
            return found
    return ()


def as_json(stat: HeatStat, say: Say | None = None) -> dict[str, Any]:
    """The statistic for the page's script, in the page's language."""
    found = asdict(stat)
    if say is not None:
        for name in ("label", "unit", "low_word", "high_word"):
            found[name] = say(found[name])
    return found

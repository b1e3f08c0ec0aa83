"""How tensors and their statistics read: state signs, formats, numbers with units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from floatscope_dashboards.say import NARROW_SPACE, NO_VALUE, Say, later
from floatscope_dashboards.tensor_view import (
    CLIPS,
    FITS,
    FLUSHES,
    NO_STATS,
    NONFINITE,
    UNSCALED,
    TensorLine,
)
from floatscope_dashboards.wording import Sign, health_sign, number_text

STATE_SIGNS: Mapping[str, Sign] = {
    NONFINITE: Sign("nan", "\u2715", later("NaN or Inf")),
    CLIPS: Sign("warn", "\u25c6", later("Clips")),
    FLUSHES: Sign("warn", "\u25c6", later("Loses small values")),
    FITS: Sign("ok", "\u2713", later("Fits")),
    UNSCALED: Sign("idle", "\u25cb", later("Not scaled")),
    NO_STATS: Sign("idle", "?", later("No statistics")),
}


@dataclass(frozen=True)
class TensorColumn:
    """A column of the table. worst: which end is the bad one, "high", "low" or "" (neither)."""

    stat: str
    label: str
    unit: str
    worst: str
    decimals: int | None = None


COLUMNS: tuple[TensorColumn, ...] = (
    TensorColumn("headroom_log2", later("Headroom"), later("binades"), "low", 2),
    TensorColumn("overflow_pct", later("Clipped"), "%", "high", 2),
    TensorColumn("underflow_pct", later("Become 0"), "%", "high", 2),
    TensorColumn("nan_count", later("NaN"), "", "high", 0),
    TensorColumn("inf_count", later("Inf"), "", "high", 0),
    TensorColumn("sqnr_db", later("SNR"), "dB", "low", 1),
    TensorColumn("amax", later("Amax"), "", ""),
    TensorColumn("scale", later("Scale"), "", ""),
    TensorColumn("grad_norm", later("Grad norm"), "", "high"),
    TensorColumn("update_ratio", later("Update ratio"), "", "high"),
)
SORTS = {"name": "", "call": "", **{column.stat: column.worst for column in COLUMNS}}
"""Keys the table can be sorted by -> the bad end."""


TensorSign = Sign
"""How a tensor's state looks."""


def sign_of(line: TensorLine) -> TensorSign:
    """The tensor's own state, in the colour of the open finding that names it."""
    own = STATE_SIGNS[line.state]
    if line.named not in ("critical", "warning"):
        return own
    told = health_sign(line.named)
    return Sign(told.kind, told.glyph, own.word if line.state in (NONFINITE, CLIPS, FLUSHES) else told.word)


def format_words(name: str) -> str:
    """ "E4M3", "MXFP8 E4M3", "BF16"; a dash where it is not known."""
    return name.upper().replace("_", " ") if name else NO_VALUE


def value_words(value: float | None, decimals: int | None = None) -> str:
    """A number of the table; NaN, Inf, missing and 0 stay four texts, and what rounds to 0 says so and of
    which sign it is.
    """
    if value is None or not math.isfinite(value) or decimals is None:
        return number_text(value)
    if value == 0:
        return "0"
    least = 10.0**-decimals
    if abs(value) < least / 2:
        sign = "<\u00a0" if value > 0 else ">\u00a0\u2212"  # a line may not end between sign and number
        return f"{sign}{least:g}"
    return f"{value:,.{decimals}f}".replace("-", "\u2212")


def with_unit_words(value: float | None, decimals: int | None, unit: str) -> str:
    """The number with its unit, on one line; without one where there is no number."""
    text = value_words(value, decimals)
    return f"{text}{NARROW_SPACE}{unit}" if unit and value is not None and math.isfinite(value) else text


def is_bad(line: TensorLine, stat: str) -> str:
    """Class of a number that needs a look: "is-nan", "is-bad" or ""."""
    value = line.values.get(stat)
    if value is None:
        return ""
    if not math.isfinite(value) or (stat in ("nan_count", "inf_count") and value > 0):
        return "is-nan"
    if line.state == CLIPS and stat in ("overflow_pct", "headroom_log2"):
        return "is-bad"
    return "is-bad" if line.state == FLUSHES and stat == "underflow_pct" else ""


def numbers_sentence(line: TensorLine, say: Say, step: int | None) -> str:
    """The tensor's numbers at a step as one sentence; "" without any."""
    parts = [
        (line.values.get("headroom_log2"), 2, later("{value} binades of headroom")),
        (line.values.get("overflow_pct"), 2, later("{value} % clipped")),
        (line.values.get("underflow_pct"), 2, later("{value} % become 0")),
        (line.values.get("sqnr_db"), 1, later("{value} dB signal to noise")),
    ]
    known = [say(text, value=value_words(value, n)) for value, n, text in parts if value is not None]
    if not known or step is None:
        return ""
    return say("Step {step}: {numbers}.", step=say.step(step), numbers=say(", ").join(known))

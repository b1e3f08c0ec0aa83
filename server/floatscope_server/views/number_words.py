"""Numbers as tiles show them."""

from __future__ import annotations

import math

from floatscope_dashboards.wording import MINUS


def number_words(value: float, *, decimals: int | None = None) -> str:
    """A number short enough for a tile, with NaN and Inf as words; what rounds to 0 but is not says so."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    size, sign = abs(value), MINUS if value < 0 else ""
    if decimals is not None:
        least = 10.0**-decimals
        if 0 < size < least:
            return f"<\u00a0{least:g}" if value > 0 else f">\u00a0{MINUS}{least:g}"
        return sign + f"{size:.{decimals}f}"
    if size != 0 and not 1e-3 <= size < 1e5:
        return sign + f"{size:.2e}"
    return sign + f"{size:.4g}"

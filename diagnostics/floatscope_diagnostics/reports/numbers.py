"""Numbers as people read them: four digits, no noise in exponents, NaN and Inf by name."""

from __future__ import annotations

import math

WHOLE_BELOW = 1e7  # from here on a power of ten is easier to read than the digits


def number(value: float | str | None, digits: int = 4) -> str:
    """``digits`` significant digits: 0.00031, 2.108, 65,536, 1.23e9; text as it is."""
    if value is None:
        return "not logged"
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    size = abs(value)
    if size == int(size) and size < WHOLE_BELOW:
        return f"{int(value):,}"
    if 10**digits <= size < WHOLE_BELOW:
        return f"{value:,.0f}"
    return exponent(f"{value:.{digits}g}")


def exponent(text: str) -> str:
    """``1.2e+09`` as ``1.2e9``, ``3e-05`` as ``3e-5``."""
    mantissa, e, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if e else text


def count(n: int, word: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def size(n_bytes: float) -> str:
    """``3.4 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            return f"{n_bytes:.0f} {unit}" if unit == "B" or n_bytes >= 100 else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    raise AssertionError("unreachable")

"""Numbers and lines of a plan as people read them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from floatscope_diagnostics.plan.cost import Interval

WIDTH = 100
GB = 1e9


def gb(value: float) -> str:
    """Bytes in GB of 10^9, as the GPU's memory is counted."""
    if value >= 1e5 * GB:
        return large(value / GB)
    return f"{value / GB:.1f}" if value >= 0.05 * GB or value == 0 else f"{value / GB:.2f}"


def seconds(value: float) -> str:
    """``2.46 s``, ``812 ms``."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def digits(value: float) -> str:
    """Three digits without an exponent: ``0.0412``, ``786``, ``12,500``."""
    if value >= 1e6:
        return large(value)
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.4f}"


def times(value: float) -> str:
    """``1.25x``."""
    return f"{value:.2f}x"


def money(value: float) -> str:
    """Three digits; no currency, the price has none."""
    if value >= 1e6:
        return large(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def span(value: Interval, show: str = "{:.2f}") -> str:
    """``low to high``."""
    return f"{show.format(value.low)} to {show.format(value.high)}"


def large(value: float) -> str:
    """``8.03 B``, ``15 T``."""
    if value >= 1e15:
        return f"{value:.0e}".replace("e+", "e")
    for size, sign in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {sign}"
    return f"{value:.3g}"


def wrapped(text: str, *, lead: str = "", indent: int | None = None) -> list[str]:
    """Lines of at most 100 columns; those after the first stand under the text."""
    hang = " " * (len(lead) if indent is None else indent)
    return textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=hang)


def table(rows: Sequence[Sequence[str]], *, left: int = 1, indent: str = "  ") -> list[str]:
    """Columns aligned: the first ``left`` to the left, the others to the right."""
    sizes = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    gap = 2 if sum(sizes) + 2 * (len(sizes) - 1) + len(indent) <= WIDTH else 1
    lines = []
    for row in rows:
        cells = [
            cell.ljust(size) if i < left else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ]
        lines.append((indent + (" " * gap).join(cells)).rstrip())
    return lines

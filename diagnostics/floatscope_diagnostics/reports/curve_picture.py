"""A curve in one line of block characters, with the onset marked below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.curves import WORST, Curve, Curves
from floatscope_diagnostics.reports.numbers import number
from floatscope_diagnostics.reports.terminal import Style, plain

BLOCKS = "▁▂▃▄▅▆▇█"
BAD = "✕"
EARLY_SHARE = 0.1  # of the run, not looked at for the scale: every loss falls steeply there
LOG_FROM_RATIO = 50.0  # largest to smallest value from which the picture is logarithmic
LOW_MATTERS = ("loss_scale", "lr")  # of these the least value of a cell is drawn, of others the greatest
MOST_ROWS = 4


@dataclass(frozen=True)
class Mark:
    """Where a finding began. severity: its colour."""

    step: int
    segment: int
    severity: str


def drawn_names(curves: Curves, cited: Sequence[str] = ()) -> list[str]:
    """Curves worth a line: the loss (or the first series there is), what a finding cites, and clipping and
    underflow where there is any."""
    series = {n: c for n, c in curves.series.items() if len(c) > 1}
    if not series:
        return []
    lead = "loss" if "loss" in series else next(iter(series))
    held_out = ["eval_loss"] if "eval_loss" in cited else []
    worst = [n for n in WORST.values() if n in series and _greatest(series[n]) > 0.0]
    wanted = [lead, *held_out, *worst, *(n for n in cited if n in series)]
    return list(dict.fromkeys(wanted))[:MOST_ROWS]


def picture(curves: Curves, names: Sequence[str], mark: Mark | None, style: Style) -> Iterator[str]:
    """The lines of the picture, the axis last."""
    series = curves.series
    labels = {n: plain(n if len(n) <= 16 else n[:13] + "...") for n in names}
    starts = {n: number(series[n].first_value) for n in names}
    lead = max((len(t) for t in labels.values()), default=0) + 2
    left = max((len(t) for t in starts.values()), default=0)
    width = style.width - 2 - 2 - lead - left - 2 - 12
    if not names or width < 8:
        return
    at = None if mark is None else _cell(curves, curves.at(mark.step, mark.segment), width)
    for name in names:
        text = style.fit(blocks(curves, name, width))
        if at is not None and mark is not None:
            text = text[:at] + style.paint(text[at:], mark.severity)
        end = number(series[name].last_value)
        yield f"  {labels[name]:<{lead}}{starts[name]:>{left}}  {text}  {end}"
    yield _axis(curves, at, mark, style, lead + left + 4, width)
    yield ""


def blocks(curves: Curves, name: str, width: int) -> str:
    """``width`` characters; a cell with a NaN or Inf is a cross, one without values is as the one before."""
    curve = curves.series[name]
    cell = _cells(curves, curve, width)
    values = curve.low if name in LOW_MATTERS else curve.high
    heights = _heights(name, values, curves)
    level = np.full(width, -1)
    np.maximum.at(level, cell, np.where(np.isfinite(values), heights, -1))
    if name in LOW_MATTERS:
        level = np.full(width, len(BLOCKS))
        np.minimum.at(level, cell, np.where(np.isfinite(values), heights, len(BLOCKS)))
        level[level == len(BLOCKS)] = -1
    bad = np.zeros(width, bool)
    bad[cell[curve.bad]] = True
    out: list[str] = []
    held = " "
    for k in range(width):
        held = BAD if bad[k] else BLOCKS[level[k]] if level[k] >= 0 else held
        out.append(held)
    last = int(cell[-1]) if len(cell) else -1
    return "".join(out[: last + 1]).ljust(width)


def _heights(name: str, values: NDArray[np.float64], curves: Curves) -> NDArray[np.int64]:
    """Block 0 to 7 of each bin; where the bin has no finite value it means nothing."""
    low, high, logarithmic = scale_of(name, values, curves)
    shown = np.clip(np.nan_to_num(values, nan=low), low, high)
    if high <= low:
        return np.zeros(len(values), np.int64)
    if logarithmic:
        shown, low, high = np.log(shown), np.log(low), np.log(high)
    level: NDArray[np.int64] = ((shown - low) / (high - low) * len(BLOCKS)).astype(np.int64)
    return np.minimum(level, len(BLOCKS) - 1)


def scale_of(name: str, values: NDArray[np.float64], curves: Curves) -> tuple[float, float, bool]:
    """Least and greatest value drawn of a series, without the beginning of the run, and whether on a
    logarithmic scale.

    values: one a bin, or two (all the least, then all the greatest).
    """
    first, last = curves.span()
    share = 0.0 if name in LOW_MATTERS else EARLY_SHARE
    late = curves.x(curves.series[name]) >= first + share * (last - first)
    late = np.tile(late, len(values) // max(len(late), 1))
    chosen = values[late & np.isfinite(values)]
    if len(chosen) < 3:
        chosen = values[np.isfinite(values)]
    if not len(chosen):
        return 0.0, 0.0, False
    low, high = float(chosen.min()), float(chosen.max())
    return low, high, low > 0.0 and high > LOG_FROM_RATIO * low


def _greatest(curve: Curve) -> float:
    finite = curve.high[np.isfinite(curve.high)]
    return float(finite.max()) if len(finite) else 0.0


def _cells(curves: Curves, curve: Curve, width: int) -> NDArray[np.int64]:
    first, last = curves.span()
    share = (curves.x(curve) - first) / max(last - first, 1.0)
    return np.clip((share * width).astype(np.int64), 0, width - 1)


def _cell(curves: Curves, x: float, width: int) -> int:
    first, last = curves.span()
    return min(max(int((x - first) / max(last - first, 1.0) * width), 0), width - 1)


def _axis(curves: Curves, at: int | None, mark: Mark | None, style: Style, indent: int, width: int) -> str:
    ends = curves.ends()
    assert ends is not None  # a curve was drawn
    left, right = (f"{step:,}" for step in ends)
    row = list(left.ljust(width))
    painted = None
    if at is not None:
        text = "^ onset" if at + 7 <= width else "onset ^"
        start = at if text[0] == "^" else at - 6
        if start < len(left) + 1:
            row = [" "] * width
        row[start : start + 7] = text
        painted = (start, start + 7)
    line = "".join(row)
    if painted is not None and mark is not None:
        a, b = painted
        line = style.paint(line[:a], "faint") + style.paint(line[a:b], mark.severity) + line[b:]
    else:
        line = style.paint(line, "faint")
    return " " * indent + line + "  " + style.paint(right, "faint")

"""Curves as SVG: a panel a quantity, the same steps below each other, no script and nothing to fetch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.curves import WORST, Curve, Curves
from floatscope_diagnostics.reports.curve_picture import LOG_FROM_RATIO, drawn_names, scale_of
from floatscope_diagnostics.reports.numbers import exponent, number
from floatscope_diagnostics.reports.terminal import plain

WIDTH, LEFT, RIGHT = 700, 58, 12
LEAD_HEIGHT, HEIGHT, GAP = 132, 64, 26
PAD = 0.06  # of the y range, above and below
X_TICKS = 6
LABEL_PX = 6.2  # width of a character of a label

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Stretch:
    """A finding on the curves. start, end: x; end None while it lasts.  number: its place in the report."""

    start: float
    end: float | None
    severity: str
    number: int
    step: int


@dataclass(frozen=True)
class Scale:
    """A value to a height in pixels."""

    low: float
    high: float
    logarithmic: bool
    top: float
    height: float

    def y(self, values: F64) -> F64:
        shown = np.clip(values, self.low, self.high)
        if self.logarithmic:
            share = np.log(shown / self.low) / math.log(self.high / self.low)
        else:
            share = (shown - self.low) / (self.high - self.low)
        return self.top + (1.0 - share) * self.height

    def ticks(self) -> list[tuple[float, str]]:
        if not self.logarithmic:
            step = nice_step((self.high - self.low) / (5 if self.height > 100 else 2.5))
            first = math.ceil(self.low / step)
            values = [k * step for k in range(first, math.floor(self.high / step) + 1)]
            digits = max(0, -math.floor(math.log10(step))) if step < 1 else 0
            return [(v, label(v, digits)) for v in values]
        lowest, highest = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        every = max(1, (highest - lowest) // 4 + 1)
        return [(10.0**k, number(10.0**k)) for k in range(lowest, highest + 1, every)]


def label(value: float, digits: int) -> str:
    """The text of a tick."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:,.{digits}f}"
    return exponent(f"{value:.3g}")


def nice_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least ``rough``."""
    base = 10.0 ** math.floor(math.log10(rough))
    return next((m * base for m in (1, 2, 5) if m * base >= rough), 10 * base)


def panels_of(curves: Curves, *, everything: bool) -> list[tuple[str, ...]]:
    """Which series share a panel, in order; only the first panel of a healthy run."""
    series = {n: c for n, c in curves.series.items() if len(c) > 1}
    losses = tuple(n for n in ("loss", "eval_loss", "ref_loss") if n in series)
    rest: list[tuple[str, ...]] = [(n,) for n in ("grad_norm", "lr", "loss_scale") if n in series]
    rest += [(n,) for n in drawn_names(curves) if n in WORST.values()]
    rest += [(n,) for n in series if n not in losses and (n,) not in rest and n not in WORST.values()]
    found = ([losses] if losses else []) + rest
    return found if everything else found[:1]


def chart(curves: Curves, stretches: Sequence[Stretch], *, everything: bool) -> str:
    """The whole drawing; empty if there is no curve."""
    panels = panels_of(curves, everything=everything)
    if not panels:
        return ""
    parts: list[str] = []
    top = 20.0
    bottom = top
    for k, names in enumerate(panels):
        height = LEAD_HEIGHT if k == 0 else HEIGHT
        parts += _panel(curves, names, stretches, top, height)
        bottom = top + height
        top = bottom + GAP
    parts += _x_axis(curves, bottom)
    parts += _marks(curves, stretches, bottom)
    said = escape("; ".join(_said(curves, names) for names in panels))
    size = f'viewBox="0 0 {WIDTH} {bottom + 30:.0f}"'
    return f'<svg class="ch" {size} role="img" aria-label="{said}">' + "".join(parts) + "</svg>"


def _said(curves: Curves, names: tuple[str, ...]) -> str:
    words = []
    for name in names:
        curve = curves.series[name]
        broken = int(curve.nan.sum() + curve.inf.sum())
        text = f"{plain(name)} from {number(curve.first_value)} to {number(curve.last_value)}"
        words.append(text + (f", {broken:,} values not finite" if broken else ""))
    return ", ".join(words)


def _panel(
    curves: Curves, names: tuple[str, ...], stretches: Sequence[Stretch], top: float, height: float
) -> Iterator[str]:
    scale = _scale(curves, names, top, height)
    for s in stretches:
        a, b = _px(curves, np.array([s.start, curves.span()[1] if s.end is None else s.end]))
        size = f'width="{max(b - a, 1):.1f}" height="{height}"'
        yield f'<rect class="st {s.severity}" x="{a:.1f}" y="{top}" {size}/>'
    for value, text in scale.ticks():
        y = scale.y(np.array([value]))[0]
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(text)}</text>'
    at = float(LEFT)
    for k, name in enumerate(names, 1):
        title = plain(name)[:60] + (" (log)" if scale.logarithmic and k == len(names) else "")
        swatch = (
            f'<rect class="sw b{k}" x="{at:.1f}" y="{top - 12:.1f}" width="9" height="9" rx="2"/>'
            if len(names) > 1
            else ""
        )
        indent = 13 if swatch else 0
        yield f'{swatch}<text class="pt" x="{at + indent:.1f}" y="{top - 4:.1f}">{escape(title)}</text>'
        at += indent + len(title) * LABEL_PX + 18
        yield from _curve(curves, curves.series[name], scale, k)
    yield from _beyond(curves, names, scale)


def _scale(curves: Curves, names: tuple[str, ...], top: float, height: float) -> Scale:
    drawn = [(n, curves.series[n]) for n in names]
    found = [scale_of(n, np.concatenate((c.low, c.high)), curves) for n, c in drawn]
    low, high = min(f[0] for f in found), max(f[1] for f in found)
    if low > 0 and high > LOG_FROM_RATIO * low:
        margin = (high / low) ** PAD
        return Scale(low / margin, high * margin, True, top, height)
    room = (high - low) * PAD or abs(high) * PAD or 1.0
    return Scale(low - room, high + room, False, top, height)


def _curve(curves: Curves, curve: Curve, scale: Scale, number_of: int) -> Iterator[str]:
    x = _px(curves, curves.x(curve))
    for run in _finite_runs(curve.mean):
        xs = x[run]
        line = scale.y(curve.mean[run])
        if len(xs) == 1:
            yield f'<circle class="d{number_of}" cx="{xs[0]:.1f}" cy="{line[0]:.1f}" r="1.8"/>'
            continue
        low, high = scale.y(curve.low[run]), scale.y(curve.high[run])
        if (low - high > 1.0).any():
            around = [*zip(xs, high, strict=True), *zip(xs[::-1], low[::-1], strict=True)]
            yield f'<path class="b{number_of}" d="M{_points(around)}Z"/>'
        yield f'<path class="l{number_of}" d="M{_points(list(zip(xs, line, strict=True)))}"/>'
    bad = np.flatnonzero(curve.bad)
    for at in x[bad][:200]:
        y = scale.top + 5
        yield f'<path class="nan" d="M{at - 2.5:.1f} {y - 2.5:.1f}l5 5m0 -5l-5 5"/>'
    if len(bad):
        many = int(curve.nan.sum()), int(curve.inf.sum())
        words = " and ".join(f"{n:,} {w}" for n, w in zip(many, ("NaN", "Inf"), strict=True) if n)
        anchor = "end" if x[bad[-1]] > WIDTH - 110 else "start"
        place = f'x="{x[bad[-1]]:.1f}" y="{scale.top + 20:.1f}" text-anchor="{anchor}"'
        yield f'<text class="nt" {place}>{words}</text>'


def _beyond(curves: Curves, names: tuple[str, ...], scale: Scale) -> Iterator[str]:
    """What lies above the drawn range is said, not hidden."""
    highest = [(float(np.nanmax(c.high)), c) for n in names if (c := curves.series[n]).finite.any()]
    if not highest:
        return
    value, curve = max(highest, key=lambda pair: pair[0])
    if value > scale.high:
        at = int(np.nanargmax(curve.high))
        text = f"above: up to {number(value)} at step {curve.step[at]:,}"
        place = f'x="{WIDTH - RIGHT}" y="{scale.top - 4:.1f}" text-anchor="end"'
        yield f'<text class="fa" {place}>{escape(text)}</text>'


def _x_axis(curves: Curves, bottom: float) -> Iterator[str]:
    first, last = curves.span()
    if curves.seams:
        places = [(first + k * (last - first) / X_TICKS) for k in range(X_TICKS + 1)]
    else:
        step = max(nice_step(max(last - first, 1.0) / X_TICKS), 1.0)
        places = [k * step for k in range(math.ceil(first / step), math.floor(last / step) + 1)]
    for place in places:
        x = _px(curves, np.array([place]))[0]
        anchor = "end" if x > WIDTH - 40 else "start" if x < LEFT + 20 else "middle"
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 3}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="{anchor}">{curves.step_at(place):,}</text>'


def _marks(curves: Curves, stretches: Sequence[Stretch], bottom: float) -> Iterator[str]:
    for seam in curves.seams:
        x = _px(curves, np.array([float(seam)]))[0]
        yield f'<line class="seam" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{bottom}"/>'
    for s in stretches:
        x = _px(curves, np.array([s.start]))[0]
        yield f'<line class="on {s.severity}" x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{bottom}"/>'
        text = f"{s.number}: step {s.step:,}"
        anchor = "start" if x < WIDTH - 120 else "end"
        yield (
            f'<text class="ot {s.severity}" x="{x + (3 if anchor == "start" else -3):.1f}" y="{bottom + 27}" '
            f'text-anchor="{anchor}">{text}</text>'
        )


def _px(curves: Curves, x: F64) -> F64:
    first, last = curves.span()
    return LEFT + np.clip((x - first) / max(last - first, 1.0), 0.0, 1.0) * (WIDTH - LEFT - RIGHT)


def _finite_runs(values: F64) -> Iterator[slice]:
    ok = np.concatenate(([False], np.isfinite(values), [False]))
    edges = np.flatnonzero(np.diff(ok.astype(np.int8)))
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        yield slice(int(a), int(b))


def _points(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in points)

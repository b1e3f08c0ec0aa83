"""Charts of the printable reports as SVG text: no script, nothing to fetch, colours for white paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from floatscope_dashboards import bins as binning
from floatscope_dashboards.bins import Bins
from floatscope_dashboards.wording import number_text

WIDTH, LEFT, RIGHT, TOP = 700, 46, 16, 16
ONSET_ROW = 13  # for the word over the onset, below the title
LOSS_HEIGHT, PROOF_HEIGHT, GAP = 134, 42, 22
INK, GREY, GRID, BLUE, ORANGE = "#12161c", "#4a5361", "#e1e5ea", "#0072b2", "#d55e00"
CRIT, CRIT_WEAK, NAN = "#b3380a", "#fdeee7", "#8b2f6d"
TICKS_X = 6


@dataclass(frozen=True)
class Panel:
    """A stretch of the drawing. low, high: values at its lower and upper edge."""

    top: float
    height: float
    low: float
    high: float

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return self.top + (1.0 - share) * self.height


@dataclass(frozen=True)
class Steps:
    """The common x axis."""

    first: float
    last: float

    def x(self, step: float) -> float:
        share = (step - self.first) / ((self.last - self.first) or 1.0)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def run_chart(
    loss: Mapping[str, Any],
    *,
    said: str,
    titles: tuple[str, str],
    onset: int | None,
    onset_word: str,
    broken_word: str = "",
    baseline: Mapping[str, Any] | None = None,
    baseline_word: str = "",
    proof: Mapping[str, Any] | None = None,
) -> Markup:
    """The loss with its band, the baseline dashed, the onset; below it the statistic that proves it.

    said: what a screen reader hears. titles: of both panels. broken_word: what the stretches with NaN or Inf
    are. Empty without a loss.
    """
    read, other = binning.read_bins(loss), binning.read_bins(baseline)
    below = binning.read_bins(proof)
    steps = [*read.step, *below.step]
    if not steps:
        return Markup("")
    along = Steps(min(steps), max(max(steps), min(steps) + 1))
    span = binning.span([read, other])
    top = TOP if onset is None else TOP + ONSET_ROW
    upper = Panel(top, LOSS_HEIGHT, span.low, span.high) if span else Panel(top, LOSS_HEIGHT, 0.0, 1.0)
    lower_span = binning.whole_span([below])
    bottom = upper.top + upper.height
    parts: list[str] = []
    lower = None
    if lower_span is not None:
        lower = Panel(bottom + GAP, PROOF_HEIGHT, min(lower_span.low, 0.0), lower_span.high)
        bottom = lower.top + lower.height
    if onset is not None:
        parts += _onset(along, onset, onset_word, (top, bottom))
    parts += _grid(upper)
    parts += _nonfinite(along, read, upper, broken_word)
    parts += _curve(along, upper, other, GREY, 1.2, dash="4 3")
    parts += _band(along, upper, read, BLUE)
    parts += _curve(along, upper, read, BLUE, 1.5)
    parts += _panel_title(TOP, titles[0])
    parts += _end_label(along, upper, read, other, baseline_word)
    if lower is not None:
        parts += _grid(lower, most=2)
        parts += _curve(along, lower, below, ORANGE, 1.5)
        parts += _panel_title(lower.top, titles[1])
    parts += _x_axis(along, bottom)
    return _svg(parts, bottom + 18, said)


def difference_chart(
    series: Mapping[str, Any], *, margin: float, said: str, titles: tuple[str, str]
) -> Markup:
    """The paired difference with its band and the limit; both losses below, the baseline dashed."""
    band = series["band"]
    gap = binning.read_bins(series["difference"])
    own, base = binning.read_bins(series["run"]), binning.read_bins(series["baseline"])
    along = Steps(float(series["from"]), float(max(series["to"], series["from"] + 1)))
    means = sorted(value for value in gap.mean if value is not None)
    inner = [means[int(share * (len(means) - 1))] for share in (0.02, 0.98)] if means else []
    values = [0.0, *band["low"], *band["high"], *inner]
    low, high = min(values), max(values)
    if margin > 0 and margin < high + 3 * max(high - low, 1e-9):
        high = max(high, 1.15 * margin)
    pad = 0.06 * max(high - low, 1e-9)
    upper = Panel(TOP, LOSS_HEIGHT + 12, low - pad, high + pad)
    parts = list(_grid(upper, signed=True))
    if margin > 0 and upper.low < margin < upper.high:
        parts += _limit(upper, margin)
    parts.append(_rule(upper.y(0.0), GREY))
    parts += _curve(along, upper, gap, BLUE, 0.6, opacity=0.35)
    if len(band["step"]) > 1:
        pairs = [(along.x(s), upper.y(v)) for s, v in zip(band["step"], band["high"], strict=True)]
        back = [(along.x(s), upper.y(v)) for s, v in zip(band["step"], band["low"], strict=True)][::-1]
        parts.append(f'<path d="M{_points([*pairs, *back])}Z" fill="{BLUE}" opacity=".2"/>')
        mean = [(along.x(s), upper.y(v)) for s, v in zip(band["step"], band["mean"], strict=True)]
        parts.append(f'<path d="M{_points(mean)}" fill="none" stroke="{BLUE}" stroke-width="1.8"/>')
    parts += _panel_title(TOP, titles[0])
    span = binning.span([own, base])
    bottom = upper.top + upper.height
    if span is not None:
        lower = Panel(bottom + GAP, PROOF_HEIGHT + 4, span.low, span.high)
        bottom = lower.top + lower.height
        parts += _grid(lower, most=3)
        parts += _nonfinite(along, own, lower)
        parts += _curve(along, lower, base, GREY, 1.2, dash="4 3")
        parts += _curve(along, lower, own, BLUE, 1.3)
        parts += _panel_title(lower.top, titles[1])
    parts += _x_axis(along, bottom)
    return _svg(parts, bottom + 18, said)


def _svg(parts: Sequence[str], height: float, said: str) -> Markup:
    head = (
        f'<svg class="ch" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(said)}" '
        f'font-family="Inter,Segoe UI,Arial,sans-serif" font-size="10.5" fill="{GREY}">'
    )
    return Markup(head + "".join(parts) + "</svg>")  # noqa: S704 - every text in it is escaped or a number


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", fill: str = GREY, bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{weight}>{escape(text)}</text>'


def _rule(y: float, colour: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"{dashed}/>'


def _grid(panel: Panel, *, most: int = 5, signed: bool = False) -> Iterator[str]:
    for value in ticks(panel.low, panel.high, most):
        y = panel.y(value)
        yield _rule(y, GRID)
        text = number_text(0.0 if value == 0 else value).replace("-", "\u2212")
        yield _text(LEFT - 5, y + 3.5, ("+" if signed and value > 0 else "") + text, anchor="end")


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values between both, about so many."""
    span = high - low
    if not 0 < span < math.inf:
        return [low]
    rough = span / most
    base = 10.0 ** math.floor(math.log10(rough))
    step = next((m * base for m in (1, 2, 5) if m * base >= rough), 10 * base)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _runs(bins: Bins) -> Iterator[range]:
    """Places of neighbouring bins with a finite mean."""
    for start, end in binning.finite_runs(bins):
        yield range(start, end)


def _curve(
    along: Steps, panel: Panel, bins: Bins, colour: str, width: float, *, dash: str = "", opacity: float = 1.0
) -> Iterator[str]:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    faint = f' opacity="{opacity}"' if opacity < 1 else ""
    for run in _runs(bins):
        points = [(along.x(bins.step[k]), panel.y(bins.mean[k] or 0.0)) for k in run]
        if len(points) == 1:
            (x, y) = points[0]
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8" fill="{colour}"{faint}/>'
        else:
            yield (
                f'<path d="M{_points(points)}" fill="none" stroke="{colour}" stroke-width="{width}"'
                f' stroke-linejoin="round"{dashed}{faint}/>'
            )


def _band(along: Steps, panel: Panel, bins: Bins, colour: str) -> Iterator[str]:
    for run in _runs(bins):
        if len(run) > 1:
            up = [(along.x(bins.step[k]), panel.y(bins.high[k] or 0.0)) for k in run]
            down = [(along.x(bins.step[k]), panel.y(bins.low[k] or 0.0)) for k in reversed(run)]
            yield f'<path d="M{_points([*up, *down])}Z" fill="{colour}" opacity=".2"/>'


def _nonfinite(along: Steps, bins: Bins, panel: Panel, word: str = "") -> Iterator[str]:
    stretches = binning.nonfinite_stretches(bins)
    if stretches and word:
        x = max(along.x(stretches[0][0]), LEFT) + 4
        anchor, x = ("start", x) if x < WIDTH - 120 else ("end", WIDTH - RIGHT)
        yield _text(x, panel.top + panel.height - 5, word, anchor=anchor, fill=NAN, bold=True)
    for first, last in stretches:
        x = along.x(first)
        width = max(along.x(last) - x, 1.5)
        yield (
            f'<rect x="{x:.1f}" y="{panel.top}" width="{width:.1f}" height="{panel.height}" fill="{NAN}" '
            'opacity=".3"/>'
        )


def _onset(along: Steps, onset: int, word: str, between: tuple[float, float]) -> Iterator[str]:
    x, (top, bottom) = along.x(onset), between
    width, height = WIDTH - RIGHT - x, bottom - top
    yield f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{height}" fill="{CRIT_WEAK}"/>'
    yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 3}" y2="{bottom}" stroke="{CRIT}" stroke-width="1.5"/>'
    right = x > WIDTH / 2
    yield _text(
        x + (-4 if right else 4), top - 4, word, anchor="end" if right else "start", fill=CRIT, bold=True
    )


def _limit(panel: Panel, margin: float) -> Iterator[str]:
    y = panel.y(margin)
    yield (
        f'<rect x="{LEFT}" y="{panel.top}" width="{WIDTH - LEFT - RIGHT}" height="{y - panel.top:.1f}" '
        f'fill="{CRIT_WEAK}"/>'
    )
    yield _rule(y, CRIT, "5 3")


def _panel_title(below: float, text: str) -> Iterator[str]:
    """Over the panel, where no line runs through it."""
    yield (
        f'<text x="{LEFT}" y="{below - 5:.1f}" fill="{GREY}" stroke="#fff" stroke-width="3" '
        f'paint-order="stroke">{escape(text)}</text>'
    )


def _end_label(along: Steps, panel: Panel, read: Bins, other: Bins, word: str) -> Iterator[str]:
    """What the baseline's dashed line is, where there is one."""
    known = [k for k, value in enumerate(other.mean) if value is not None]
    if known and word:
        k = known[-1]
        y = panel.y(other.mean[k] or 0.0)
        yield (
            f'<text x="{along.x(other.step[k]):.1f}" y="{min(y + 13, panel.top + panel.height - 2):.1f}" '
            f'text-anchor="end" stroke="#fff" stroke-width="3" paint-order="stroke">{escape(word)}</text>'
        )


def _x_axis(along: Steps, bottom: float) -> Iterator[str]:
    for value in ticks(along.first, along.last, TICKS_X):
        if value != int(value):
            continue
        x = along.x(value)
        anchor = "end" if x > WIDTH - 40 else "middle"
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 3}" stroke="{GREY}"/>'
        yield _text(x, bottom + 14, f"{int(value):,}", anchor=anchor)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in points)

"""The range ruler: where a tensor's values sit in its format after scaling, as numbers for a drawing.

Positions are exponents of two on an axis that all groups share, and then per cent of its width. A histogram
counts values before they are scaled (`hist_log2`), so it is moved by log2 of the scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from floatscope.protocol.formats import FORMATS, FloatFormat
from floatscope.protocol.names import BACKWARD_ROLES, FORWARD_ROLES, split_tensor
from floatscope_dashboards.heat_grid import short_layer
from floatscope_dashboards.pictures_view import RulerView, TensorAt
from floatscope_dashboards.say import NARROW_SPACE, Say, later

LOWEST = -40
"""Exponent of the first count of a histogram."""
QUARTERS = (0.001, 0.25, 0.5, 0.75, 0.999)
"""Shares of the values at which line, bar and median are drawn."""
CLIPS_PCT, LOST_PCT = 0.05, 5.0
"""From so many per cent on a row says that values clip, or are lost: below, rounding and ties show."""
MARGIN = 2.2
"""Binades that the axis goes on beyond the widest format."""
TICKS_EVERY = 4
WIDE_AXIS = 40
"""From so many binades on every other tick is left out."""
LEAST_OVER = 0.02
"""Binades beyond the largest value from which on something is drawn there: less is rounding of the scale."""
LEAST_BAR = 0.4
"""Width of a bar, in %, so that a tensor of equal values is seen."""
NOT_DRAWN = ("mxfp8_e4m3", "mxfp8_e5m2", "nvfp4")
PLAIN_AXIS = (-26.0, 18.0)

ROLE_WORDS = {
    "input": later("act"),
    "output": later("out"),
    "weight": later("weight"),
    "grad_output": later("grad"),
    "grad_input": later("grad in"),
    "grad_weight": later("grad w"),
}
COLOURS = {"input": "act", "output": "act", "weight": "wgt"}


@dataclass(frozen=True)
class RulerRow:
    """One tensor. Positions in % of the track's width; None where there is nothing to draw.

    line: from 0.1 % to 99.9 % of the values.  over: the part of it beyond the format's largest value.
    """

    name: str
    label: str
    role: str
    colour: str
    href: str
    words: str
    kind: str
    told: str
    line: tuple[float, float] | None = None
    over: tuple[float, float] | None = None
    bar: tuple[float, float] | None = None
    median: float | None = None
    amax: float | None = None
    amax_over: bool = False


@dataclass(frozen=True)
class RulerGroup:
    """Rows of one direction and format. zero, sub, top: where the format's range begins and ends, in %."""

    title: str
    rows: tuple[RulerRow, ...]
    zero: float | None
    sub: float | None
    top: float | None
    top_words: str
    note: str = ""

    @property
    def zero_width(self) -> float:
        """Width of what becomes 0."""
        return self.zero or 0.0

    @property
    def middle_zero(self) -> float:
        return (self.zero or 0.0) / 2

    @property
    def middle_sub(self) -> float:
        return ((self.zero or 0.0) + (self.sub or 0.0)) / 2

    @property
    def middle_normal(self) -> float:
        return ((self.sub or 0.0) + (100.0 if self.top is None else self.top)) / 2


@dataclass(frozen=True)
class Ruler:
    """The whole card. ticks: (position in %, exponent). step: of the values; asked: of the question."""

    groups: tuple[RulerGroup, ...]
    ticks: tuple[tuple[float, int], ...]
    sub: str
    notes: tuple[str, ...]
    total: int
    step: int | None
    asked: int | None
    has_bars: bool = False


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float

    def at(self, exponent: float) -> float:
        """Position in %, kept on the axis."""
        share = (exponent - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)


def quantiles(counts: Sequence[int], shares: Sequence[float]) -> tuple[float, ...]:
    """Exponents below which these shares of the counted values lie; inside a binade evenly in log2.

    Empty without any value: zeros, NaN and infinities are not counted.
    """
    total = sum(counts)
    if total <= 0:
        return ()
    found = []
    for share in shares:
        wanted, before = share * total, 0
        for at, count in enumerate(counts):
            if count and before + count >= wanted:
                found.append(LOWEST + at + (wanted - before) / count)
                break
            before += count
    return tuple(found)


def share_above(counts: Sequence[int], exponent: float) -> float:
    """Per cent of the counted values that are larger than two to the ``exponent``."""
    total = sum(counts)
    if total <= 0:
        return 0.0
    above = 0.0
    for at, count in enumerate(counts):
        above += count * min(1.0, max(0.0, LOWEST + at + 1 - exponent))
    return 100 * above / total


def ruler(view: RulerView, say: Say, *, run: str) -> Ruler:
    """The card of one step. run: its id, for the links."""
    axis = _axis(view.tensors)
    keys = list(dict.fromkeys(_key(item) for item in view.tensors))
    keys.sort(key=lambda key: (_DIRECTIONS.index(key[0]), key[1]))
    groups = tuple(
        _group(key, [item for item in view.tensors if _key(item) == key], axis, say, run=run, step=view.step)
        for key in keys
    )
    has_bars = any(row.bar for group in groups for row in group.rows)
    every = TICKS_EVERY if axis.high - axis.low < WIDE_AXIS else 2 * TICKS_EVERY
    first = math.ceil(axis.low / every) * every
    ticks = tuple((axis.at(e), e) for e in range(first, math.floor(axis.high) + 1, every))
    return Ruler(
        groups=groups,
        ticks=ticks,
        sub=_sub(view, say),
        notes=tuple(_notes(view, say, has_bars=has_bars)),
        total=view.total,
        step=view.step,
        asked=view.asked,
        has_bars=has_bars,
    )


_DIRECTIONS = ("forward", "backward", "")


def _key(item: TensorAt) -> tuple[str, str]:
    role = split_tensor(item.name)[1]
    direction = "forward" if role in FORWARD_ROLES else "backward" if role in BACKWARD_ROLES else ""
    return direction, item.format


def _axis(tensors: Sequence[TensorAt]) -> _Axis:
    kinds = [FORMATS[item.format] for item in tensors if item.format in FORMATS]
    scaled = [kind for kind in kinds if kind.is_scaled]
    if not scaled:
        return _Axis(*PLAIN_AXIS)
    low = min(math.log2(kind.min_subnormal) for kind in scaled) - MARGIN
    return _Axis(low, max(math.log2(kind.max_finite) for kind in scaled) + MARGIN)


def _group(
    key: tuple[str, str], items: Sequence[TensorAt], axis: _Axis, say: Say, *, run: str, step: int | None
) -> RulerGroup:
    direction, name = key
    kind = FORMATS.get(name)
    word = format_word(name) if name else say("format not known")
    title = {
        "forward": say("Forward, {format}", format=word),
        "backward": say("Backward, {format}", format=word),
        "": word,
    }[direction]
    drawn = kind is not None and kind.max_finite < 2.0**axis.high
    note = ""
    if name in NOT_DRAWN:
        note = say(
            "Every block of {n} values has a scale of its own, so one tensor's values have no single place "
            "on this axis. What clips and what is lost is counted over all blocks.",
            n=kind.block_size if kind else "",
        )
    return RulerGroup(
        title=title,
        rows=tuple(_row(item, kind, axis, say, run=run, step=step) for item in items),
        zero=axis.at(math.log2(kind.min_subnormal)) if kind is not None and drawn else None,
        sub=axis.at(math.log2(kind.min_normal)) if kind is not None and drawn else None,
        top=axis.at(math.log2(kind.max_finite)) if kind is not None and drawn else None,
        top_words=say("max {value}", value=f"{kind.max_finite:,.0f}") if kind is not None and drawn else "",
        note=note,
    )


def format_word(name: str) -> str:
    """A format as people write it: MXFP8 E4M3."""
    return name.upper().replace("_", " ")


def _row(
    item: TensorAt, kind: FloatFormat | None, axis: _Axis, say: Say, *, run: str, step: int | None
) -> RulerRow:
    layer, role = split_tensor(item.name)
    words, sort = _words(item, kind, say)
    href = f"/runs/{quote(run, safe='')}/tensors/{quote(item.name, safe='')}"
    if step is not None:
        href += f"?at={step}"
    row = RulerRow(
        name=item.name,
        label=short_layer(layer),
        role=say(ROLE_WORDS[role]) if role in ROLE_WORDS else role,
        colour=COLOURS.get(role, "grd"),
        href=href,
        words=words,
        kind=sort,
        told=_told(item, say),
    )
    if item.format in NOT_DRAWN:
        return row
    top = math.log2(kind.max_finite) if kind is not None else math.inf
    amax = _moved(item.amax, item.scale)
    if amax is not None:
        row = replace(row, amax=axis.at(amax), amax_over=amax > top + LEAST_OVER)
    shift = _log2(item.sampled_scale if _takes_scale(kind) else 1.0)
    if item.counts is not None and shift is not None and any(item.counts):
        low, q1, middle, q3, high = (at + shift for at in quantiles(item.counts, QUARTERS))
        if amax is not None and item.sampled == step:  # a binade's upper end may lie above its largest value
            low, q1, middle, q3, high = (min(at, amax) for at in (low, q1, middle, q3, high))
        return replace(
            row,
            line=(axis.at(low), axis.at(min(high, top))),
            over=(axis.at(max(low, top)), axis.at(high)) if high > top + LEAST_OVER else None,
            bar=(axis.at(q1), max(LEAST_BAR, round(axis.at(q3) - axis.at(q1), 3))),
            median=axis.at(middle),
        )
    return row


def _takes_scale(kind: FloatFormat | None) -> bool:
    return kind is not None and kind.is_scaled


def _log2(value: float | None) -> float | None:
    return math.log2(value) if value is not None and math.isfinite(value) and value > 0 else None


def _moved(amax: float | None, scale: float | None) -> float | None:
    """Exponent of the largest value after scaling; None without one."""
    size, shift = _log2(amax), _log2(1.0 if scale is None else scale)
    return None if size is None or shift is None else size + shift


def headroom(item: TensorAt) -> float | None:
    """Binades between the largest value after scaling and the format's largest; None where not known."""
    kind = FORMATS.get(item.format)
    if kind is None or (kind.is_scaled and item.scale is None):
        return None
    amax = _moved(item.amax, item.scale if kind.is_scaled else None)
    return None if amax is None else math.log2(kind.max_finite) - amax


def _words(item: TensorAt, kind: FloatFormat | None, say: Say) -> tuple[str, str]:
    """What the row says at its end, and the kind of it: nan, crit, warn or nothing."""
    for count, text in ((item.nan, later("{n} NaN")), (item.inf, later("{n} Inf"))):
        if count:
            return say(text, n=f"{count:,.0f}"), "nan"
    for value, text in ((item.scale, later("scale {value}")), (item.amax, later("amax {value}"))):
        if value is not None and not math.isfinite(value):
            return say(text, value="NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"), "nan"
    if item.scale == 0 and _takes_scale(kind):
        return say("scale 0"), "crit"
    if item.amax == 0:
        return say("all zero"), ""
    unit = NARROW_SPACE + "%"
    if item.overflow_pct is not None and item.overflow_pct >= CLIPS_PCT:
        return say("{pct} clip", pct=_pct(item.overflow_pct) + unit), "crit"
    if item.underflow_pct is not None and item.underflow_pct >= LOST_PCT:
        return say("{pct} lost", pct=_pct(item.underflow_pct) + unit), "warn"
    free = headroom(item)
    if free is None:
        return say("no scale logged") if _takes_scale(kind) and item.scale is None else "", ""
    if free < -0.05 and item.overflow_pct is None and item.format not in NOT_DRAWN:
        return say("{n} over", n=f"{-free:.1f}"), "crit"
    return say("{n} free", n=f"{max(0.0, free):.1f}"), ""


def _pct(value: float) -> str:
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def _told(item: TensorAt, say: Say) -> str:
    """The row for whoever does not see the drawing; also its tooltip."""
    parts = [item.name]
    amax = _moved(item.amax, item.scale)
    if amax is not None:
        parts.append(say("largest value {x} after scaling", x=_power(amax)))
    shift = _log2(1.0 if item.sampled_scale is None else item.sampled_scale)
    if item.counts is not None and shift is not None and any(item.counts):
        low, high = (at + shift for at in quantiles(item.counts, (0.25, 0.75)))
        parts.append(say("middle half {low} to {high}", low=_power(low), high=_power(high)))
        parts.append(say("sampled at step {step}", step=say.step(item.sampled)))
    elif item.rms:
        parts.append(say("RMS {x} before scaling", x=f"{item.rms:.3g}"))
    if item.amax_min_block and item.amax:
        spread = _log2(item.amax / item.amax_min_block)
        if spread is not None:
            parts.append(say("blocks differ by {n} binades", n=f"{spread:.1f}"))
    return "; ".join(parts)


def _power(exponent: float) -> str:
    return f"2^{exponent:.1f}".replace("-", "\u2212")


def _sub(view: RulerView, say: Say) -> str:
    if view.step is None:
        return ""
    if view.asked is not None and view.asked != view.step:
        return say(
            "at step {step}, the last one measured before {asked}",
            step=say.step(view.step),
            asked=say.step(view.asked),
        )
    if not any(_takes_scale(FORMATS.get(item.format)) for item in view.tensors):
        return say("at step {step}", step=say.step(view.step))
    return say("at step {step}, after scaling", step=say.step(view.step))


def _notes(view: RulerView, say: Say, *, has_bars: bool) -> list[str]:
    notes = []
    steps = sorted({item.sampled for item in view.tensors if item.counts and item.sampled is not None})
    if has_bars:
        notes.append(say("Bar: middle half of values. Line: 0.1 % to 99.9 %. Diamond: amax."))
        if steps and steps != [view.step]:
            notes.append(
                say("Histograms were sampled at step {step}.", step=say.step(steps[0]))
                if len(steps) == 1
                else say(
                    "Histograms were sampled at steps {low} to {high}.",
                    low=say.step(steps[0]),
                    high=say.step(steps[-1]),
                )
            )
    elif view.step is not None and view.tensors:
        notes.append(
            say(
                "Diamond: amax. No histogram was sampled up to this step: every tenth time that statistics "
                "of whole tensors are taken (stats_every) brings one."
            )
        )
    if view.plain and view.scaled:
        of_format = ", ".join(f"{format_word(name)} {count:,}" for name, count in view.plain)
        notes.append(
            say(
                "Not shown: tensors in formats that take no scale ({formats}); their range is wide enough.",
                formats=of_format,
            )
        )
    return notes

"""The advice in words: what to do, gain and cost with their intervals, a line per layer and per problem."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.advice_view import AdviceView
from floatscope_dashboards.say import NARROW_SPACE, NO_VALUE, Say, later
from floatscope_dashboards.tensor_links import tensor_href, tensors_href
from floatscope_dashboards.tensor_words import value_words
from floatscope_dashboards.wording import as_float, as_int, as_text, number_text, with_unit

RECIPES: Mapping[str, str] = {
    "delayed": later("FP8, delayed scaling"),
    "current": later("FP8, current scaling"),
    "block": later("FP8, block scaling"),
    "rowwise": later("FP8, a scale for each row"),
    "mxfp8": "MXFP8",
    "nvfp4": "NVFP4",
    "bf16": "BF16",
    "fp32": "FP32",
}
WHATS: Mapping[str, str] = {
    "underflow_pct": later("Become 0"),
    "overflow_pct": later("Clipped"),
    "sqnr_loss_db": later("SNR below what the format reaches"),
    "nonfinite": later("NaN or Inf"),
}
MOST_SENTENCES = 6


@dataclass(frozen=True)
class Banner:
    """The first lines. tone: class.  icon: shape.  word, glyph: for titles."""

    tone: str
    icon: str
    word: str
    glyph: str
    title: str
    why: str


@dataclass(frozen=True)
class Figure:
    """A number below the banner, with its interval or what it rests on."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class LayerLine:
    """One layer that should change. href: its tensors."""

    layer: str
    href: str
    before: str
    after: str
    why: tuple[str, ...]
    flops: str
    predicted: str


@dataclass(frozen=True)
class ProblemLine:
    """One statistic beyond its limit. href: its tensor at the last step of the window whose mean the value
    is.  window: that window and its rows, "" where the document names none.  since_href: its tensor where it
    began.
    """

    tensor: str
    href: str
    what: str
    value: str
    window: str
    limit: str
    since: int | None
    since_href: str


def banner(view: AdviceView, say: Say) -> Banner:
    """What to do, in a sentence; the engine's own stands below it."""
    why = say.engine(as_text(view.document.get("sentence")))
    code = as_text(view.document.get("decision"))
    moved = len(_items(view.document, "layers"))
    if not code:
        code = (
            "move_layers" if moved else "cannot_say" if _items(view.document, "not_decided") else "keep_fp8"
        )
    if code == "move_layers" and moved:
        kept = as_int(view.document.get("kept")) or 0
        title = say.plural(
            "Change the precision of {n} layer of {all}",
            "Change the precision of {n} layers of {all}",
            moved,
            all=f"{moved + kept:,}",
        )
        return Banner("v-warn", "warn", say("Change layers"), "\u25c6", title, why)
    if code == "keep_fp8":
        title = say("Keep every layer as it is: no problem is above its limit")
        return Banner("v-ok", "ok", say("Keep"), "\u2713", title, why)
    if code == "not_layers":
        title = say("Other precision in some layers would not help")
        return Banner("v-warn", "warn", say("Not the layers"), "\u25c6", title, why)
    title = say("No advice can be given for this run yet")
    return Banner("v-idle", "other", say("Not decided"), "\u25cb", title, why)


def figures(view: AdviceView, say: Say) -> tuple[Figure, ...]:
    """Gain and cost of the change; what is not known is left out."""
    found = view.document.get("predicted")
    gain: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    if not _items(view.document, "layers"):
        return ()

    def number(name: str) -> float | None:
        value = as_float(gain.get(name))
        return None if value is None or not math.isfinite(value) else value

    made = []
    closed = number("gap_closed_pct")
    if closed is not None:
        note = _between(number("gap_closed_low_pct"), number("gap_closed_high_pct"), say)
        gap = number("gap_nats")
        if gap is not None:
            text = say("of {gap} nats", gap=value_words(gap, 4))
            note = f"{text}, {note}" if note else text
        made.append(Figure(say("Gap to the baseline that should close"), _pct(closed, 0), note))
    harm = number("harm_removed_pct")
    if harm is not None:
        note = say("of the damage of all casts that was seen")
        made.append(Figure(say("Damage removed"), _pct(harm, 0), note))
    leaving = number("flops_leaving_pct")
    if leaving is not None:
        note = say("of the FP8 matrix products go back to BF16")
        made.append(Figure(say("Leaves FP8"), _pct(leaving, 1), note))
    cost = number("speed_cost_pct")
    if cost is not None:
        note = say.engine(as_text(gain.get("speed_from")))
        label = say("Longer matrix products") if cost >= 0 else say("Shorter matrix products")
        made.append(Figure(label, _pct(abs(cost), 1), note))
    return tuple(made)


def layer_lines(view: AdviceView, say: Say) -> tuple[LayerLine, ...]:
    """The layers that should change, as the engine orders them."""
    return tuple(_layer(view, item, say) for item in _items(view.document, "layers"))


def problem_lines(view: AdviceView, say: Say) -> tuple[ProblemLine, ...]:
    """Every statistic beyond its limit."""
    return tuple(_problem(view, item, say) for item in _items(view.document, "problems"))


def recipe_name(code: str, say: Say) -> str:
    """A recipe's short name in words; one that is not known stays as it is."""
    return say(RECIPES[code]) if code in RECIPES else code or NO_VALUE


def _layer(view: AdviceView, item: Mapping[str, Any], say: Say) -> LayerLine:
    layer = as_text(item.get("layer"))
    why = item.get("why")
    share = as_float(item.get("flops_share_pct"))
    return LayerLine(
        layer,
        tensors_href(view.run.run_id, layer=layer),
        recipe_name(as_text(item.get("from")), say),
        recipe_name(as_text(item.get("to")), say),
        tuple(
            say.engine(as_text(text))
            for text in (why if isinstance(why, list) else ())[:MOST_SENTENCES]
            if text
        ),
        NO_VALUE if share is None or not math.isfinite(share) else _pct(share, 1),
        _predicted(item.get("predicted"), say),
    )


def _predicted(found: Any, say: Say) -> str:
    """Worst figures of the layer's tensors once it has changed."""
    given: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    told = []
    zero, sqnr = as_float(given.get("underflow_pct")), as_float(given.get("sqnr_db"))
    if zero is not None and math.isfinite(zero):
        told.append(say("{value} % become 0", value=value_words(zero, 2)))
    if sqnr is not None and math.isfinite(sqnr):
        told.append(say("{value} dB signal to noise", value=value_words(sqnr, 1)))
    return say(", ").join(told)


def _problem(view: AdviceView, item: Mapping[str, Any], say: Say) -> ProblemLine:
    tensor, what = as_text(item.get("tensor")), as_text(item.get("what"))
    since = as_int(item.get("since_step"))
    unit = as_text(item.get("unit")) or {"sqnr_loss_db": "dB", "nonfinite": ""}.get(what, "%")
    value, limit = (as_float(item.get(name)) for name in ("value", "limit"))
    window = item.get("window")
    first, last, rows = (
        as_int(window.get(name)) if isinstance(window, Mapping) else None
        for name in ("first_step", "last_step", "rows")
    )
    return ProblemLine(
        tensor,
        tensor_href(view.run.run_id, tensor, at=since if last is None else last),
        say(WHATS[what]) if what in WHATS else what,
        _number(value, unit, say),
        _window(first, last, rows, say),
        _number(limit, unit, say),
        since,
        tensor_href(view.run.run_id, tensor, at=since),
    )


def _window(first: int | None, last: int | None, rows: int | None, say: Say) -> str:
    if first is None or last is None or rows is None:
        return ""
    return say.plural(
        "{n} row, {first} to {last}",
        "{n} rows, {first} to {last}",
        rows,
        first=say.step(first),
        last=say.step(last),
    )


def _number(value: float | None, unit: str, say: Say) -> str:
    if unit == "steps":
        return NO_VALUE if value is None else say.plural("{n} step", "{n} steps", int(value))
    return NO_VALUE if value is None else with_unit(number_text(value), unit)


def _items(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _between(low: float | None, high: float | None, say: Say) -> str:
    if low is None or high is None:
        return ""
    return say("{low} to {high}", low=f"{low:.0f}", high=_pct(high, 0))


def _pct(value: float, digits: int) -> str:
    return f"{value_words(value, digits) if digits else f'{value:,.0f}'}{NARROW_SPACE}%".replace(
        "-", "\u2212"
    )

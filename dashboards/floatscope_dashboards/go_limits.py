"""The limits of the decision: fields of the form that sets them, and the same in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from floatscope_dashboards.compare_view import CompareView
from floatscope_dashboards.compare_words import part, with_nats
from floatscope_dashboards.say import Say, later
from floatscope_dashboards.tensor_words import value_words
from floatscope_dashboards.wording import as_float, as_int, as_text


@dataclass(frozen=True)
class LimitField:
    """One number of the form. name: in the address.  used: what holds now, shown where nothing is given.
    low, high: what a browser lets a reader type, "" for no end.
    """

    name: str
    label: str
    value: str
    used: str
    low: str
    high: str
    step: str


_FIELDS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("margin", "margin_nats", later("Loss difference, nats"), "0", "100", "any"),
    ("min_speedup", "min_speedup", later("Speed, at least \u00d7"), "0", "100", "any"),
    ("min_saving", "min_saving_pct", later("Saving, at least %"), "-1000", "99.999", "any"),
    ("price_ratio", "price_ratio", later("Price of an hour, run / baseline"), "0", "1000", "any"),
    ("planned_steps", "planned_steps", later("Steps of the real training"), "1", "9007199254740992", "1"),
)
"""Name in the address, in the decision's limits, label, lowest, highest, step."""


def limit_fields(view: CompareView, say: Say) -> tuple[LimitField, ...]:
    """The form's numbers: empty where the address gives none, with what is used instead."""
    used = part(view.document, "go", "limits")
    held: Mapping[str, object] = used if isinstance(used, Mapping) else {}
    return tuple(
        LimitField(name, say(label), view.limits.given.get(name, ""), _number(held.get(key)), low, high, step)
        for name, key, label, low, high, step in _FIELDS
    )


def limit_summary(view: CompareView, say: Say) -> str:
    """What the decision is held against, in a sentence; "" without a decision."""
    held = part(view.document, "go", "limits")
    if not isinstance(held, Mapping):
        return ""
    told = []
    margin = as_float(held.get("margin_nats"))
    if margin is not None and math.isfinite(margin):
        source = say.engine(as_text(held.get("margin_from")))
        text = say("a loss at most {margin} higher", margin=with_nats(f"{margin:.3g}", say))
        told.append(f"{text} ({source})" if source else text)
    for key, words in (
        ("min_speedup", later("at least {n}\u00d7 the throughput")),
        ("min_saving_pct", later("at least {n} % less cost a token")),
        ("min_net_saving_pct", later("at least {n} % less cost at equal loss")),
    ):
        value = as_float(held.get(key))
        if value is not None:
            told.append(say(words, n=value_words(value, 2).rstrip("0").rstrip(".")))
    ratio = as_float(held.get("price_ratio"))
    if ratio is not None and ratio != 1.0:
        told.append(say("an hour of the run costs {n} times that of the baseline", n=f"{ratio:g}"))
    planned = as_int(held.get("planned_steps"))
    if planned:
        told.append(say.plural("{n} planned step", "{n} planned steps", planned))
    if not told:
        return ""
    return say("Held against: {limits}.", limits=say("; ").join(told))


def _number(value: object) -> str:
    number = as_float(value)
    return "" if number is None or not math.isfinite(number) else f"{number:.3g}"

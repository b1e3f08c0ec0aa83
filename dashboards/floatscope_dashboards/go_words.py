"""The go / no-go decision in words: the banner, one line per gate, evaluations side by side, limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.compare_view import CompareView
from floatscope_dashboards.compare_words import nats, part, remarks, with_nats
from floatscope_dashboards.say import ENGLISH, NO_VALUE, Say, later
from floatscope_dashboards.tensor_links import tensor_href
from floatscope_dashboards.tensor_words import value_words
from floatscope_dashboards.wording import as_float, as_int, as_text, number_text, with_unit

LABELS: Mapping[str, str] = {
    "loss": later("Loss difference"),
    "drift": later("Growth of the gap"),
    "held_out": later("Held-out loss"),
    "evals": later("Evaluations"),
    "stability": later("Stability"),
    "fp8_health": later("FP8 health"),
    "speed": later("Speed"),
    "cost": later("Cost"),
}
"""Gates in the order in which they are shown."""
STATES: Mapping[str, tuple[str, str]] = {
    "pass": ("ok", later("Passes")),
    "fail": ("crit", later("Fails")),
    "undecided": ("dots", later("Not decided yet")),
    "not_checked": ("idle", later("Not checked")),
}
"""State -> icon and class, word."""
FAILED: Mapping[str, str] = {
    "fp8_health": later("No go: {run} has critical findings"),
    "loss": later("No go: the loss of {run} is above that of {baseline} by {by}"),
    "drift": later("No go: the gap to {baseline} grows"),
    "held_out": later("No go: the held-out loss of {run} is worse"),
    "evals": later("No go: {run} is worse in an evaluation"),
    "stability": later("No go: {run} trains less stably than {baseline}"),
    "cost": later("No go: {run} does not save what you ask for"),
    "speed": later("No go: {run} is not as fast as you ask for"),
}
"""What a gate that fails says of the pair, gravest first."""
MOST_EVALS = 40
MOST_REASONS = 3
TIMES = "times"
"""Unit of a ratio of throughputs."""


@dataclass(frozen=True)
class Decision:
    """The banner. tone: its class.  icon: shape.  word: status in a word.  big, big_note: at its right."""

    tone: str
    icon: str
    word: str
    glyph: str
    title: str
    why: str
    remarks: tuple[str, ...]
    big: str = ""
    big_note: str = ""


@dataclass(frozen=True)
class GateLine:
    """One gate. kind: icon and class.  value: measured, "" for none.  note: its interval and its limit.
    sentence: the engine's own.
    """

    name: str
    kind: str
    word: str
    label: str
    value: str
    note: str
    sentence: str


@dataclass(frozen=True)
class EvalLine:
    """One evaluation side by side. kind: as of a gate."""

    name: str
    run: str
    base: str
    difference: str
    interval: str
    n: str
    kind: str
    word: str


def decision(view: CompareView, say: Say) -> Decision:
    """What the engine decided, or that there is nothing to compare."""
    go = part(view.document, "go")
    if not isinstance(go, Mapping):
        return Decision(
            "v-idle", "other", say("Nothing to compare"), "\u25cb",
            say("These two runs cannot be compared"), view.why_not, (),
        )  # fmt: skip
    verdict = as_text(go.get("verdict"))
    why = _said((as_text(go.get("sentence")), *_failed(go, verdict)), say)
    further = as_text(go.get("next"))
    said = _remarks(view, go, why, say)
    if further and verdict == "not_yet" and say.engine(further) not in why:
        said = (say("Next: {what}", what=say.engine(further)), *said)
    tone, icon, word, glyph = _look(verdict, say) if _decidable(go) else _refused_look(say)
    big, big_note = _big(go, verdict, say)
    return Decision(tone, icon, word, glyph, _title(view, go, verdict, say), why, said, big, big_note)


def decidable(view: CompareView) -> bool:
    """Whether these two runs are a pair that any decision can be told of."""
    go = part(view.document, "go")
    return not isinstance(go, Mapping) or _decidable(go)


def gate_lines(view: CompareView, say: Say) -> tuple[GateLine, ...]:
    """Every gate, in the order of ``LABELS``; empty without a decision. Of a pair that cannot be decided only
    those that were looked at all the same.
    """
    found = part(view.document, "go", "gates")
    items = [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
    if not decidable(view):
        items = [item for item in items if item.get("state") != "not_checked"]
    order = list(LABELS)
    items.sort(key=lambda item: order.index(item["name"]) if item.get("name") in LABELS else len(order))
    return tuple(_gate(item, say) for item in items)


def eval_lines(view: CompareView, say: Say) -> tuple[EvalLine, ...]:
    """Evaluations side by side."""
    found = part(view.document, "go", "evals")
    items = found[:MOST_EVALS] if isinstance(found, list) else []
    return tuple(_eval(item, say) for item in items if isinstance(item, Mapping))


def quality_words(view: CompareView, say: Say) -> str:
    """What the loss difference costs in tokens and what is left of the speed-up; "" where it is not known."""
    found = part(view.document, "go", "quality")
    if not isinstance(found, Mapping):
        return ""
    extra = as_float(found.get("extra_tokens_pct"))
    net = as_float(found.get("net_speedup"))
    if extra is None or not math.isfinite(extra):
        return ""
    text = say(
        "To make up for its loss difference the run needs {extra}\u202f% more tokens{between}.",
        extra=value_words(extra, 1),
        between=_between(found, "extra_tokens_low_pct", "extra_tokens_high_pct", "%", say),
    )
    if net is None or not math.isfinite(net):
        return text
    return (
        text
        + " "
        + say(
            "At equal loss it is {net} as fast{between}.",
            net=_with_unit(net, TIMES, say),
            between=_between(found, "net_low", "net_high", TIMES, say),
        )
    )


def first_parted(view: CompareView, say: Say) -> tuple[str, str, str] | None:
    """The tensor in which the runs part first: name, address, words; None where none does."""
    found = part(view.document, "tensors", "first")
    item = found[0] if isinstance(found, list) and found and isinstance(found[0], Mapping) else None
    if item is None:
        return None
    tensor, step = as_text(item.get("tensor")), as_int(item.get("step"))
    href = tensor_href(view.run.run_id, tensor, at=step)
    return tensor, href, say("at step {step}", step=say.step(step))


def _remarks(view: CompareView, go: Mapping[str, Any], why: str, say: Say) -> tuple[str, ...]:
    """What keeps the pair from being decided, gravest first, then what else a reader must know. why: what has
    been told already. What the engine says stands in for the page's own words only in English.
    """
    found = go.get("refused")
    items = [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
    items.sort(key=lambda item: item.get("blocks") is False)
    known = {as_text(item.get("code")): say.engine(as_text(item.get("sentence"))) for item in items}
    own = dict(remarks(view, say))
    if say.language == ENGLISH:
        own = {code: text for code, text in own.items() if code not in known}
    told = [text for code, text in known.items() if text and text not in why and code not in own]
    unwell = view.run.open_findings or 0
    if unwell and go.get("verdict") == "go":
        text = say.plural(
            "The loss does not show it, but {run} has {n} finding that has not recovered.",
            "The loss does not show it, but {run} has {n} findings that have not recovered.",
            unwell,
            run=view.run.name,
        )
        told.insert(0, text)
    return (*told, *own.values())


def _said(sentences: Iterable[str], say: Say) -> str:
    """Sentences of the engine, one after the other."""
    return say.sentences(say.engine(text) for text in sentences)


def _look(verdict: str, say: Say) -> tuple[str, str, str, str]:
    if verdict == "go":
        return "v-ok", "ok", say("Go"), "\u2713"
    if verdict == "no_go":
        return "v-crit", "crit", say("No go"), "\u25b2"
    return "v-warn", "dots", say("Not yet"), "\u25cf"


def _refused_look(say: Say) -> tuple[str, str, str, str]:
    return "v-warn", "other", say("Cannot be decided"), "\u25cb"


def _decidable(go: Mapping[str, Any]) -> bool:
    return go.get("decidable") is not False


def _title(view: CompareView, go: Mapping[str, Any], verdict: str, say: Say) -> str:
    names = {"run": view.run.name, "baseline": view.base.name}
    gates = {as_text(gate.get("name")): gate for gate in _gates(go)}
    if verdict == "go":
        speed = as_float(gates.get("speed", {}).get("value"))
        if speed is not None and math.isfinite(speed):
            ratio = _with_unit(speed, TIMES, say)
            return say("Go: {run} keeps to your limits against {baseline} and is {ratio} as fast",
                       ratio=ratio, **names)  # fmt: skip
        return say("Go: {run} keeps to your limits against {baseline}", **names)
    if verdict == "no_go":
        failed = next((name for name in FAILED if gates.get(name, {}).get("state") == "fail"), "")
        by = as_float(gates.get("loss", {}).get("value"))
        if failed == "loss" and (by is None or not math.isfinite(by)):
            return say("No go: the loss of {run} is not finite", **names)
        if failed:
            said = "" if by is None else with_nats(nats(by, signed=False), say)
            return say(FAILED[failed], by=said, **names)
        return say("No go for {run} against {baseline}", **names)
    if not _decidable(go):
        return say("{run} and {baseline} cannot be decided as they are", **names)
    more = as_int(go.get("more_steps"))
    if more:
        return say.plural(
            "Not yet: about {n} more step would decide", "Not yet: about {n} more steps would decide", more
        )
    if gates.get("fp8_health", {}).get("state") == "undecided":
        return say("Not yet: {run} still has a fault of its number formats", run=view.run.name)
    open_ones = [
        name
        for name in LABELS
        if gates.get(name, {}).get("state") == "undecided" and gates[name].get("blocks") is not False
    ]
    if open_ones:
        return say("Not yet: {gate} is not decided", gate=say(LABELS[open_ones[0]]))
    return say("Not yet: what the decision needs was not measured")


def _failed(go: Mapping[str, Any], verdict: str) -> list[str]:
    """What the gates say that a no-go rests on."""
    if verdict != "no_go":
        return []
    said = [as_text(gate.get("sentence")) for gate in _gates(go) if gate.get("state") == "fail"]
    return [text for text in said if text][:MOST_REASONS]


def _big(go: Mapping[str, Any], verdict: str, say: Say) -> tuple[str, str]:
    more = as_int(go.get("more_steps"))
    if verdict == "not_yet" and more:
        return f"\u2248\u202f{more:,}", say("more steps")
    states = [gate.get("state") for gate in _gates(go)]
    asked = [state for state in states if state != "not_checked"]
    if not asked or not _decidable(go):
        return "", ""
    return say("{n} of {all}", n=states.count("pass"), all=len(states)), say("gates pass")


def _gates(go: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = go.get("gates")
    return [gate for gate in found if isinstance(gate, Mapping)] if isinstance(found, list) else []


def _gate(item: Mapping[str, Any], say: Say) -> GateLine:
    name = as_text(item.get("name"))
    kind, word = STATES.get(as_text(item.get("state")), STATES["not_checked"])
    unit = as_text(item.get("unit"))
    value, low, high, limit = (as_float(item.get(key)) for key in ("value", "low", "high", "limit"))
    notes = []
    if low is not None and high is not None and math.isfinite(low) and math.isfinite(high):
        ends = (_number(low, unit), _number(high, unit))
        if name == "drift":  # its numbers are those of the line at its end, not of the steps compared
            notes.append(say("carried on: {low} to {high}", low=ends[0], high=ends[1]))
        else:
            notes.append(say("{low} to {high}", low=ends[0], high=ends[1]))
    elif low is not None and math.isfinite(low):
        notes.append(say("at least {low}", low=_with_unit(low, unit, say)))
    elif high is not None and math.isfinite(high):
        notes.append(say("at most {high}", high=_with_unit(high, unit, say)))
    if limit is not None and math.isfinite(limit):
        shown = with_nats(f"{limit:.3g}", say) if unit == "nats" else _with_unit(limit, unit, say)
        notes.append(say("limit {limit}", limit=shown))
    return GateLine(
        name,
        kind,
        say(word),
        say(LABELS[name]) if name in LABELS else name,
        "" if value is None else _with_unit(value, unit, say),
        say(", ").join(notes),
        say.engine(as_text(item.get("sentence"))),
    )


def _eval(item: Mapping[str, Any], say: Say) -> EvalLine:
    kind, word = STATES.get(as_text(item.get("state")), STATES["not_checked"])
    numbers = {key: as_float(item.get(key)) for key in ("run", "baseline", "difference", "low", "high")}
    low, high, n = numbers["low"], numbers["high"], as_int(item.get("n"))
    interval = (
        say("{low} to {high}", low=_signed(low), high=_signed(high))
        if low is not None and high is not None
        else NO_VALUE
    )
    return EvalLine(
        as_text(item.get("name")),
        number_text(numbers["run"]),
        number_text(numbers["baseline"]),
        _signed(numbers["difference"]),
        interval,
        NO_VALUE if n is None else f"{n:,}",
        kind,
        say(word),
    )


def _signed(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return number_text(value)
    return f"{value:+,.2f}".replace("-", "\u2212")


def _number(value: float, unit: str) -> str:
    if unit == "nats":
        return nats(value)
    if unit == TIMES:
        return f"{value:.2f}"
    if unit in ("%", "points"):
        return value_words(value, 1)
    return number_text(value)


def _with_unit(value: float, unit: str, say: Say) -> str:
    text = _number(value, unit)
    if unit == "nats":
        return with_nats(text, say)
    if unit == TIMES:
        return f"{text}\u00d7"
    if unit == "points":
        return say("{n} points", n=text)
    if unit == "spikes/1000":
        return say("{n} spikes in 1,000 steps", n=text)
    return text if " " in unit else with_unit(text, unit)  # words of the engine: the gate's label says it


def _between(found: Mapping[str, Any], low: str, high: str, unit: str, say: Say) -> str:
    ends = as_float(found.get(low)), as_float(found.get(high))
    if ends[0] is None or ends[1] is None or not all(map(math.isfinite, ends)):  # type: ignore[arg-type]
        return ""
    return say(" ({low} to {high})", low=_number(ends[0], unit), high=_number(ends[1], unit))

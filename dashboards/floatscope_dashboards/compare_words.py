"""The comparison in words: differences in nats, the interval, what a reader must know of the pair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from floatscope_dashboards.compare_view import CompareView, PairNote
from floatscope_dashboards.say import NARROW_SPACE, NO_VALUE, Say
from floatscope_dashboards.wording import as_float, as_int, as_text

MOST_DECIMALS = 6


def nats(value: float, *, signed: bool = True, matter: int = 2) -> str:
    """A difference in nats with so many digits that matter."""
    if not math.isfinite(value):
        return NO_VALUE
    size = abs(value) if abs(value) >= 1 else float(f"{abs(value):.{matter}g}")
    if size == 0.0:
        return "0"
    digits = min(max(matter - 1 - math.floor(math.log10(size)), 2), MOST_DECIMALS)
    text = f"{size:.{digits}f}"
    sign = "\u2212" if value < 0 else "+" if signed else ""
    return sign + text


def ends_beside(low: float, high: float, limit: float) -> tuple[str, str]:
    """Both ends of an interval, with as many digits as tell them from a limit that they are not."""
    ends = (low, high)
    texts = [nats(end) for end in ends]
    for matter in range(2, MOST_DECIMALS + 1):
        texts = [nats(end, matter=matter) for end in ends]
        beside = {nats(sign * limit, matter=matter): sign * limit for sign in (1, -1)}
        if all(beside.get(text, end) == end for text, end in zip(texts, ends, strict=True)):
            break
    return texts[0], texts[1]


def with_nats(text: str, say: Say) -> str:
    return say("{number}\u202fnats", number=text)


def part(document: Mapping[str, Any] | None, *path: str) -> Any:
    """A member of the document, None where there is none."""
    found: Any = document
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def confidence_pct(view: CompareView) -> str:
    share = as_float(part(view.document, "settings", "confidence")) or 0.95
    return f"{100 * share:g}{NARROW_SPACE}%"


def interval(view: CompareView, say: Say) -> str:
    """The difference with its interval; "" where there is none."""
    judged = part(view.document, "difference", "judged")
    mean, low, high = (as_float(part(judged, name)) for name in ("mean", "low", "high"))
    if mean is None or low is None or high is None or not math.isfinite(low) or not math.isfinite(high):
        return ""
    ends = ends_beside(low, high, view.margin)
    return say(
        "From step {first} to {last} the loss difference is {mean}, {confidence} interval {low} to {high}.",
        first=say.step(as_int(part(judged, "first_step"))),
        last=say.step(as_int(part(judged, "last_step"))),
        mean=with_nats(nats(mean), say),
        confidence=confidence_pct(view),
        low=ends[0],
        high=ends[1],
    )


def remarks(view: CompareView, say: Say) -> tuple[tuple[str, str], ...]:
    """What a reader must know of the pair: (code, sentence). The codes are those of the decision's refusals
    where these say the same.
    """
    found = view.document
    said = [(note.code, note_text(note, say)) for note in view.notes]
    if part(found, "pairing", "paired") is False:
        text = say(
            "Not paired: {why}. The noise of the data does not cancel, so only large differences show, "
            "and other data look like another run.",
            why=say.engine(as_text(part(found, "pairing", "why"))),
        )
        said.append(("other_data", text))
    lost = part(found, "nonfinite")
    if isinstance(lost, Mapping) and not lost.get("lasting"):
        name = view.run.name if lost.get("side") == "run" else view.base.name
        text = say.plural(
            "The loss of {name} was not finite on {n} step, first at {step}; such steps are left out.",
            "The loss of {name} was not finite on {n} steps, first at {step}; such steps are left out.",
            as_int(lost.get("steps")) or 0,
            name=name,
            step=say.step(as_int(lost.get("step"))),
        )
        said.append(("nonfinite", text))
    both = as_int(part(found, "both_nonfinite_from"))
    if both is not None:
        text = say("Both losses are not finite from step {step} on.", step=say.step(both))
        said.append(("both_nonfinite", text))
    rates = part(found, "learning_rates_differ")
    if isinstance(rates, Mapping):
        text = say(
            "The learning rates differ, first at step {step}: this compares more than the precision.",
            step=say.step(as_int(rates.get("first_step"))),
        )
        said.append(("other_learning_rate", text))
    ends = [side.last_step for side in (view.run, view.base)]
    last = as_int(part(found, "pairing", "last_step"))
    if last is not None and None not in ends and ends[0] != ends[1] and view.last is None:
        shorter = view.base.name if (ends[1] or 0) < (ends[0] or 0) else view.run.name
        text = say(
            "{name} ends at step {step}: what comes later is in one run only and is not compared.",
            name=shorter,
            step=say.step(min(e for e in ends if e is not None)),
        )
        said.append(("other_last_step", text))
    return tuple(said)


def note_text(note: PairNote, say: Say) -> str:
    """Something that speaks against the comparison, as a sentence."""
    values = {"run": note.run, "baseline": note.baseline, "setting": note.setting}
    if note.code == "same_run":
        return say("This is the same run twice: it differs from itself by nothing. Choose another baseline.")
    if note.code == "other_vocabulary":
        return say(
            "The vocabularies differ ({run} and {baseline} tokens): losses a token of different vocabularies "
            "cannot be compared, whatever the numbers below say.",
            **values,
        )
    if note.code == "other_versions":
        return say(
            "Software differs, {setting}: {run} and {baseline}. A difference between the runs may be that of "
            "the versions.",
            **values,
        )
    if note.code == "other_casts":
        return say(
            "Casts to FP8 differ between the machines ({setting}): a value out of range does not become "
            "the same in both runs.",
            **values,
        )
    if note.code == "other_batch":
        return say(
            "{setting} differs ({run} and {baseline}): a step is not the same amount of data in both runs.",
            **values,
        )
    return say(
        "The runs are of different projects, {run} and {baseline}; whether they train the same model is not "
        "known here.",
        **values,
    )

"""Two runs beside each other: go, no-go or not yet first, then the gates and the limits they are held
against, the difference, speed, where the runs part, evaluations, what differs in the configuration. Without
two runs: choosing them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from floatscope_dashboards.chart_parts import CONFIG
from floatscope_dashboards.compare_tables import (
    parted_none,
    parted_note,
    parted_rows,
    setting_rows,
    speed_note,
    speed_rows,
)
from floatscope_dashboards.compare_view import ChooseView, CompareView
from floatscope_dashboards.compare_words import interval, part
from floatscope_dashboards.difference_figure import difference_frame
from floatscope_dashboards.go_limits import limit_fields, limit_summary
from floatscope_dashboards.go_words import (
    decidable,
    decision,
    eval_lines,
    first_parted,
    gate_lines,
    quality_words,
)
from floatscope_dashboards.page import Page
from floatscope_dashboards.say import Say
from floatscope_dashboards.theme import TOKENS
from floatscope_dashboards.wording import as_int, health_sign

MOST_PARTED = 4  # tensors that are shown at once; the others unfold
MAX_TITLE = 40
"""Characters of a run's name in the window title."""


def address(
    run: str,
    baseline: str,
    limits: Mapping[str, str] | None = None,
    first: int | None = None,
    last: int | None = None,
    *,
    path: str = "/compare",
    download: bool = False,
) -> str:
    """Where two runs are compared; what is None or empty is left out. limits: name in the address -> text."""
    given: dict[str, Any] = {"run": run, "baseline": baseline, "from": first, "to": last, **(limits or {})}
    given["download"] = 1 if download else None
    return f"{path}?" + urlencode({name: value for name, value in given.items() if value not in (None, "")})


def compare_page(view: CompareView, say: Say) -> Page:
    """The comparison of two runs."""
    found = decision(view, say)
    own, other = _cut(view.run.name), _cut(view.base.name)
    title = say("{run} against {baseline}", run=own, baseline=other)
    own_id, other_id, asked = view.run.run_id, view.base.run_id, (view.limits.given, view.first, view.last)
    shown = gate_lines(view, say)
    return Page(
        "compare.html",
        f"{found.glyph} {title} \u2013 {found.word} \u2013 floatscope",
        section="compare",
        script="compare.js",
        styles=("compare.css",),
        charts=True,
        data=_data(view, say),
        values={
            "view": view,
            "decision": found,
            "decidable": decidable(view),
            "gates": shown,
            "limits": limit_fields(view, say),
            "limit_words": limit_summary(view, say),
            "facts": _facts(view, say),
            "left_out": [_left_out(text, view, say) for text in view.corrected],
            "interval": interval(view, say),
            "evals": eval_lines(view, say),
            "logged_evals": view.evals,
            "quality": quality_words(view, say),
            "first_parted": first_parted(view, say),
            "speed": speed_rows(view, say),
            "speed_note": speed_note(view, say),
            "parted": parted_rows(view, say),
            "most_parted": MOST_PARTED,
            "parted_note": parted_note(view, say),
            "parted_none": parted_none(view, say),
            "settings": setting_rows(view),
            "swap": address(other_id, own_id, *asked),
            "report": address(own_id, other_id, *asked, path="/compare/report"),
            "is_baseline": view.run.baseline == view.base.run_id,
        },
    )


def choose_page(view: ChooseView, say: Say) -> Page:
    """Choosing two runs."""
    return Page(
        "compare.html",
        say("Compare") + " \u2013 floatscope",
        section="compare",
        script="compare_choose.js",
        styles=("compare.css",),
        values={
            "view": None,
            "choose": view,
            "lines": [(choice, health_sign(choice.health)) for choice in view.choices],
            "told": _told(view, say),
            "pairs": [(pair, address(pair.run.run_id, pair.base.run_id)) for pair in view.suggestions],
            "searching": _search_fields(view),
        },
    )


def _search_fields(view: ChooseView) -> Sequence[tuple[str, str]]:
    """What a search keeps of the choice so far."""
    return [(name, value) for name, value in (("run", view.run_id), ("baseline", view.baseline_id)) if value]


def _told(view: ChooseView, say: Say) -> list[str]:
    told = [say("There is no run {run}; it may have been deleted.", run=run_id) for run_id in view.missing]
    if view.same:
        told.append(say("A run differs from itself by nothing: choose another baseline."))
    return [*told, *(_not_used(text, say) for text in view.corrected)]


def _not_used(text: str, say: Say) -> str:
    return say("{part} in the address cannot be used and is left out.", part=text)


def _left_out(text: str, view: CompareView, say: Say) -> str:
    """What of the address was not used; of an unknown preset, which there are."""
    name, _is, value = text.partition("=")
    known = [item.name for item in view.limits.presets]
    if name == "preset" and not set(value.split(",")) <= set(known):
        return say(
            "{part} in the address is no preset and is left out. There are {names}.",
            part=text,
            names=", ".join(known),
        )
    return _not_used(text, say)


def _facts(view: CompareView, say: Say) -> list[tuple[str, str]]:
    """The line under the heading."""
    pairing = part(view.document, "pairing")
    if pairing is None:
        return []
    paired = say("data and step") if part(pairing, "data_id_in_both") else say("step")
    found = [(say("Paired on"), paired if part(pairing, "paired") else say("nothing: not paired"))]
    first, last = (as_int(part(pairing, name)) for name in ("first_step", "last_step"))
    if first is not None and last is not None:
        found.append((say("Steps"), say("{first} to {last}", first=say.step(first), last=say.step(last))))
    found.append((say("Pairs"), say.step(as_int(part(pairing, "pairs")))))
    left = as_int(part(pairing, "mismatched_data")) or 0
    if left and part(pairing, "paired"):
        found.append((say("Left out, other data"), say.step(left)))
    alone = [as_int(part(pairing, name)) or 0 for name in ("only_in_run", "only_in_baseline")]
    if any(alone):
        found.append((say("In one run only"), say.step(sum(alone))))
    return found


def _data(view: CompareView, say: Say) -> dict[str, Any]:
    """What the page's script gets."""
    return {
        "run": view.run.run_id,
        "baseline": view.base.run_id,
        "name": view.run.name,
        "baseline_name": view.base.name,
        "live": [side.run_id for side in (view.run, view.base) if side.status in ("running", "stalled")],
        "from": view.first,
        "to": view.last,
        "margin": float(f"{view.margin:.3g}"),
        "limits": dict(view.limits.given),
        "comparable": view.document is not None,
        "tensors_wait": view.document is not None and view.rows is None,
        "frame": difference_frame(view.run.name, view.base.name, say),
        "tokens": TOKENS,
        "config": CONFIG,
    }


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TITLE else text[: MAX_TITLE - 1] + "\u2026"

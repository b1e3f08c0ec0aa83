"""Which layers of a run should leave FP8: what to do first, then gain and cost, layers with why, settings to
copy, problems, and what could not be decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from floatscope_dashboards.advice_view import AdviceView
from floatscope_dashboards.advice_words import (
    banner,
    figures,
    layer_lines,
    problem_lines,
)
from floatscope_dashboards.page import Page
from floatscope_dashboards.page_data import plain_json
from floatscope_dashboards.say import Say
from floatscope_dashboards.wording import FRAMEWORKS, as_int, as_text, status_sign
from floatscope_diagnostics.advisor.advice import FRAMEWORKS as ADVISED
from floatscope_diagnostics.advisor.advise import DEFAULT_GPU
from floatscope_diagnostics.advisor.words import is_cause, is_stated

MAX_TITLE = 60
_SETTING_OF = {"te": "transformer_engine", "floatscope": "floatscope_train"}
SHOWN = 12
"""Layers and problems that are shown at once; the others unfold."""


@dataclass(frozen=True)
class Setting:
    """One framework's text to copy."""

    framework: str
    text: str


@dataclass(frozen=True)
class Choice:
    """A framework to choose layers for.  on: the one that is shown."""

    framework: str
    href: str
    on: bool


def advice_page(view: AdviceView, say: Say) -> Page:
    """The page of the advice for one run."""
    run, found = view.run, banner(view, say)
    layers, problems = layer_lines(view, say), problem_lines(view, say)
    return Page(
        "advice.html",
        say("{sign} {run}: precision advice", sign=found.glyph, run=_cut(run.name)) + " \u2013 floatscope",
        section="runs",
        script="advice.js",
        styles=("advice.css",),
        data=plain_json(
            {"run": run.run_id, "status": run.status, "age_s": run.last_seen_s, "last": run.last_step}
        ),
        values={
            "view": view,
            "run_href": "/runs/" + quote(run.run_id, safe=""),
            "base_href": "/runs/" + quote(view.baseline, safe="") if view.baseline else "",
            "status": status_sign(run.status),
            "told": found,
            "figures": figures(view, say),
            "layers": layers,
            "problems": problems,
            "shown": SHOWN,
            "settings": settings_of(view.document),
            "framework": _framework(as_text(view.document.get("framework"))),
            "frameworks": _choices(view),
            "gpus": _gpus(view),
            "stand_in": DEFAULT_GPU,
            "always": say.engine(as_text(view.document.get("always"))),
            "experiment": say.engine(as_text(view.document.get("experiment"))),
            "first": _sentences(view.document, is_cause, say),
            "seen_besides": _sentences(
                view.document, lambda code: is_stated(code) and not is_cause(code), say
            ),
            "undecided": _sentences(view.document, lambda code: not is_stated(code), say),
            "seen": _seen(view, say),
            "span": _span(view.document.get("steps")),
        },
    )


def settings_of(document: Mapping[str, Any]) -> tuple[Setting, ...]:
    """The texts that can be pasted, in the order of the frameworks' table."""
    found = document.get("settings")
    given = found if isinstance(found, Mapping) else {}
    made = ((name, as_text(given.get(name))) for name in FRAMEWORKS)
    return tuple(Setting(FRAMEWORKS[name], text) for name, text in made if text)


def _sentences(document: Mapping[str, Any], wanted: Callable[[str], bool], say: Say) -> tuple[str, ...]:
    """The notes whose code is wanted, without the one that is the advice's own sentence."""
    found = document.get("not_decided")
    items = [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
    texts = (as_text(item.get("sentence")) for item in items if wanted(as_text(item.get("code"))))
    return tuple(say.engine(text) for text in texts if text and text != as_text(document.get("sentence")))


def _framework(code: str) -> str:
    """A framework that layers can be chosen for, as people write it."""
    return FRAMEWORKS.get(_SETTING_OF.get(code, code), code)


def _choices(view: AdviceView) -> tuple[Choice, ...]:
    """The frameworks that the page can be asked about; none where the advice names no layers."""
    if not view.document.get("layers"):
        return ()
    now = as_text(view.document.get("framework"))
    return tuple(Choice(_framework(one), _href(view, one), one == now) for one in ADVISED)


def _href(view: AdviceView, framework: str) -> str:
    """The page for another framework, and the same GPU."""
    asked = {"framework": framework} | ({"gpu": view.gpu} if view.gpu else {})
    return f"/runs/{quote(view.run.run_id, safe='')}/advice?{urlencode(asked)}"


def _gpus(view: AdviceView) -> tuple[str, ...]:
    """Names to choose from; none where there is nothing that a GPU would have to run or pay for, unless the
    address names one.
    """
    if not (view.document.get("layers") or view.document.get("problems") or view.gpu or view.unknown_gpu):
        return ()
    return (*view.gpus, *((view.gpu,) if view.gpu and view.gpu not in view.gpus else ()))


def _span(found: Any) -> tuple[int, int] | None:
    """First and last step, None where the document has none."""
    steps = [as_int(step) for step in found] if isinstance(found, list) else []
    if len(steps) != 2 or steps[0] is None or steps[1] is None:
        return None
    return steps[0], steps[1]


def _seen(view: AdviceView, say: Say) -> str:
    if not view.steps_logged:
        return ""
    if view.steps_read < view.steps_logged:
        return say(
            "Of {logged} steps with statistics {read} were read, spread over the run.",
            logged=say.step(view.steps_logged),
            read=say.step(view.steps_read),
        )
    return say.plural(
        "From the statistics of {n} step.", "From the statistics of {n} steps.", view.steps_read
    )


def _cut(name: str) -> str:
    return name if len(name) <= MAX_TITLE else name[: MAX_TITLE - 3] + "..."

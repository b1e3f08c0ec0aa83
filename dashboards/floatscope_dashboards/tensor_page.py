"""One tensor: what the run's findings say of it, its maximum, scale and losses over time, all its values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from floatscope_dashboards.chart_parts import CONFIG
from floatscope_dashboards.findings import Finding, read_findings
from floatscope_dashboards.histogram_figure import histogram_frame
from floatscope_dashboards.page import Page
from floatscope_dashboards.page_data import plain_json
from floatscope_dashboards.say import NARROW_SPACE, Say
from floatscope_dashboards.tensor_figure import chosen_panels, panels_json, tensor_frame
from floatscope_dashboards.tensor_links import tensor_href, tensors_href
from floatscope_dashboards.tensor_view import NO_STATS, ScaleHistory, TensorLine, TensorView
from floatscope_dashboards.tensor_words import (
    STATE_SIGNS,
    format_words,
    is_bad,
    numbers_sentence,
    sign_of,
    value_words,
)
from floatscope_dashboards.theme import TOKENS
from floatscope_dashboards.what_if_card import what_if_card
from floatscope_dashboards.wording import Sign, as_int, health_sign, number_text

MOST_EVIDENCE = 3
MAX_TITLE = 80
NOT_FINITE = ("nan_count", "inf_count")


@dataclass(frozen=True)
class TensorVerdict:
    """The line above the charts. big: a number beside it, "" for none."""

    kind: str
    title: str
    why: tuple[str, ...]
    big: str
    big_words: str
    href: str
    more: int
    """Further findings that name the tensor."""


def tensor_page(view: TensorView, say: Say) -> Page:
    """The page of one tensor."""
    line, run = view.line, view.run
    findings = [item for item in read_findings(view.verdict, say) if _names(item, line)]
    told = _verdict(findings, view, say)
    sign = _sign(findings, line)
    lead = findings[0] if findings else None
    onset = lead.onset_step if lead is not None else None
    panels = chosen_panels(view.stats)
    frame = tensor_frame(
        panels,
        say,
        onset=onset,
        resolved=lead.resolved_step if lead is not None and lead.recovered else None,
        segments=_segments(view.verdict),
    )
    query = {"at": view.asked_at, "rank": view.rank if len(view.ranks) > 1 else None}
    return Page(
        "tensor.html",
        f"{sign.glyph} {_cut(line.name)} \u2013 {_cut(run.name)} \u2013 floatscope",
        section="runs",
        script="tensor.js",
        follow=("tensor_panels.js", "histogram_view.js"),
        styles=("tensor.css",),
        charts=True,
        data=plain_json(
            {
                "run": run.run_id,
                "name": run.name,
                "tensor": line.name,
                "status": run.status,
                "first": run.first_step,
                "last": run.last_step,
                "age_s": run.last_seen_s,
                "rank": view.rank,
                "format": line.format,
                "limits": view.limits,
                "stats": view.stats,
                "nonfinite": [stat for stat in NOT_FINITE if stat in view.stats],
                "panels": panels_json(panels, say),
                "frames": {"panels": frame, "histogram": histogram_frame(say, onset=onset)},
                "onset": onset,
                "shadow": view.history.kind,
                "window": view.history.length,
                "reduced": view.history.reduced,
                "several": view.history.several,
                "previous": _href(view, view.previous, query),
                "next": _href(view, view.next, query),
                "tokens": TOKENS,
                "config": CONFIG,
            }
        ),
        values={
            "view": view,
            "line": line,
            "sign": sign,
            "told": told,
            "onset": onset,
            "panels": panels,
            "format_name": format_words(line.format),
            "recipe": _recipe(view.history, line, say),
            "history": _history(view.history, say),
            "sampling": _sampling(view, say),
            "previous_href": _href(view, view.previous, query),
            "next_href": _href(view, view.next, query),
            "run_href": f"/runs/{run.run_id}",
            "all_href": tensors_href(run.run_id, **query),
            "layer_href": tensors_href(run.run_id, layer=line.layer, **query),
            "siblings": [_sibling(other, view, query) for other in view.siblings],
            "what_if": what_if_card(view.what_if, _recipe(view.history, line, say), say),
            "spread": _spread(view, say),
            "panel_words": _panel_words(view, onset, say),
            "no_stats": line.state == NO_STATS and not panels,
        },
    )


def _names(finding: Finding, line: TensorLine) -> bool:
    """Whether the finding is about the tensor: by itself, as a number that speaks for it, or as its layer."""
    if line.name == finding.tensor or any(item.tensor == line.name for item in finding.evidence):
        return True
    return finding.tensor == "" and finding.layer != "" and finding.layer == line.layer


def _sign(findings: Sequence[Finding], line: TensorLine) -> Sign:
    """The tensor's own state; red where an open critical finding names it."""
    worst = next((item for item in findings if not item.recovered), None)
    return sign_of(replace(line, named="" if worst is None else worst.severity))


def _verdict(findings: Sequence[Finding], view: TensorView, say: Say) -> TensorVerdict:
    line = view.line
    clipped = line.values.get("overflow_pct")
    big, big_words = "", ""
    if clipped is not None and math.isfinite(clipped) and clipped > 0:
        big = f"{value_words(clipped, 2)}{NARROW_SPACE}%"
        big_words = say("of values clip at step {step}", step=say.step(view.step))
    numbers = numbers_sentence(line, say, view.step)
    if not findings:
        return _quiet(view, numbers, say)
    lead = findings[0]
    why = []
    if lead.onset_step is not None:
        if lead.recovered and lead.resolved_step is not None:
            why.append(
                say(
                    "From step {step} to step {end}; it has recovered.",
                    step=say.step(lead.onset_step),
                    end=say.step(lead.resolved_step),
                )
            )
        else:
            why.append(say("Since step {step}.", step=say.step(lead.onset_step)))
    own = [item for item in lead.evidence if item.tensor in ("", line.name)][:MOST_EVIDENCE]
    for item in own:
        if item.expected:
            why.append(
                say(
                    "{what}: {value}, expected {expected}.",
                    what=item.label,
                    value=item.value,
                    expected=item.expected,
                )
            )
        else:
            why.append(say("{what}: {value}.", what=item.label, value=item.value))
    if numbers:
        why.append(numbers)
    kind = "back" if lead.recovered else health_sign(lead.severity).kind
    at = lead.onset_step
    href = f"/runs/{view.run.run_id}" + (f"?at={at}" if at is not None else "")
    return TensorVerdict(kind, lead.title, tuple(why), big, big_words, href, len(findings) - 1)


def _quiet(view: TensorView, numbers: str, say: Say) -> TensorVerdict:
    """No finding names the tensor: its state by its numbers alone."""
    line = view.line
    titles = {
        "nonfinite": say("This tensor holds values that are not finite; no finding names it"),
        "clips": say("Some values clip; no finding names this tensor"),
        "flushes": say("Many small values become 0; no finding names this tensor"),
        "fits": say("No finding names this tensor"),
        "unscaled": say("No finding names this tensor; it has no scale"),
        "none": say("This tensor has no statistics at this step"),
    }
    why = [numbers] if numbers else []
    nan, inf = (_count(line.values.get(stat, 0.0)) for stat in NOT_FINITE)
    if nan:
        why.append(say.plural("{n} value is NaN.", "{n} values are NaN.", nan))
    if inf:
        why.append(say.plural("{n} value is infinite.", "{n} values are infinite.", inf))
    kind = STATE_SIGNS[line.state].kind
    return TensorVerdict(kind, titles[line.state], tuple(why), "", "", "", 0)


def _count(value: float) -> int:
    return int(value) if math.isfinite(value) else 0


def _recipe(history: ScaleHistory, line: TensorLine, say: Say) -> str:
    kinds = {
        "max": say("delayed scaling"),
        "most_recent": say("delayed scaling"),
        "current": say("current scaling"),
    }
    return kinds.get(history.kind, line.recipe)


def _history(history: ScaleHistory, say: Say) -> str:
    margin = number_text(history.margin)
    if history.kind == "max":
        return say("{passes} passes, max, margin {margin}", passes=f"{history.length:,}", margin=margin)
    if history.kind == "most_recent":
        return say("newest pass, margin {margin}", margin=margin)
    return say("none, from the present values") if history.kind == "current" else ""


def _sampling(view: TensorView, say: Say) -> str:
    """How often amax and whole tensors are looked at."""
    amax, whole = view.every.get("amax"), view.every.get("overflow_pct")
    if amax is None and whole is None:
        return ""
    if amax is None or whole is None or amax == whole:
        every = amax or whole or 1
        return say("every step") if every == 1 else say("every {n} steps", n=f"{every:,}")
    if amax == 1:
        return say("amax every step, the rest every {n} steps", n=f"{whole:,}")
    return say("amax every {amax} steps, the rest every {n} steps", amax=f"{amax:,}", n=f"{whole:,}")


def _href(view: TensorView, name: str | None, query: Mapping[str, object]) -> str:
    return "" if name is None else tensor_href(view.run.run_id, name, **query)


def _sibling(line: TensorLine, view: TensorView, query: Mapping[str, object]) -> Mapping[str, Any]:
    stats = (("headroom_log2", 2), ("overflow_pct", 2), ("underflow_pct", 2))
    return {
        "line": line,
        "sign": STATE_SIGNS[line.state],
        "href": tensor_href(view.run.run_id, line.name, **query),
        "format": format_words(line.format),
        "cells": [(value_words(line.values.get(stat), n), is_bad(line, stat)) for stat, n in stats],
    }


def _spread(view: TensorView, say: Say) -> Mapping[str, str] | None:
    found = view.spread
    if found is None:
        return None
    text = say(
        "{low} on rank {low_rank} to {high} on rank {high_rank}",
        low=number_text(found.low),
        low_rank=found.low_rank,
        high=number_text(found.high),
        high_rank=found.high_rank,
    )
    if found.left_out:
        ranks = say.plural(
            "of {ranks} ranks; {n} rank was not looked at or is at another step",
            "of {ranks} ranks; {n} ranks were not looked at or are at another step",
            found.left_out,
            ranks=f"{found.ranks:,}",
        )
    else:
        ranks = say("all {ranks} ranks", ranks=f"{found.ranks:,}")
    ratio = found.high / found.low if found.low > 0 else math.inf
    return {"text": text, "ranks": ranks, "ratio": number_text(ratio), "step": say.step(found.step)}


def _panel_words(view: TensorView, onset: int | None, say: Say) -> str:
    """The panels in a sentence, for those who do not see them."""
    if view.run.last_step is None:
        return say("No step has arrived yet.")
    text = say(
        "Statistics of the tensor from step {first} to step {last}.",
        first=say.step(view.run.first_step),
        last=say.step(view.run.last_step),
    )
    if onset is None:
        return text
    return say("{text} The finding begins at step {onset}.", text=text, onset=say.step(onset))


def _segments(verdict: Mapping[str, Any]) -> list[int]:
    """First steps of the segments after the first: where the run was resumed."""
    source = verdict.get("source")
    segments = source.get("segments") if isinstance(source, Mapping) else None
    if not isinstance(segments, list):
        return []
    found = [as_int(item.get("first_step")) for item in segments[1:33] if isinstance(item, Mapping)]
    return [step for step in found if step is not None]


def _cut(name: str) -> str:
    return name if len(name) <= MAX_TITLE else name[: MAX_TITLE - 3] + "..."

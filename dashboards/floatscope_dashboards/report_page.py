"""The printable reports: one self-contained HTML file each, one A4 page for a usual incident.

A report has its style in itself, its charts are SVG, it has no script and asks for nothing. Its policy
(`report_policy()`) allows exactly that style and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from markupsafe import Markup

from floatscope_dashboards import assets
from floatscope_dashboards.alert_timeline import event_text
from floatscope_dashboards.compare_page import address
from floatscope_dashboards.compare_tables import (
    parted_none,
    parted_note,
    parted_rows,
    setting_rows,
    speed_note,
    speed_rows,
)
from floatscope_dashboards.compare_view import CompareView
from floatscope_dashboards.compare_words import part
from floatscope_dashboards.evidence import EvidenceCard, evidence_card
from floatscope_dashboards.findings import Finding, open_findings, read_findings
from floatscope_dashboards.go_limits import limit_summary
from floatscope_dashboards.go_words import decidable, decision, eval_lines, gate_lines, quality_words
from floatscope_dashboards.page import Page
from floatscope_dashboards.report_chart import difference_chart, run_chart
from floatscope_dashboards.report_view import AlertLine, ReportView
from floatscope_dashboards.say import NO_VALUE, Say
from floatscope_dashboards.warm_up import health_of
from floatscope_dashboards.wording import as_int, as_text, health_sign, loss_text, status_sign

MAX_EVIDENCE, MAX_ALTERNATIVES, MAX_UNCHECKED, MAX_OTHERS, MAX_ACTIONS = 6, 4, 5, 3, 5
MAX_ALERT_LINES = 4
MAX_PARTED, MAX_SETTINGS = 5, 6


@cache
def _css() -> str:
    return (assets.static_dir() / "report.css").read_text(encoding="utf-8")


def _style() -> Markup:
    return Markup("<style>{}</style>").format(Markup(_css()))  # noqa: S704 - our own file


@cache
def report_policy() -> str:
    """The Content-Security-Policy of a report: nothing may be fetched, run or sent, whatever a name manages
    to say.
    """
    digest = base64.b64encode(hashlib.sha256(_css().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )


@dataclass(frozen=True)
class Fact:
    """One of the four boxes below the verdict."""

    name: str
    value: str
    note: str
    mono: bool = False


def report_page(view: ReportView, say: Say, *, download: bool) -> Page:
    """The report of a run. download: as a file of its own, without links back."""
    findings = read_findings(view.verdict, say)
    current = open_findings(findings)
    lead = next(iter(current), next(iter(findings), None))
    card = evidence_card(view.verdict, say)
    sign = health_sign(health_of(view.row))
    others = [item for item in findings if item is not lead]
    unchecked = not_checked(card, say)
    return Page(
        "report.html",
        say("{sign} Report of {run}", sign=sign.glyph, run=view.row.name) + " \u2013 floatscope",
        values={
            "style": _style(),
            "bar": _bar(f"/runs/{view.row.run_id}", say, back=say("Back to the run")) if not download else (),
            "view": view,
            "sign": sign,
            "status": status_sign(view.row.status),
            "lead": lead,
            "title": _title(view, lead, say),
            "why": _why(view, lead, say),
            "sure": _sure(lead, say),
            "facts": _facts(view, lead, say),
            "chart": _chart(view, lead, say),
            "evidence": card.evidence[:MAX_EVIDENCE],
            "evidence_left": max(len(card.evidence) - MAX_EVIDENCE, 0),
            "alternatives": card.alternatives[:MAX_ALTERNATIVES],
            "actions": () if lead is None or lead.uncertain else lead.remedy[:MAX_ACTIONS],
            "setting": _setting(lead),
            "others": others[:MAX_OTHERS],
            "others_left": max(len(others) - MAX_OTHERS, 0),
            "unchecked": unchecked[:MAX_UNCHECKED],
            "unchecked_left": max(len(unchecked) - MAX_UNCHECKED, 0),
            "alerts": [(line, event_words(line, say)) for line in view.alerts[-MAX_ALERT_LINES:]],
            "alerts_left": view.alerts_left_out + max(len(view.alerts) - MAX_ALERT_LINES, 0),
            "run_facts": _run_facts(view, say),
            "percent": lambda share: f"{min(99, round(100 * share))}\u202f%",
        },
    )


@dataclass(frozen=True)
class NotChecked:
    """Rules that lack the same thing."""

    rules: str
    text: str


def not_checked(card: EvidenceCard, say: Say) -> list[NotChecked]:
    """What no rule, or not every rule, could look at: a line for each thing that is missing, and one for all
    the rules that saw a part of the tensors.
    """
    by_reason: dict[str, list[str]] = {}
    for item in card.unable:
        why = item.why or say("no data")
        text = say("{why}: {needs}", why=why, needs=item.needs) if item.needs else why
        by_reason.setdefault(text, []).append(item.rule)
    partly = [item.rule for item in card.partly]
    if partly:
        by_reason[say("looked at a part of the tensors only")] = partly
    return [NotChecked(", ".join(dict.fromkeys(rules)), text) for text, rules in by_reason.items()]


def _bar(home: str, say: Say, *, back: str, download: str = "?download=1") -> tuple[tuple[str, str], ...]:
    """Links above the paper, which are not printed."""
    return ((home, back), (download, say("Save as one HTML file")))


def _title(view: ReportView, lead: Finding | None, say: Say) -> str:
    if lead is not None:
        return lead.title
    steps = as_int(part(view.verdict, "source", "steps")) or 0
    if not steps:
        return say("Nothing has been judged yet")
    return say.plural("No finding in {n} step", "No finding in {n} steps", steps)


def _why(view: ReportView, lead: Finding | None, say: Say) -> str:
    summary = say.engine(as_text(view.verdict.get("summary")))
    if lead is not None and summary.startswith(lead.title):
        return ""
    return summary


def _sure(lead: Finding | None, say: Say) -> tuple[str, str]:
    """The large number on the right and what it is."""
    if lead is None:
        return "", ""
    if lead.cause == "undetermined":
        return "?", say("cause not determined")
    if lead.confidence is None:
        return "", ""
    return f"{min(99, round(100 * lead.confidence))}\u202f%", say("sure of the cause")


def _facts(view: ReportView, lead: Finding | None, say: Say) -> list[Fact]:
    row = view.row
    clean = as_int(view.verdict.get("last_clean_step"))
    if lead is None or lead.onset_step is None:
        tensors = as_int(part(view.verdict, "source", "tensors")) or 0
        return [
            Fact(
                say("Steps"), say.step(row.last_step), say("last step, from {n}", n=say.step(row.first_step))
            ),
            Fact(say("Last loss"), loss_text(row.last_loss), say("nats")),
            Fact(say("Tensors watched"), say.step(tensors), ""),
            Fact(say("Last clean step"), say.step(clean), ""),
        ]
    since = max((row.last_step or lead.onset_step) - lead.onset_step, 0)
    spread = (
        say.plural("{n} tensor affected", "{n} tensors affected", lead.affected_tensors)
        if lead.affected_tensors
        else ""
    )
    where = lead.tensor or lead.layer
    cost = say.plural("{n} step", "{n} steps", since)
    before = None if clean is None else lead.onset_step - clean
    return [
        Fact(say("Since when"), say("Step {step}", step=say.step(lead.onset_step)), ""),
        Fact(say("Where it began"), where or say("Whole run"), spread, mono=bool(where)),
        Fact(say("Trained since"), cost, say("seen at step {step}", step=say.step(lead.detected_step))),
        Fact(
            say("Last clean step"),
            say.step(clean),
            ""
            if before is None or before < 0
            else say.plural("{n} step before the onset", "{n} steps before the onset", before),
        ),
    ]


def _chart(view: ReportView, lead: Finding | None, say: Say) -> Markup:
    curves = view.curves
    if curves is None:
        return Markup("")
    onset = None if lead is None else lead.onset_step
    title = (
        say("Loss, lowest to highest; {baseline} dashed", baseline=curves.baseline_name)
        if curves.baseline
        else say("Loss, lowest to highest")
    )
    unit = f", {curves.proof_unit}" if curves.proof_unit else ""
    means = [value for value in curves.loss.get("mean", ()) if isinstance(value, (int, float))]
    said = say("No loss was logged.")
    if means:
        said = say(
            "Loss from {first} to {last}.", first=loss_text(float(means[0])), last=loss_text(float(means[-1]))
        )
    if onset is not None:
        said += " " + say("Onset at step {step}.", step=say.step(onset))
    return run_chart(
        curves.loss,
        said=said,
        titles=(title, curves.proof_title + unit),
        onset=onset,
        onset_word="" if onset is None else say("Onset {step}", step=say.step(onset)),
        broken_word=_broken(curves.loss, say),
        baseline=curves.baseline,
        baseline_word=curves.baseline_name[:40],
        proof=curves.proof,
    )


def _broken(loss: Mapping[str, Any], say: Say) -> str:
    """What the stretches without a finite loss hold."""
    nan, inf = (sum(loss.get(name, ())) for name in ("nan", "inf"))
    if nan and inf:
        return say("NaN on {nan} and Inf on {inf} steps", nan=say.step(nan), inf=say.step(inf))
    if nan:
        return say.plural("NaN on {n} step", "NaN on {n} steps", nan)
    return say.plural("Inf on {n} step", "Inf on {n} steps", inf) if inf else ""


def _setting(lead: Finding | None) -> tuple[str, str] | None:
    """Framework and text of the first setting that can be copied."""
    if lead is None or lead.uncertain:
        return None
    found = next((item for item in lead.settings if item.is_code), None)
    return None if found is None else (found.framework, found.text)


def event_words(line: AlertLine, say: Say) -> str:
    """One event of an alert's history, as a sentence."""
    said = event_text(line.event, line.by, line.before, line.after, say)
    note = say.engine(line.note) if line.by == "engine" else line.note
    return f"{said}: {note}" if note else said


def _run_facts(view: ReportView, say: Say) -> list[tuple[str, str]]:
    row = view.row
    status = status_sign(row.status).word
    source = view.verdict.get("source")
    tensors = as_int(part(source, "tensors")) if isinstance(source, Mapping) else None
    found = [
        (say("Status"), say(status)),
        (
            say("Steps"),
            say("{first} to {last}", first=say.step(row.first_step), last=say.step(row.last_step)),
        ),
        (say("Recipe"), row.recipe or NO_VALUE),
        (say("Ranks"), say.step(view.ranks)),
        (say("Tensors"), say.step(tensors)),
        (say("Last loss"), loss_text(row.last_loss)),
    ]
    if row.baseline is not None:
        found.append((say("Baseline"), row.baseline))
    return found


def compare_report_page(
    view: CompareView, series: Mapping[str, Any] | None, say: Say, *, version: str, url: str, download: bool
) -> Page:
    """The report of a comparison. series: as of GET /api/v1/compare, None if there is nothing to compare."""
    found = decision(view, say)
    asked = (view.limits.given, view.first, view.last)
    home = address(view.run.run_id, view.base.run_id, *asked)
    file = address(view.run.run_id, view.base.run_id, *asked, path="/compare/report", download=True)
    settings = setting_rows(view)
    own, other = view.run.name, view.base.name
    chart = Markup("")
    if series is not None:
        titles = (
            say("Loss of {run} minus {baseline}, nats, with its band", run=own[:40], baseline=other[:40]),
            say("Loss of both, nats; {baseline} dashed", baseline=other[:40]),
        )
        chart = difference_chart(series, margin=view.margin, said=found.why, titles=titles)
    return Page(
        "report_compare.html",
        f"{found.glyph} " + say("{run} against {baseline}", run=own, baseline=other) + " \u2013 floatscope",
        values={
            "style": _style(),
            "bar": () if download else _bar(home, say, back=say("Back to the comparison"), download=file),
            "view": view,
            "version": version,
            "url": url,
            "decision": found,
            "gates": gate_lines(view, say),
            "limit_words": limit_summary(view, say) if decidable(view) else "",
            "quality": quality_words(view, say),
            "evals": eval_lines(view, say),
            "logged_evals": view.evals,
            "chart": chart,
            "speed": speed_rows(view, say),
            "speed_note": speed_note(view, say),
            "parted": parted_rows(view, say)[:MAX_PARTED],
            "parted_note": parted_note(view, say),
            "parted_none": parted_none(view, say),
            "settings": settings.differ[:MAX_SETTINGS],
            "settings_left": max(len(settings.differ) - MAX_SETTINGS, 0),
            "pairs": as_int(part(view.document, "pairing", "pairs")),
        },
    )

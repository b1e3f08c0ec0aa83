"""One alert in words: what began where, why, what to do, who has it, and what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from floatscope_dashboards.alert_timeline import TOLD_WHAT, TimelineLine, notes, result, timeline
from floatscope_dashboards.alert_words import (
    StateSign,
    finding_of,
    ids_of,
    run_href,
    severity_sign,
    state_sign,
    title_of,
)
from floatscope_dashboards.alerts_list import UNFOLDED_ALERTS
from floatscope_dashboards.alerts_view import AlertDetail, AlertsView, HistoryLine, RunName, Told
from floatscope_dashboards.family_words import FAMILIES
from floatscope_dashboards.findings import Evidence, Finding, Setting
from floatscope_dashboards.incidents import AlertLine
from floatscope_dashboards.say import Say, later
from floatscope_dashboards.tensor_links import tensor_href
from floatscope_dashboards.wording import cause_label

EVIDENCE = 3


@dataclass(frozen=True)
class AlertWords:
    """One alert of an incident, as the unfolded list and the detail show it."""

    id: str
    href: str
    where: str
    where_is_tensor: bool
    onset: int | None
    value: str
    state: StateSign


@dataclass(frozen=True)
class Delivery:
    """One line of the table of deliveries."""

    time: datetime
    what: str
    where: str
    icon: str
    word: str
    detail: str
    next_try: datetime | None


@dataclass(frozen=True)
class DetailWords:
    """What the detail prints."""

    id: str
    key: str
    ids: str
    severity: tuple[str, str, str]
    state: StateSign
    state_name: str
    title: str
    run: RunName
    run_href: str
    onset: int | None
    age: str
    where: str
    where_href: str
    where_note: str
    cause_key: str
    cause: str
    family: str
    family_word: str
    sure: str
    others: tuple[str, ...]
    rule: str
    rule_title: str
    effect: tuple[str, ...]
    actions: tuple[str, ...]
    settings: tuple[Setting, ...]
    decisive: str
    owner: str
    alerts: tuple[AlertWords, ...]
    more_alerts: int
    total: int
    lines: tuple[TimelineLine, ...]
    one_day: bool
    further: int
    deliveries: tuple[Delivery, ...]
    notes: tuple[HistoryLine, ...]


def detail_words(view: AlertsView, detail: AlertDetail, say: Say) -> DetailWords:
    """The detail of the alert that is open."""
    finding = finding_of(detail.finding, say)
    line, incident = detail.line, detail.incident
    shown = incident.alerts[:UNFOLDED_ALERTS]
    lines = timeline(detail, say)
    where = finding.tensor or finding.layer
    return DetailWords(
        id=line.id,
        key=incident.key,
        ids=ids_of(incident, every=incident.key in view.asked.unfolded),
        severity=severity_sign(line.severity),
        state=state_sign(line.state),
        state_name=line.state,
        title=finding.title,
        run=view.runs[line.run],
        run_href=run_href(line.run, line.onset),
        onset=line.onset,
        age=say.duration((view.now - detail.first_seen).total_seconds()),
        where=where or say("The whole run"),
        where_href=tensor_href(line.run, finding.tensor, at=line.onset) if finding.tensor else "",
        where_note=_where_note(finding, say),
        cause=title_of(finding) if finding.cause != "undetermined" else say(cause_label("undetermined")),
        cause_key=finding.cause,
        family=line.family,
        family_word=say(FAMILIES.get(line.family, line.family)),
        sure=_sure(finding, say),
        others=_others(finding, say),
        rule=finding.rule,
        rule_title=say.engine(detail.rule_title[:1].upper() + detail.rule_title[1:]),
        effect=tuple(_measured(one, finding.tensor, say) for one in finding.evidence[:EVIDENCE]),
        actions=() if finding.uncertain else finding.remedy,
        settings=() if finding.uncertain else finding.settings,
        decisive=finding.decisive_test if finding.uncertain else "",
        owner=line.owner if line.state in ("acknowledged", "resolved") else "",
        alerts=tuple(alert_words(view, alert, say) for alert in shown) if len(incident.alerts) > 1 else (),
        more_alerts=len(incident.alerts) - len(shown),
        total=len(incident.alerts),
        lines=lines,
        one_day=len({line.time.date() for line in lines}) == 1,
        further=detail.further,
        deliveries=tuple(_delivery(told, say) for told in detail.told),
        notes=notes(detail),
    )


def alert_words(view: AlertsView, alert: AlertLine, say: Say) -> AlertWords:
    """One alert of an incident."""
    json: Mapping[str, Any] = view.findings.get(alert.id, {})
    finding = finding_of(json, say)
    first = next(iter(finding.evidence), None)
    return AlertWords(
        id=alert.id,
        href=view.asked.href(alert.id),
        where=finding.tensor or finding.layer or title_of(finding),
        where_is_tensor=bool(finding.tensor or finding.layer),
        onset=alert.onset,
        value="" if first is None else first.value,
        state=state_sign(alert.state),
    )


def _where_note(finding: Finding, say: Say) -> str:
    n = finding.affected_tensors or 0
    if n > 1:
        return say.plural("{n} tensor affected", "{n} tensors affected", n)
    return say("rank {rank}", rank=finding.rank) if finding.rank else ""


def _sure(finding: Finding, say: Say) -> str:
    if finding.confidence is None:
        return ""
    pct = min(99, round(100 * finding.confidence))
    if finding.confidence_basis:
        return say("{pct} % sure, {basis}", pct=pct, basis=finding.confidence_basis)
    return say("{pct} % sure", pct=pct)


def _others(finding: Finding, say: Say) -> tuple[str, ...]:
    """What else fits, where it is not certain."""
    likely: Sequence[Any] = finding.alternatives[:2] if finding.uncertain else ()
    return tuple(
        say("{cause}, {pct} %", cause=say(one.label), pct=min(99, round(100 * one.confidence)))
        for one in likely
    )


def _measured(evidence: Evidence, tensor: str, say: Say) -> str:
    """One number that speaks for it, with what was expected and where if that is not where it began."""
    label, value = say(evidence.label), evidence.value
    elsewhere = evidence.tensor if evidence.tensor != tensor else ""
    if evidence.expected and elsewhere:
        text = later("{signal} {value}, expected {expected}, in {tensor}")
    elif evidence.expected:
        text = later("{signal} {value}, expected {expected}")
    elif elsewhere:
        text = later("{signal} {value}, in {tensor}")
    else:
        text = later("{signal} {value}")
    return say(text, signal=label, value=value, expected=evidence.expected, tensor=elsewhere)


def _delivery(told: Told, say: Say) -> Delivery:
    icon, word, detail = result(told, say)
    return Delivery(
        time=told.created,
        what=say(TOLD_WHAT.get(told.event, told.event)),
        where=told.channel,
        icon=icon,
        word=word,
        detail=detail,
        next_try=told.due if told.attempts else None,
    )

"""Fills the view of the alerts page from the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from floatscope_dashboards.alert_filters import Asked
from floatscope_dashboards.alerts_list import UNFOLDED_ALERTS, listing
from floatscope_dashboards.alerts_view import (
    AlertDetail,
    AlertsView,
    Held,
    HistoryLine,
    RunName,
    Told,
)
from floatscope_dashboards.incidents import AlertLine, Incident, grouped
from floatscope_diagnostics.rule_texts import RuleText
from floatscope_server.errors import AlertNotFound
from floatscope_server.store import alert_lines, alerts, batches, channels, outbox, silences
from floatscope_server.store.alert_lines import LightAlert
from floatscope_server.store.alerts import AlertEvent, AlertRecord
from floatscope_server.store.outbox import Delivery
from floatscope_server.times import moment

DAY_S = 86_400.0
MOST_ALERTS = 20_000
"""Alerts that are grouped, the newest; beyond it the page says that there are more."""
HISTORY_LINES, DELIVERIES = 100, 50


@dataclass(frozen=True)
class _Found:
    """Alerts as the page groups them, and their runs by run_id."""

    lines: tuple[AlertLine, ...]
    runs: Mapping[str, RunName]


def alerts_view(
    c: Connection, asked: Asked, *, rules: Mapping[str, RuleText], now: float, opened: str | None = None
) -> AlertsView:
    """The alerts there are, as incidents. opened: the alert whose detail is shown; raises AlertNotFound."""
    found = _lines(c, now, opened)
    incidents = grouped(found.lines)
    total = len(found.lines)
    cut = total >= MOST_ALERTS
    detail = None if opened is None else _detail(c, opened, incidents, rules, now)
    shown = listing(incidents, asked)
    findings, held = _in_words(c, _ids_in_words(shown.rows(), asked, detail))
    return AlertsView(
        asked=asked,
        incidents=incidents,
        findings=findings,
        silences=held,
        runs=found.runs,
        alerts=alert_lines.count(c, resolved_since=now - DAY_S) if cut else total,
        cut=cut,
        ever=total > 0 or alert_lines.count_all(c) > 0,
        now=moment(now),
        detail=detail,
        channels=sum(channel.enabled for channel in channels.listed(c)),
    )


def _lines(c: Connection, now: float, opened: str | None) -> _Found:
    since = now - DAY_S
    light = alert_lines.recent(c, resolved_since=since, limit=MOST_ALERTS, also=opened)
    names = alert_lines.run_names(c, {alert.run for alert in light})
    owner_of = alert_lines.owners(c, resolved_since=since)
    lines = tuple(
        _line(alert, names[alert.run][0], owner_of.get(alert.id, "")) for alert in light if alert.run in names
    )
    return _Found(lines, {run_id: RunName(run_id, name, project) for run_id, name, project in names.values()})


def _line(alert: LightAlert, run_id: str, owner: str) -> AlertLine:
    return AlertLine(
        number=alert.number,
        id=alert.id,
        run=run_id,
        segment=alert.segment or 0,
        onset=alert.onset,
        severity=alert.severity,
        state=alert.state,
        family=alert.family,
        rule=alert.rule or "",
        began=moment(alert.began),
        owner=owner,
    )


def _ids_in_words(rows: Iterable[Incident], asked: Asked, detail: AlertDetail | None) -> set[str]:
    """Alerts whose finding is shown: the leads, and those of incidents that are unfolded or open."""
    wanted: set[str] = set()
    for incident in rows:
        wanted.add(incident.lead.id)
        if incident.key in asked.unfolded:
            wanted.update(alert.id for alert in incident.alerts[:UNFOLDED_ALERTS])
    if detail is not None:
        wanted.update(alert.id for alert in detail.incident.alerts[:UNFOLDED_ALERTS])
    return wanted


def _in_words(c: Connection, ids: Collection[str]) -> tuple[dict[str, Mapping[str, Any]], dict[str, Held]]:
    found = alerts.of_ids(c, ids) if ids else {}
    held = silences.of_ids(c, {alert.silence for alert in found.values() if alert.silence is not None})
    by_alert = {
        alert.id: Held(
            id=silence.id,
            ends=None if silence.ends is None else moment(silence.ends),
            note=silence.note,
            by=silence.created_by,
        )
        for alert in found.values()
        if (silence := held.get(alert.silence or "")) is not None
    }
    return {alert.id: alert.finding for alert in found.values()}, by_alert


def _detail(
    c: Connection,
    alert_id: str,
    incidents: tuple[Incident, ...],
    rules: Mapping[str, RuleText],
    now: float,
) -> AlertDetail:
    alert = alerts.get(c, alert_id)
    incident = next((one for one in incidents if one.has(alert_id)), None)
    if incident is None:  # of a run that is being deleted
        raise AlertNotFound(alert_id)
    history = alerts.history(c, [alert_id], newest=HISTORY_LINES + 1)[alert_id]
    name_of = {channel.id: channel.name for channel in channels.listed(c)}
    told = outbox.deliveries(c, [alert_id], newest=DELIVERIES)[alert_id]
    _findings, held = _in_words(c, [alert_id])
    rule = rules.get(str(alert.finding.get("rule")))
    return AlertDetail(
        line=next(one for one in incident.alerts if one.id == alert_id),
        incident=incident,
        finding=alert.finding,
        finding_state=alert.finding_state,
        first_seen=moment(alert.first_seen),
        last_seen=moment(alert.last_seen),
        muted_until=_later(alert.mute_until, now),
        onset_time=_onset_time(c, alert),
        silence=held.get(alert_id),
        rule_title="" if rule is None else rule.title,
        history=tuple(_history_line(event) for event in history[-HISTORY_LINES:]),
        further=max(len(history) - HISTORY_LINES, 0),
        told=tuple(_told(delivery, name_of) for delivery in told),
        replaced_by=_replaced_by(c, alert),
    )


def _later(unix: float | None, now: float) -> datetime | None:
    return None if unix is None or unix <= now else moment(unix)


def _onset_time(c: Connection, alert: AlertRecord) -> datetime | None:
    onset, rank = alert.finding.get("onset_step"), alert.finding.get("rank")
    if not isinstance(onset, int):
        return None
    found = batches.time_of(c, alert.run, step=onset, rank=rank if isinstance(rank, int) else 0)
    return None if found is None else moment(found)


def _replaced_by(c: Connection, alert: AlertRecord) -> str:
    """The alert of the finding that explains it now, if that is one."""
    by = alert.finding.get("replaced_by")
    if not isinstance(by, str):
        return ""
    return next((one.id for one in alerts.of_run(c, alert.run, findings=[by])), "")


def _history_line(event: AlertEvent) -> HistoryLine:
    return HistoryLine(
        time=moment(event.time),
        event=event.event,
        by=event.by,
        before=event.before or "",
        after=event.after or "",
        note=event.note or "",
    )


def _told(delivery: Delivery, name_of: Mapping[str, str]) -> Told:
    return Told(
        channel=name_of.get(delivery.channel, delivery.channel),
        event=delivery.event,
        state=delivery.state,
        attempts=delivery.attempts,
        created=moment(delivery.created),
        finished=None if delivery.finished is None else moment(delivery.finished),
        due=moment(delivery.due) if delivery.state == "pending" else None,
        error=delivery.error or "",
    )

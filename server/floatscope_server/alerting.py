"""From the findings of a verdict to alerts: which are new, which changed, and which of it people are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from floatscope_server.store import alerts
from floatscope_server.store.alerts import AlertEvent, AlertRecord
from floatscope_server.store.channels import SEVERITIES

ALERTING = ("warning", "critical")
OVER = ("recovered", "replaced")
OPEN = ("firing", "acknowledged")
TOLD = ("raised", "worsened", "recovered")
"""Events of which people are told; all others are only history."""

ENGINE = "engine"


@dataclass(frozen=True)
class Change:
    """Something happened to an alert that people may want to hear: event is one of TOLD."""

    alert_id: str
    event: str
    finding: Mapping[str, Any]
    severity: str
    muted: bool


def apply(
    c: Connection, *, run: int, run_id: str, findings: Sequence[Mapping[str, Any]], now: float
) -> list[Change]:
    """Brings the run's alerts in line with the findings of its latest verdict and says what people should
    be told.
    """
    known = {str(alert.finding["id"]): alert for alert in alerts.of_run(c, run)}
    changes: list[Change] = []
    for finding in findings:
        alert = known.pop(str(finding["id"]), None)
        if alert is None:
            if finding.get("severity") in ALERTING and finding.get("state") != "replaced":
                changes += _raise(c, run, run_id, finding, now)
        elif alert.finding != finding or finding.get("state") not in OVER:
            changes += _update(c, alert, finding, now)
    for alert in known.values():
        if alert.state != "resolved":
            _move(
                c, alert.id, "withdrawn", alert.state, "resolved", now, note="the finding is no longer made"
            )
    return changes


def _raise(c: Connection, run: int, run_id: str, finding: Mapping[str, Any], now: float) -> list[Change]:
    over = finding.get("state") in OVER
    alert_id = alerts.create(c, run, run_id, finding, state="recovered" if over else "firing", now=now)
    severity = str(finding["severity"])
    alerts.add_event(c, alert_id, AlertEvent(now, "raised", ENGINE, None, severity))
    told = [Change(alert_id, "raised", finding, severity, muted=False)]
    if over:
        alerts.add_event(c, alert_id, AlertEvent(now, "recovered", ENGINE, "firing", "recovered"))
        told.append(Change(alert_id, "recovered", finding, severity, muted=False))
    return told


def _update(c: Connection, alert: AlertRecord, finding: Mapping[str, Any], now: float) -> list[Change]:
    was_over, is_over = alert.finding_state in OVER, finding.get("state") in OVER
    severity = str(finding.get("severity"))
    muted = alert.mute_until is not None and now < alert.mute_until
    alerts.set_finding(c, alert.id, finding, seen=None if is_over else now)
    if finding.get("cause") != alert.cause:
        alerts.add_event(
            c, alert.id, AlertEvent(now, "cause_changed", ENGINE, alert.cause, str(finding.get("cause")))
        )
    if severity != alert.severity:
        alerts.add_event(c, alert.id, AlertEvent(now, "severity_changed", ENGINE, alert.severity, severity))
    if was_over and not is_over:
        _move(c, alert.id, "raised", alert.state, "firing", now)
        return [Change(alert.id, "raised", finding, severity, muted)]
    if finding.get("state") == "replaced" and alert.finding_state != "replaced":
        _move(c, alert.id, "replaced", alert.state, "resolved", now, note=_replaced_by(finding))
        return []
    if finding.get("state") == "recovered" and not was_over:
        if alert.state not in OPEN:
            alerts.add_event(c, alert.id, AlertEvent(now, "recovered", ENGINE, alert.state, alert.state))
            return []
        _move(c, alert.id, "recovered", alert.state, "recovered", now)
        return [Change(alert.id, "recovered", finding, alert.severity, muted)]
    escalated = SEVERITIES.index(severity) > SEVERITIES.index(alert.severity)
    worsened = finding.get("state") == "worsened" and alert.finding_state != "worsened"
    if escalated or worsened:
        after = "firing" if escalated and alert.state == "resolved" else alert.state
        _move(c, alert.id, "worsened", alert.state, after, now)
        return [Change(alert.id, "worsened", finding, severity, muted)] if after in OPEN else []
    return []


def _move(
    c: Connection, alert_id: str, event: str, before: str, after: str, now: float, *, note: str | None = None
) -> None:
    if before != after:
        alerts.set_state(c, alert_id, after)
    alerts.add_event(c, alert_id, AlertEvent(now, event, ENGINE, before, after, note))


def _replaced_by(finding: Mapping[str, Any]) -> str | None:
    by = finding.get("replaced_by")
    return None if by is None else f"replaced by {by}"

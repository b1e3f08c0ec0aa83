"""From the findings of a verdict to alerts: which are new, which changed, and of which a channel may have
to hear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from floatscope_server.rule_effects import NO_LONGER
from floatscope_server.store import alerts, silences, telling
from floatscope_server.store.alerts import AlertEvent, AlertRecord
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.silences import Silence
from floatscope_server.telling import states
from floatscope_server.telling.states import ACKNOWLEDGED, FIRING, SILENCED, Standing, rank_of

ALERTING = ("warning", "critical")
OVER = ("recovered", "replaced", "withdrawn")
ENGINE = "engine"
Findings = Mapping[str, Mapping[str, Any]]


@dataclass
class Touched:
    """Alerts of which a channel may have to hear: those that fire anew or worse, and all that changed."""

    begun: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


@dataclass
class _Case:
    """One judgement of one run, with what it has to ask of the database only if something changed."""

    c: Connection
    run: RunRecord
    now: float
    gone_because: str
    touched: Touched = field(default_factory=Touched)
    active: Sequence[Silence] | None = None

    def cover(self, finding: Mapping[str, Any]) -> str | None:
        """The silence that covers such an alert of the run."""
        if self.active is None:
            self.active = silences.active(self.c, now=self.now)
        return covering(
            self.active,
            run_id=self.run.run_id,
            project=self.run.project,
            family=str(finding.get("family")),
            cause=str(finding.get("cause")),
            severity=str(finding.get("severity")),
        )

    def note(
        self, alert_id: str, event: str, before: str | None, after: str, note: str | None = None
    ) -> None:
        alerts.add_event(self.c, alert_id, AlertEvent(self.now, event, ENGINE, before, after, note))


def covering(
    active: Sequence[Silence], *, run_id: str, project: str, family: str, cause: str, severity: str
) -> str | None:
    """The id of the oldest silence that covers such an alert."""
    for silence in active:
        if silence.covers(run_id=run_id, project=project, family=family, cause=cause, severity=severity):
            return silence.id
    return None


def by_id(findings: Sequence[Mapping[str, Any]]) -> Findings:
    return {str(finding["id"]): finding for finding in findings}


def apply(
    c: Connection,
    *,
    run: RunRecord,
    findings: Findings,
    before: Findings | None,
    now: float,
    gone_because: str = NO_LONGER,
) -> Touched:
    """Brings the run's alerts in line with the findings of its latest verdict.

    gone_because: for the history of alerts whose finding is not among them any more.
    before: the findings that the alerts were last brought in line with, None if that is not known. Where
    nothing changed nothing is read or written; that they were seen again is the caller's to note.
    """
    case = _Case(c, run, now, gone_because)
    if before is None:
        known = _known(c, run.id, None)
        gone = set(known) - set(findings)
    else:
        gone = set(before) - set(findings)
        changed = gone | {key for key, finding in findings.items() if before.get(key) != finding}
        if not changed:
            return case.touched
        known = _known(c, run.id, changed)
    for key, finding in findings.items():
        alert = known.get(key)
        if alert is not None:
            if alert.finding != finding or finding.get("state") not in OVER:
                _update(case, alert, finding)
        elif (before is None or before.get(key) != finding) and _alerts(finding):
            _raise(case, finding)
    for key in gone & set(known):
        _withdraw(case, known[key])
    return case.touched


def _known(c: Connection, run: int, findings: set[str] | None) -> dict[str, AlertRecord]:
    return {str(alert.finding["id"]): alert for alert in alerts.of_run(c, run, findings=findings, lock=True)}


def _alerts(finding: Mapping[str, Any]) -> bool:
    return finding.get("severity") in ALERTING and finding.get("state") != "replaced"


def _raise(case: _Case, finding: Mapping[str, Any]) -> None:
    severity = str(finding["severity"])
    cover = case.cover(finding)
    first = states.began(severity, covered=cover is not None)
    is_over = finding.get("state") in OVER
    last = states.after(first, "recovered") if is_over else first
    alert_id = alerts.create(
        *(case.c, case.run.id, case.run.run_id, finding),
        state=last.state,
        silence=cover if last.state == SILENCED else None,
        now=case.now,
    )
    case.note(alert_id, "raised", None, first.state)
    if is_over:
        case.note(alert_id, "recovered", first.state, last.state)
    if first.state == FIRING:
        case.touched.begun.append(alert_id)
        case.touched.changed.append(alert_id)


def _update(case: _Case, alert: AlertRecord, finding: Mapping[str, Any]) -> None:
    was_over, is_over = alert.finding_state in OVER, finding.get("state") in OVER
    severity = str(finding.get("severity"))
    alerts.set_finding(case.c, alert.id, finding, seen=None if is_over else case.now)
    moved_to_other = finding.get("cause") != alert.cause or finding.get("family") != alert.family
    if finding.get("cause") != alert.cause:
        case.note(alert.id, "cause_changed", alert.cause, str(finding.get("cause")))
    if severity != alert.severity:
        case.note(alert.id, "severity_changed", alert.severity, severity)
    event = _event_of(alert, finding, was_over=was_over, is_over=is_over)
    if event is None and severity == alert.severity and not moved_to_other:
        return
    cover = case.cover(finding)
    covered = cover is not None
    at = replace(alert.standing, severity=severity)
    if not is_over:
        at = states.after(alert.standing, "severity_changed", severity=severity, covered=covered)
    if event == "worsened" or (event is None and not is_over and rank_of(severity) > rank_of(alert.severity)):
        case.note(alert.id, "worsened", alert.state, at.state)
    elif event is not None:
        at = states.after(at, event, covered=covered)
        note = _replaced_by(finding) if event == "replaced" else None
        case.note(alert.id, event, alert.state, at.state, note)
    at = _under(case, alert, at, covered)
    alerts.place(case.c, alert, at, now=case.now, silence=cover)
    _touch(case, alert, at, event)


def _event_of(alert: AlertRecord, finding: Mapping[str, Any], *, was_over: bool, is_over: bool) -> str | None:
    """What happened to the finding since the alert was last brought in line with it."""
    state = finding.get("state")
    if was_over and not is_over:
        return "raised"
    if state == "replaced" and alert.finding_state != "replaced":
        return "replaced"
    if state == "recovered" and not was_over:
        return "recovered"
    return "worsened" if state == "worsened" and alert.finding_state != "worsened" else None


def _under(case: _Case, alert: AlertRecord, at: Standing, covered: bool) -> Standing:
    """A change of cause or severity may bring an alert under a silence, or out of it."""
    if covered == (at.state == SILENCED):
        return at
    event = "silenced" if covered else "silence_ended"
    moved = states.after(at, event)
    if moved.state != at.state:
        case.note(alert.id, event, at.state, moved.state)
        if not covered:
            telling.start_over(case.c, [alert.id], now=case.now)
    return moved


def _touch(case: _Case, alert: AlertRecord, at: Standing, event: str | None) -> None:
    if at.state in (ACKNOWLEDGED, SILENCED, states.RESOLVED):
        telling.hush(case.c, [alert.id])
        return
    case.touched.changed.append(alert.id)
    if at.state != FIRING:
        return
    case.touched.begun.append(alert.id)
    if event == "raised":
        telling.began_again(case.c, [alert.id])
    elif event == "worsened":
        telling.got_worse(case.c, [alert.id])


def _withdraw(case: _Case, alert: AlertRecord) -> None:
    if alert.finding_state == "withdrawn":
        return
    alerts.set_withdrawn(case.c, alert.id)
    at = states.after(alert.standing, "withdrawn")
    if at.state != alert.state:
        case.note(alert.id, "withdrawn", alert.state, at.state, case.gone_because)
        alerts.place(case.c, alert, at, now=case.now)
    telling.hush(case.c, [alert.id])


def _replaced_by(finding: Mapping[str, Any]) -> str | None:
    by = finding.get("replaced_by")
    return None if by is None else f"replaced by {by}"

"""Alerts, one per warning or critical finding, and their history."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, select, update

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.errors import AlertNotFound

_alert = tables.alert
_event = tables.alert_event
STATES = ("firing", "acknowledged", "resolved", "recovered", "silenced")


@dataclass(frozen=True)
class AlertEvent:
    """One line of an alert's history. ``by``: "engine", or who asked."""

    time: float
    event: str
    by: str
    before: str | None = None
    after: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class AlertRecord:
    """An alert. ``finding`` is the finding's JSON as of the last verdict that had it."""

    number: int
    id: str
    run: int
    run_id: str
    project: str
    family: str
    cause: str
    severity: str
    state: str
    finding_state: str
    first_seen: float
    last_seen: float
    mute_until: float | None
    finding: Mapping[str, Any]


def _query() -> Select[Any]:
    columns = [column for column in _alert.c if column.name not in ("firing_since", "silence")]
    return select(*columns, tables.run.c.run_id, tables.run.c.project).join(
        tables.run, tables.run.c.id == _alert.c.run
    )


def of_run(c: Connection, run: int) -> list[AlertRecord]:
    """All alerts of a run, in the order in which they were made."""
    return [_record(row) for row in c.execute(_query().where(_alert.c.run == run).order_by(_alert.c.number))]


def get(c: Connection, alert_id: str) -> AlertRecord:
    """The alert; raises AlertNotFound."""
    row = c.execute(_query().where(_alert.c.id == alert_id)).first()
    if row is None:
        raise AlertNotFound(alert_id)
    return _record(row)


def listed(
    c: Connection,
    *,
    run_id: str | None = None,
    family: Collection[str] = (),
    cause: Collection[str] = (),
    severity: Collection[str] = (),
    state: Collection[str] = (),
    since: float | None = None,
    before: int | None = None,
    limit: int,
) -> list[AlertRecord]:
    """Alerts, newest first, that match every filter given; ``since``: last seen then or later."""
    query = _query().order_by(_alert.c.number.desc()).limit(limit)
    for column, wanted in ((_alert.c.family, family), (_alert.c.cause, cause)):
        if wanted:
            query = query.where(column.in_(wanted))
    for column, wanted in ((_alert.c.severity, severity), (_alert.c.state, state)):
        if wanted:
            query = query.where(column.in_(wanted))
    if run_id is not None:
        query = query.where(tables.run.c.run_id == run_id)
    if since is not None:
        query = query.where(_alert.c.last_seen >= since)
    if before is not None:
        query = query.where(_alert.c.number < before)
    return [_record(row) for row in c.execute(query)]


def firing(c: Connection, runs: Collection[int]) -> dict[int, int]:
    """Number of firing alerts of each run that has any."""
    query = (
        select(_alert.c.run, func.count())
        .where(_alert.c.run.in_(runs), _alert.c.state == "firing")
        .group_by(_alert.c.run)
    )
    return {run: int(n) for run, n in c.execute(query)}


def create(
    c: Connection, run: int, run_id: str, finding: Mapping[str, Any], *, state: str, now: float
) -> str:
    """Stores a new alert and returns its id: the finding's, unless another run has an alert of that id."""
    alert_id = str(finding["id"])
    if c.execute(select(_alert.c.number).where(_alert.c.id == alert_id)).first() is not None:
        alert_id = f"{alert_id}-{run}"
    c.execute(
        insert(_alert).values(
            id=alert_id, run=run, state=state, first_seen=now, last_seen=now, **_from_finding(finding)
        )
    )
    return alert_id


def set_finding(c: Connection, alert_id: str, finding: Mapping[str, Any], *, seen: float | None) -> None:
    """Stores the finding as it is now; ``seen``: when, if it is not over."""
    values = _from_finding(finding) | ({} if seen is None else {"last_seen": seen})
    c.execute(update(_alert).where(_alert.c.id == alert_id).values(values))


def set_state(c: Connection, alert_id: str, state: str) -> None:
    c.execute(update(_alert).where(_alert.c.id == alert_id).values(state=state))


def mute(c: Connection, alert_id: str, until: float | None) -> None:
    """No messages about this alert before that time; None: messages again."""
    c.execute(update(_alert).where(_alert.c.id == alert_id).values(mute_until=until))


def add_event(c: Connection, alert_id: str, event: AlertEvent) -> None:
    c.execute(
        insert(_event).values(
            alert=alert_id,
            time=event.time,
            event=event.event,
            by=event.by,
            before=event.before,
            after=event.after,
            note=event.note,
        )
    )


def history(c: Connection, alert_ids: Collection[str]) -> dict[str, list[AlertEvent]]:
    """The events of each alert, oldest first."""
    out: dict[str, list[AlertEvent]] = {alert_id: [] for alert_id in alert_ids}
    for row in c.execute(select(_event).where(_event.c.alert.in_(alert_ids)).order_by(_event.c.id)):
        out[row.alert].append(AlertEvent(row.time, row.event, row.by, row.before, row.after, row.note))
    return out


def _from_finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "family": str(finding.get("family")),
        "cause": str(finding.get("cause")),
        "severity": str(finding.get("severity")),
        "finding_state": str(finding.get("state", "raised")),
        "finding_json": strict_json.dumps(finding),
    }


def _record(row: Row[Any]) -> AlertRecord:
    values = dict(row._mapping)
    values["finding"] = json.loads(values.pop("finding_json"))
    return AlertRecord(**values)

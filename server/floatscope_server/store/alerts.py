"""Alerts, one per warning or critical finding, and their history."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, select, update

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.errors import AlertNotFound
from floatscope_server.telling.states import FIRING, SILENCED, STATES, Standing

_alert = tables.alert
_event = tables.alert_event


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
    firing_since: float | None
    silence: str | None
    settled_severity: str | None
    rejected: bool
    finding: Mapping[str, Any]

    @property
    def standing(self) -> Standing:
        return Standing(self.state, self.severity, self.settled_severity, self.rejected)


@dataclass(frozen=True)
class Light:
    """What a silence asks of an alert."""

    id: str
    run_id: str
    project: str
    family: str
    cause: str
    severity: str
    state: str
    silence: str | None


def _query() -> Select[Any]:
    return select(*_alert.c, tables.run.c.run_id, tables.run.c.project).join(
        tables.run, tables.run.c.id == _alert.c.run
    )


def of_run(
    c: Connection,
    run: int,
    *,
    findings: Collection[str] | None = None,
    states: Collection[str] = STATES,
    lock: bool = False,
) -> list[AlertRecord]:
    """Alerts of a run in the order in which they were made: all, or those of these findings.

    lock: other writers of these alerts wait until the transaction ends.
    """
    query = _query().where(_alert.c.run == run).order_by(_alert.c.number)
    if findings is not None:
        query = query.where(_alert.c.id.in_([id_ for f in findings for id_ in (f, _other_id(f, run))]))
    if len(states) < len(STATES):
        query = query.where(_alert.c.state.in_(states))
    if lock:
        query = query.with_for_update(of=_alert)
    return [_record(row) for row in c.execute(query)]


def of_ids(c: Connection, alert_ids: Collection[str], *, lock: bool = False) -> dict[str, AlertRecord]:
    """Alerts by their ids, in the order in which they were made. lock: as `of_run`."""
    query = _query().where(_alert.c.id.in_(alert_ids)).order_by(_alert.c.number)
    found = (_record(row) for row in c.execute(query.with_for_update(of=_alert) if lock else query))
    return {alert.id: alert for alert in found}


def runs_of(c: Connection, alert_ids: Collection[str]) -> list[str]:
    """Ids of the runs of these alerts, in the order in which runs are locked."""
    its = select(_alert.c.run).where(_alert.c.id.in_(alert_ids))
    query = select(tables.run.c.run_id).where(tables.run.c.id.in_(its)).order_by(tables.run.c.id)
    return list(c.execute(query).scalars())


def in_states(c: Connection, states: Collection[str]) -> list[Light]:
    """All alerts in these states, of all runs, without what is long."""
    names = ("id", "family", "cause", "severity", "state", "silence")
    query = (
        select(*(_alert.c[name] for name in names), tables.run.c.run_id, tables.run.c.project)
        .join(tables.run, tables.run.c.id == _alert.c.run)
        .where(_alert.c.state.in_(states))
    )
    return [Light(**row._mapping) for row in c.execute(query)]


def get(c: Connection, alert_id: str, *, lock: bool = False) -> AlertRecord:
    """The alert; raises AlertNotFound."""
    query = _query().where(_alert.c.id == alert_id)
    row = c.execute(query.with_for_update(of=_alert) if lock else query).first()
    if row is None:
        raise AlertNotFound(alert_id)
    return _record(row)


def listed(
    c: Connection,
    *,
    run_id: str | None = None,
    project: str | None = None,
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
    if project is not None:
        query = query.where(tables.run.c.project == project)
    if since is not None:
        query = query.where(_alert.c.last_seen >= since)
    if before is not None:
        query = query.where(_alert.c.number < before)
    return [_record(row) for row in c.execute(query)]


def firing(c: Connection, runs: Collection[int]) -> dict[int, int]:
    """Number of firing alerts of each run that has any."""
    if not runs:
        return {}
    query = (
        select(_alert.c.run, func.count())
        .where(_alert.c.run.between(min(runs), max(runs)), _alert.c.state == "firing")
        .group_by(_alert.c.run)
    )
    wanted = set(runs)
    return {run: int(n) for run, n in c.execute(query) if run in wanted}


def count_firing(c: Connection) -> int:
    """Number of alerts that fire and nobody has."""
    return int(c.execute(select(func.count()).where(_alert.c.state == "firing")).scalar_one())


def create(
    c: Connection,
    run: int,
    run_id: str,
    finding: Mapping[str, Any],
    *,
    state: str,
    now: float,
    silence: str | None = None,
) -> str:
    """Stores a new alert and returns its id: the finding's, unless another run has an alert of that id."""
    alert_id = str(finding["id"])
    if c.execute(select(_alert.c.number).where(_alert.c.id == alert_id)).first() is not None:
        alert_id = _other_id(alert_id, run)
    values = {"id": alert_id, "run": run, "state": state, "first_seen": now, "last_seen": now}
    more = {"firing_since": now, "silence": silence, "rejected": False}
    c.execute(insert(_alert).values(**values, **more, **_from_finding(finding)))
    return alert_id


def set_finding(c: Connection, alert_id: str, finding: Mapping[str, Any], *, seen: float | None) -> None:
    """Stores the finding as it is now; ``seen``: when, if it is not over."""
    values = _from_finding(finding) | ({} if seen is None else {"last_seen": seen})
    c.execute(update(_alert).where(_alert.c.id == alert_id).values(values))


def set_withdrawn(c: Connection, alert_id: str) -> None:
    """The finding is no longer made; what it said last stays on record."""
    c.execute(update(_alert).where(_alert.c.id == alert_id).values(finding_state="withdrawn"))


def seen(c: Connection, run: int, *, now: float, over: Collection[str]) -> None:
    """Findings of the run that are not over were seen again, unchanged."""
    goes_on = _alert.c.finding_state.not_in(over)
    c.execute(update(_alert).where(_alert.c.run == run, goes_on).values(last_seen=now))


@dataclass(frozen=True)
class Move:
    """Where an alert stood and where it stands now. silence: the one that holds it back, if any."""

    before: AlertRecord
    standing: Standing
    silence: str | None = None

    def values(self, now: float) -> dict[str, Any]:
        """Columns that change."""
        before, standing = self.before, self.standing
        values: dict[str, Any] = {
            "state": standing.state,
            "settled_severity": standing.settled,
            "rejected": standing.rejected,
            "silence": self.silence if standing.state == SILENCED else None,
        }
        if standing.state in (FIRING, SILENCED) and before.state not in (FIRING, SILENCED):
            values["firing_since"] = now
        if standing.state == FIRING and before.state == SILENCED:
            values["firing_since"] = now
        return values if any(getattr(before, name) != value for name, value in values.items()) else {}


def place(
    c: Connection, before: AlertRecord, standing: Standing, *, now: float, silence: str | None = None
) -> None:
    """Stores where the alert stands now. silence: the one that holds it back, if it is silenced."""
    place_all(c, [Move(before, standing, silence)], now=now)


def place_all(c: Connection, moves: Iterable[Move], *, now: float) -> None:
    """Stores where alerts stand now: one statement for all that change alike."""
    alike: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for move in moves:
        values = move.values(now)
        if values:
            alike.setdefault(tuple(values.items()), []).append(move.before.id)
    for items, ids in alike.items():
        c.execute(update(_alert).where(_alert.c.id.in_(ids)).values(**dict(items)))


def mute(c: Connection, alert_ids: Collection[str], until: float | None) -> None:
    """No messages about these alerts before that time; None: messages again."""
    c.execute(update(_alert).where(_alert.c.id.in_(alert_ids)).values(mute_until=until))


def add_event(c: Connection, alert_id: str, event: AlertEvent) -> None:
    add_events(c, [(alert_id, event)])


def add_events(c: Connection, lines: Iterable[tuple[str, AlertEvent]]) -> None:
    """Lines of history: alert and what happened to it."""
    rows = [
        {
            "alert": alert_id,
            "time": event.time,
            "event": event.event,
            "by": event.by,
            "before": event.before,
            "after": event.after,
            "note": event.note,
        }
        for alert_id, event in lines
    ]
    c.execute(insert(_event), rows)


def history(
    c: Connection, alert_ids: Collection[str], *, newest: int | None = None
) -> dict[str, list[AlertEvent]]:
    """The events of each alert, oldest first; ``newest``: at most so many of the last ones."""
    query = select(_event).where(_event.c.alert.in_(alert_ids)).order_by(_event.c.id)
    if newest is not None:
        place = func.row_number().over(partition_by=_event.c.alert, order_by=_event.c.id.desc())
        numbered = select(_event.c.id, place.label("place")).where(_event.c.alert.in_(alert_ids)).subquery()
        query = query.join(numbered, numbered.c.id == _event.c.id).where(numbered.c.place <= newest)
    out: dict[str, list[AlertEvent]] = {alert_id: [] for alert_id in alert_ids}
    for row in c.execute(query):
        out[row.alert].append(AlertEvent(row.time, row.event, row.by, row.before, row.after, row.note))
    return out


def _other_id(finding: str, run: int) -> str:
    """The id of an alert whose finding has the id of another run's alert."""
    return f"{finding}-{run}"


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

"""Alerts as the lists of people ask for them: many, light, and who has them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    case,
    cast,
    func,
    or_,
    select,
    type_coerce,
)

from floatscope_server import tables
from floatscope_server.telling.states import ACKNOWLEDGED, RESOLVED

_alert = tables.alert
_event = tables.alert_event
NEWEST_EVENTS = 50_000  # lines of history looked at for what was resolved lately
OWNING = ("acknowledge", "resolve", "not_the_cause")
_HERE = tables.run.c.deleted.is_(None)


@dataclass(frozen=True)
class LightAlert:
    """An alert without what is long. run: key of its run. began: Unix seconds at which it was made. onset,
    segment: of its finding, None where it names none.
    """

    number: int
    id: str
    run: int
    state: str
    severity: str
    family: str
    cause: str
    began: float
    onset: int | None
    segment: int | None
    rule: str | None


def recent(c: Connection, *, resolved_since: float, limit: int, also: str | None = None) -> list[LightAlert]:
    """The newest alerts that are not resolved, or were since then; of runs that are there. also: the id of
    one that is wanted whatever its state.
    """
    finding: ColumnElement[Any] = (
        type_coerce(_alert.c.finding_json, JSON)
        if c.dialect.name == "sqlite"
        else cast(_alert.c.finding_json, JSON)
    )
    closed = _closed(c, since=resolved_since)
    query = (
        select(
            *(_alert.c[name] for name in ("number", "id", "run", "state", "severity", "family", "cause")),
            _alert.c.first_seen.label("began"),
            _whole(finding["onset_step"]).label("onset"),
            _whole(finding["segment"]).label("segment"),
            finding["rule"].as_string().label("rule"),
        )
        .join(tables.run, and_(tables.run.c.id == _alert.c.run, _HERE))
        .where(or_(_alert.c.state != RESOLVED, _alert.c.id.in_(closed), _alert.c.id == also))
        .order_by(case((_alert.c.id == also, 0), else_=1), _alert.c.number.desc())
        .limit(limit)
    )
    return [LightAlert(*row) for row in c.execute(query)]


def count(c: Connection, *, resolved_since: float) -> int:
    """How many alerts `recent` would find without a limit."""
    wanted = or_(_alert.c.state != RESOLVED, _alert.c.id.in_(_closed(c, since=resolved_since)))
    query = select(func.count()).select_from(_alert)
    query = query.join(tables.run, and_(tables.run.c.id == _alert.c.run, _HERE)).where(wanted)
    return int(c.execute(query).scalar_one())


def count_all(c: Connection) -> int:
    """How many alerts there are, of whatever age."""
    return int(c.execute(select(func.count()).select_from(_alert)).scalar_one())


def owners(c: Connection, *, resolved_since: float) -> dict[str, str]:
    """Alert -> who acknowledged or closed it last, of what is acknowledged and what was resolved lately."""
    closed = _closed(c, since=resolved_since)
    in_hand = select(_alert.c.id).where(
        or_(_alert.c.state == ACKNOWLEDGED, and_(_alert.c.state == RESOLVED, _alert.c.id.in_(closed)))
    )
    last = (
        select(func.max(_event.c.id))
        .where(_event.c.event.in_(OWNING), _event.c.alert.in_(in_hand))
        .group_by(_event.c.alert)
    )
    query = select(_event.c.alert, _event.c.by).where(_event.c.id.in_(last))
    return {row.alert: row.by for row in c.execute(query)}


def run_names(c: Connection, keys: Collection[int]) -> dict[int, tuple[str, str, str]]:
    """Key -> run_id, name and project of these runs."""
    run = tables.run
    query = select(run.c.id, run.c.run_id, run.c.name, run.c.project).where(run.c.id.in_(keys))
    return {row.id: (row.run_id, row.name, row.project) for row in c.execute(query)}


def _whole(value: ColumnElement[Any]) -> ColumnElement[int]:
    """A whole number of JSON. Not ``as_integer``: steps go beyond the 32 bits that PostgreSQL reads then."""
    return cast(value.as_string(), BigInteger)


def _closed(c: Connection, *, since: float) -> Any:
    """Ids of alerts that were resolved since then, as far as the newest lines of history tell."""
    newest = c.execute(select(func.max(_event.c.id))).scalar() or 0
    return select(_event.c.alert).where(
        _event.c.id > newest - NEWEST_EVENTS, _event.c.time >= since, _event.c.after == RESOLVED
    )

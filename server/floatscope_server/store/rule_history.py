"""How often rules fired and what people said of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import JSON, ColumnElement, Connection, cast, func, select

from floatscope_server import tables

_alert, _event, _run = tables.alert, tables.alert_event, tables.run
CONFIRMING = ("acknowledge", "resolve")
DENYING = ("not_the_cause",)
WITHDRAWING = ("reopen",)  # takes back what was said before
MOST_ALERTS = 20_000  # the newest; more than that fire in no month that anybody reads
FIRED_DAYS = 30  # that count as how often a rule fires
_AT_ONCE = 500  # ids in one query


@dataclass(frozen=True)
class Fired:
    """Alerts of one rule. confirmed: somebody acknowledged or resolved it and nobody said that it was not
    the cause.  denied: somebody said so.
    """

    count: int = 0
    confirmed: int = 0
    denied: int = 0

    def and_one(self, said: str | None) -> Fired:
        return Fired(
            self.count + 1, self.confirmed + (said == "confirmed"), self.denied + (said == "not_the_cause")
        )


@dataclass(frozen=True)
class Raised:
    """An alert there was. rule: that its finding names now.  said: ``confirmed``, ``not_the_cause`` or None
    for nothing.
    """

    rule: str
    said: str | None


def by_rule(c: Connection, *, since: float, project: str | None = None) -> dict[str, Fired]:
    """Alerts that were raised since then, by the rule that their finding names now."""
    query = (
        select(_alert.c.id, _field(c, "rule"))
        .where(_alert.c.first_seen >= since)
        .order_by(_alert.c.number.desc())
        .limit(MOST_ALERTS)
    )
    if project is not None:
        query = query.join(_run, _run.c.id == _alert.c.run).where(_run.c.project == project)
    rules = {row[0]: str(row[1]) for row in c.execute(query)}
    words = said(c, rules)
    found: dict[str, Fired] = {}
    for alert, rule in rules.items():
        found[rule] = found.get(rule, Fired()).and_one(words.get(alert))
    return found


def firing(c: Connection, *, project: str | None = None) -> dict[str, int]:
    """Number of runs on which each rule fires now."""
    rule = _field(c, "rule").label("rule")
    query = select(rule, func.count(_alert.c.run.distinct())).where(_alert.c.state == "firing")
    if project is not None:
        query = query.join(_run, _run.c.id == _alert.c.run).where(_run.c.project == project)
    return {str(row[0]): int(row[1]) for row in c.execute(query.group_by(rule))}


def recent_runs(c: Connection, *, since: float, project: str | None, limit: int) -> list[str]:
    """Ids of the runs that were heard of since then, those heard of last first."""
    heard = func.coalesce(_run.c.last_seen, _run.c.created)
    query = select(_run.c.run_id).where(heard >= since, _run.c.deleted.is_(None), _run.c.arrivals > 0)
    if project is not None:
        query = query.where(_run.c.project == project)
    return list(c.execute(query.order_by(heard.desc(), _run.c.id.desc()).limit(limit)).scalars())


def of_run(c: Connection, run: int) -> Mapping[str, Raised]:
    """The alerts of a run, by the id of their finding."""
    query = select(_alert.c.id, _field(c, "id"), _field(c, "rule")).where(_alert.c.run == run)
    rows = list(c.execute(query))
    words = said(c, [row[0] for row in rows])
    return {str(row[1]): Raised(str(row[2]), words.get(row[0])) for row in rows}


def said(c: Connection, alerts: Collection[str]) -> dict[str, str]:
    """``confirmed`` or ``not_the_cause`` for each alert of which somebody said one of them; the last word
    counts.
    """
    found: dict[str, str] = {}
    for some in _in_parts(list(alerts)):
        query = (
            select(_event.c.alert, _event.c.event)
            .where(_event.c.alert.in_(some), _event.c.event.in_((*CONFIRMING, *DENYING, *WITHDRAWING)))
            .order_by(_event.c.id)
        )
        for alert, event in c.execute(query):
            if event in DENYING:
                found[alert] = "not_the_cause"
            elif event in WITHDRAWING:
                found.pop(alert, None)
            elif found.get(alert) != "not_the_cause":
                found[alert] = "confirmed"
    return found


def _in_parts(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _AT_ONCE):
        yield ids[start : start + _AT_ONCE]


def _field(c: Connection, name: str) -> ColumnElement[str]:
    """A text inside the stored finding, taken out by the database."""
    if c.dialect.name == "postgresql":
        inside: ColumnElement[str] = cast(_alert.c.finding_json, JSON)[name].as_string()
        return inside
    return func.json_extract(_alert.c.finding_json, f"$.{name}")

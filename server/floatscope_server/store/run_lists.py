"""Runs as the overview lists them: filtered, counted, put in order and cut into pages by the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Double, Select, case, cast, func, null, or_, select

from floatscope_server import tables
from floatscope_server.store.runs import LISTED, LIVE, RunRecord, record
from floatscope_server.store.warm_up import WARMING_UP

_run = tables.run
_HERE = _run.c.deleted.is_(None)
_HEARD = func.coalesce(_run.c.last_seen, _run.c.created)
GROUPS = ("critical", "warning", "ended", "stalled", "watch", "warming_up", "healthy")
_URGENCY: ColumnElement[int] = case(
    (_run.c.health == "critical", 0),
    (_run.c.health == "warning", 1),
    (_run.c.status.in_(("failed", "crashed")), 2),
    (_run.c.status == "stalled", 3),
    (_run.c.health == "watch", 4),
    (WARMING_UP, 5),
    else_=6,
)
"""Index of a run's group in GROUPS."""
_NOT_FINITE = 1e308  # a loss that is NaN or infinite is the highest
_NUMBER = r"^-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)? *$"  # PostgreSQL refuses to read anything else as one
_LOSS = case(
    (_run.c.last_loss_json.like('"%'), _NOT_FINITE),
    (_run.c.last_loss_json.regexp_match(_NUMBER), cast(_run.c.last_loss_json, Double)),
    else_=null(),
)
_ORDERS: Mapping[str, Any] = {
    "name": func.lower(_run.c.name),
    "loss": _LOSS,
    "step": _run.c.last_step,
    "seen": _HEARD,
}


@dataclass(frozen=True)
class Word:
    """A word that is looked for, and the codes of causes and recipes whose names hold it."""

    text: str
    causes: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """Which runs. groups: of GROUPS, none for all.  since: runs that ended are left out, but for those that
    failed or crashed and were heard of since (Unix s); None leaves out none.
    """

    project: str | None = None
    groups: tuple[str, ...] = ()
    since: float | None = None
    words: tuple[Word, ...] = ()


def counts(c: Connection, *, project: str | None, since: float) -> dict[tuple[str, str], int]:
    """(group, place) -> runs. Places: "live"; "lately": failed or crashed since then; "ended": all others."""
    place = case((_run.c.status.in_(LIVE), "live"), (_lately(since), "lately"), else_="ended")
    query = select(_URGENCY, place, func.count()).where(_HERE).group_by(_URGENCY, place)
    if project is not None:
        query = query.where(_run.c.project == project)
    return {(GROUPS[urgency], where): int(count) for urgency, where, count in c.execute(query)}


def matched(c: Connection, wanted: Wanted) -> int:
    """How many runs are wanted."""
    return int(c.execute(_which(select(func.count()).select_from(_run), wanted)).scalar_one())


def page(
    c: Connection, wanted: Wanted, *, sort: str, by_project: bool, limit: int, offset: int
) -> list[RunRecord]:
    """Some of the wanted runs. sort: "severity", "name", "loss", "step" or "seen", with "-" in front for the
    highest first; "-severity" has the worst first. Runs without that number come last.
    """
    query = _which(select(*LISTED), wanted).order_by(*_order(sort, by_project=by_project))
    return [record(row) for row in c.execute(query.limit(limit).offset(offset))]


def ids(c: Connection, wanted: Wanted, *, by_project: bool) -> list[tuple[int, int, str]]:
    """(id, arrivals, project) of all wanted runs, worst first: for orders the database does not know."""
    columns = select(_run.c.id, _run.c.arrivals, _run.c.project)
    query = _which(columns, wanted).order_by(*_order("-severity", by_project=by_project))
    return [(row[0], row[1], row[2]) for row in c.execute(query)]


def records(c: Connection, chosen: Sequence[int]) -> list[RunRecord]:
    """The runs with these ids, in this order."""
    found = {row.id: record(row) for row in c.execute(select(*LISTED).where(_run.c.id.in_(chosen)))}
    return [found[one] for one in chosen if one in found]


def worst(c: Connection, *, project: str | None, since: float, limit: int) -> list[RunRecord]:
    """Runs with an open finding that are live or were heard of since then, worst first."""
    query = select(*LISTED).where(_HERE, _run.c.health.in_(("critical", "warning")))
    query = query.where(or_(_run.c.status.in_(LIVE), since <= _HEARD))
    if project is not None:
        query = query.where(_run.c.project == project)
    return [
        record(row) for row in c.execute(query.order_by(*_order("-severity", by_project=False)).limit(limit))
    ]


def of_projects(c: Connection, wanted: Wanted, projects: Collection[str]) -> dict[str, dict[str, int]]:
    """Project -> group -> how many of its runs are wanted."""
    query = _which(select(_run.c.project, _URGENCY, func.count()), wanted)
    query = query.where(_run.c.project.in_(projects)).group_by(_run.c.project, _URGENCY)
    found: dict[str, dict[str, int]] = {}
    for project, urgency, count in c.execute(query):
        found.setdefault(project, {})[GROUPS[urgency]] = int(count)
    return found


def leads(c: Connection, chosen: Collection[int]) -> dict[int, tuple[int, int]]:
    """Run -> (the lowest rank that sent something, number of such ranks)."""
    rank = tables.rank
    query = select(rank.c.run, func.min(rank.c.rank), func.count()).where(rank.c.run.in_(chosen))
    return {row[0]: (row[1], row[2]) for row in c.execute(query.group_by(rank.c.run))}


def infos(c: Connection, chosen: Collection[int]) -> dict[int, str]:
    """Run -> its description as stored."""
    query = select(_run.c.id, _run.c.info_json).where(_run.c.id.in_(chosen))
    return {row[0]: row[1] for row in c.execute(query)}


def last_glances(c: Connection, chosen: Collection[int], *, batches: int) -> dict[int, list[str]]:
    """Run -> stored glances of the last so many batches of its lowest rank, newest first."""
    rank, batch = tables.rank, tables.batch
    lead = (
        select(rank.c.run, func.min(rank.c.rank).label("rank"))
        .where(rank.c.run.in_(chosen))
        .group_by(rank.c.run)
        .subquery()
    )
    query = (
        select(batch.c.run, batch.c.glance_json)
        .join(lead, (batch.c.run == lead.c.run) & (batch.c.rank == lead.c.rank))
        .join(rank, (rank.c.run == lead.c.run) & (rank.c.rank == lead.c.rank))
        .where(batch.c.seq >= rank.c.next_seq - batches, batch.c.lost.is_(False))
        .order_by(batch.c.run, batch.c.seq.desc())
    )
    found: dict[int, list[str]] = {}
    for run, text in c.execute(query):
        found.setdefault(run, []).append(text)
    return found


def _lately(since: float) -> ColumnElement[bool]:
    return _run.c.status.in_(("failed", "crashed")) & (since <= _HEARD)


def _which(query: Select[Any], wanted: Wanted) -> Select[Any]:
    query = query.where(_HERE)
    if wanted.project is not None:
        query = query.where(_run.c.project == wanted.project)
    if wanted.groups:
        query = query.where(_URGENCY.in_([GROUPS.index(group) for group in wanted.groups]))
    if wanted.since is not None:
        query = query.where(or_(_run.c.status.in_(LIVE), _lately(wanted.since)))
    for word in wanted.words:
        query = query.where(or_(*_holds(word)))
    return query


def _holds(word: Word) -> list[ColumnElement[bool]]:
    columns = (_run.c.name, _run.c.run_id, _run.c.project, _run.c.summary, _run.c.cause, _run.c.recipe_json)
    found: list[ColumnElement[bool]] = [column.icontains(word.text, autoescape=True) for column in columns]
    if word.causes:
        found.append(_run.c.cause.in_(word.causes))
    found.extend(_run.c.recipe_json.contains(f'"{name}"', autoescape=True) for name in word.recipes)
    return found


def _order(sort: str, *, by_project: bool) -> list[Any]:
    worst_first = (_URGENCY, case((_run.c.status.in_(LIVE), 0), else_=1), _HEARD.desc(), _run.c.run_id)
    key, falling = sort.removeprefix("-"), sort.startswith("-")
    if key == "severity":
        order = list(worst_first if falling else (_URGENCY.desc(), *worst_first[1:]))
    else:
        column = _ORDERS[key]
        order = [(column.desc() if falling else column).nulls_last(), *worst_first]
    if not by_project:
        return order
    return [func.min(_URGENCY).over(partition_by=_run.c.project), _run.c.project, *order]

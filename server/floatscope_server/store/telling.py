"""What each channel heard of each alert, and when to look again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, or_, select, update

from floatscope_server import tables
from floatscope_server.database import upsert
from floatscope_server.telling.decide import NEW, QUIET, SILENCE, Heard

_t = tables.telling
_HEARD = [
    *(_t.c.told, _t.c.severity, _t.c.told_at, _t.c.raised_at, _t.c.raises),
    *(_t.c.repeats, _t.c.messages, _t.c.worse, _t.c.waits, _t.c.due),
]


@dataclass(frozen=True)
class Line:
    """What one channel heard of one alert."""

    alert: str
    channel: str
    heard: Heard


def open_lines(c: Connection, run: int, alert_ids: Collection[str], channel_ids: Collection[str]) -> None:
    """From now on these channels hear of these alerts; those that did go on as before."""
    rows = [
        {"alert": alert, "channel": channel, "run": run, **asdict(Heard())}
        for alert in alert_ids
        for channel in channel_ids
    ]
    if rows:
        c.execute(upsert(c, _t).on_conflict_do_nothing(), rows)


def of_run(c: Connection, run: int, alert_ids: Collection[str]) -> list[Line]:
    """Lines of these alerts, and those of the run that wait for something; locked until the transaction
    ends.
    """
    query = (
        select(_t.c.alert, _t.c.channel, *_HEARD)
        .where(_t.c.run == run, or_(_t.c.alert.in_(alert_ids), _t.c.due.is_not(None)))
        .order_by(_t.c.alert, _t.c.channel)
        .with_for_update()
    )
    return [_line(row) for row in c.execute(query)]


def held_runs(c: Connection, channel: str, *, now: float, limit: int) -> list[str]:
    """Ids of the runs of these lines, in the order in which runs are locked."""
    lines = (
        select(_t.c.run)
        .where(_t.c.channel == channel, _t.c.waits == QUIET, _t.c.due <= now)
        .order_by(_t.c.alert)
        .limit(limit)
    )
    query = select(tables.run.c.run_id).where(tables.run.c.id.in_(lines)).order_by(tables.run.c.id)
    return list(c.execute(query).scalars())


def held(c: Connection, channel: str, *, now: float, limit: int) -> list[Line]:
    """Lines of a channel that waited for the end of its quiet hours, which has come; locked."""
    query = (
        select(_t.c.alert, _t.c.channel, *_HEARD)
        .where(_t.c.channel == channel, _t.c.waits == QUIET, _t.c.due <= now)
        .order_by(_t.c.alert)
        .limit(limit)
        .with_for_update()
    )
    return [_line(row) for row in c.execute(query)]


def save(c: Connection, lines: Sequence[Line]) -> None:
    for line in lines:
        where = (_t.c.alert == line.alert, _t.c.channel == line.channel)
        c.execute(update(_t).where(*where).values(**asdict(line.heard)))


def due_runs(c: Connection, *, now: float, limit: int) -> list[str]:
    """Ids of runs of which something may have to be told now: the worst alerts first, then those that fire
    longest.
    """
    worst = func.max(case((tables.alert.c.severity == "critical", 1), else_=0))
    query = (
        _waiting(select(tables.run.c.run_id))
        .join(tables.run, tables.run.c.id == _t.c.run)
        .join(tables.alert, tables.alert.c.id == _t.c.alert)
        .where(_t.c.due <= now, or_(_t.c.waits.is_(None), _t.c.waits != QUIET))
        .group_by(tables.run.c.run_id)
        .order_by(worst.desc(), func.min(tables.alert.c.firing_since), tables.run.c.run_id)
        .limit(limit)
    )
    return list(c.execute(query).scalars())


def due_channels(c: Connection, *, now: float) -> list[str]:
    """Channels whose quiet hours are over and that have something to catch up with."""
    query = _waiting(select(_t.c.channel).distinct()).where(_t.c.due <= now, _t.c.waits == QUIET)
    return list(c.execute(query.order_by(_t.c.channel)).scalars())


def next_due(c: Connection) -> float | None:
    """When to look next, or None if nothing waits."""
    return c.execute(_waiting(select(func.min(_t.c.due)))).scalar()


def began_again(c: Connection, alert_ids: Collection[str]) -> None:
    """The alerts began once more: that they were told before is old."""
    again = case((_t.c.told == "firing", "recovered"), else_=_t.c.told)
    c.execute(
        update(_t).where(_t.c.alert.in_(alert_ids)).values(told=again, raises=_t.c.raises + 1, waits=NEW)
    )


def got_worse(c: Connection, alert_ids: Collection[str]) -> None:
    """The alerts got worse at the same severity, for channels that heard of them."""
    c.execute(update(_t).where(_t.c.alert.in_(alert_ids), _t.c.told == "firing").values(worse=True))


def hush(c: Connection, alert_ids: Collection[str]) -> None:
    """Nothing is to be told of these alerts now: somebody deals with them, or silenced them."""
    c.execute(update(_t).where(_t.c.alert.in_(alert_ids)).values(due=None, waits=None, worse=False))


def start_over(
    c: Connection, alert_ids: Collection[str], *, now: float, waited_for: str | None = SILENCE
) -> None:
    """These alerts are told as if they began now: their silence ended, or what had been closed was opened."""
    values = {"told": None, "raised_at": None, "raises": 1, "repeats": 0, "due": now, "waits": waited_for}
    c.execute(update(_t).where(_t.c.alert.in_(alert_ids)).values(**values))


def reopened(c: Connection, alert_ids: Collection[str], *, now: float) -> None:
    """A person opened these alerts again that were acknowledged, or are over: nothing that channels do not
    know. Repeats count anew, and escalation on channels that had not heard.
    """
    heard = _t.c.told.is_not(None)
    values = {"told": "firing", "told_at": now, "repeats": 0, "raises": 0}
    c.execute(update(_t).where(_t.c.alert.in_(alert_ids), heard).values(**values))
    look_again(c, alert_ids, now=now)


def look_again(c: Connection, alert_ids: Collection[str], *, now: float) -> None:
    c.execute(update(_t).where(_t.c.alert.in_(alert_ids)).values(due=now))


def look_again_at_channel(c: Connection, channel_id: str, *, now: float) -> None:
    """The terms of a channel changed: what it may have to hear is decided anew."""
    firing = select(tables.alert.c.id).where(tables.alert.c.state == "firing")
    lines = (_t.c.channel == channel_id, or_(_t.c.due.is_not(None), _t.c.alert.in_(firing)))
    _lock_runs(c, select(_t.c.run).where(*lines))
    c.execute(update(_t).where(*lines).values(due=now))


def lies_ahead(c: Connection, *, now: float) -> bool:
    """Whether anything was told, or began, at a time that has not come: the clock went back since."""
    told = select(_t.c.alert).where(or_(_t.c.told_at > now, _t.c.raised_at > now)).limit(1)
    began = select(tables.alert.c.id).where(tables.alert.c.firing_since > now).limit(1)
    return any(c.execute(query).first() is not None for query in (told, began))


def clock_went_back(c: Connection, *, now: float) -> None:
    """Brings times that lie ahead back to now, and looks at everything that waits anew."""
    _lock_runs(c, select(_t.c.run))
    firing_since = tables.alert.c.firing_since
    c.execute(update(tables.alert).where(firing_since > now).values(firing_since=now))
    c.execute(update(_t).where(_t.c.told_at > now).values(told_at=now))
    c.execute(update(_t).where(_t.c.raised_at > now).values(raised_at=now))
    c.execute(update(_t).where(_t.c.due > now).values(due=now))


def _lock_runs(c: Connection, keys: Select[Any]) -> None:
    """Whoever changes lines of several runs locks the runs first, ascending; a batch locks its own."""
    query = select(tables.run.c.id).where(tables.run.c.id.in_(keys)).order_by(tables.run.c.id)
    c.execute(query.with_for_update()).all()


def _waiting(query: Select[Any]) -> Select[Any]:
    """Lines of channels that are switched on."""
    on = tables.channel.c.enabled
    return query.join(tables.channel, tables.channel.c.id == _t.c.channel).where(on, _t.c.due.is_not(None))


def _line(row: Row[Any]) -> Line:
    values = dict(row._mapping)
    return Line(values.pop("alert"), values.pop("channel"), Heard(**values))

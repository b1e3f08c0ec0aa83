"""The sending side of the outbox: what waits, what became of it, and what is forgotten after a while."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, case, delete, func, or_, select, update

from floatscope_server import tables
from floatscope_server.errors import DeliveryNotFound

_outbox = tables.outbox
_about = tables.outbox_alert
STATES = ("pending", "sent", "dead")
FINISHED = ("sent", "dead")


@dataclass(frozen=True)
class Waiting:
    """What waits on one channel. ready: id of a message to send now.  due: when the next one is due, if none
    is ready.
    """

    channel: str
    ready: int | None
    due: float


@dataclass(frozen=True)
class Message:
    """A message that waits. ``text``: its body as stored. ``attempts``: how often it was tried in vain."""

    id: int
    channel: str
    text: str
    created: float
    attempts: int

    def body(self) -> dict[str, Any]:
        """The body. Raises ValueError if what is stored is damaged."""
        found: dict[str, Any] = json.loads(self.text)
        return found


@dataclass(frozen=True)
class Sending:
    """A message of a channel as it is shown: state is pending, sent or dead."""

    id: int
    alert: str
    event: str
    state: str
    attempts: int
    created: float
    due: float
    finished: float | None
    error: str | None


def waiting(c: Connection, *, now: float, longest_wait_s: float) -> list[Waiting]:
    """What waits, of every enabled channel that has something: what is due longest comes first.

    Of the messages about one run on one channel only the oldest counts, so order is kept. A message that was
    never tried is ready, and so is one that is due later than any wait is long: then a clock was wrong.
    """
    ready = or_(_outbox.c.attempts == 0, _outbox.c.due <= now, _outbox.c.due > now + longest_wait_s)
    unready = case((ready, 0), else_=1).label("unready")
    place = func.row_number().over(
        partition_by=_outbox.c.channel, order_by=(unready, _outbox.c.due, _outbox.c.id)
    )
    first = (
        select(_outbox.c.channel, _outbox.c.id, _outbox.c.due, unready, place.label("place"))
        .join(tables.channel, tables.channel.c.id == _outbox.c.channel)
        .where(_outbox.c.id.in_(_heads()), tables.channel.c.enabled)
        .subquery()
    )
    return [
        Waiting(row.channel, None if row.unready else row.id, row.due)
        for row in c.execute(select(first).where(first.c.place == 1))
    ]


def message(c: Connection, number: int) -> Message | None:
    """The message, unless it does not wait any more."""
    row = c.execute(select(_outbox).where(_outbox.c.id == number, _waits())).first()
    if row is None:
        return None
    return Message(row.id, row.channel, row.body_json, row.created, row.attempts)


def sent(c: Connection, number: int, *, now: float) -> None:
    _change(c, number, {"state": "sent", "finished": now, "error": None})


def failed(c: Connection, number: int, *, error: str, due: float) -> None:
    """Another attempt was in vain; the message is tried again when it is due."""
    _change(c, number, {"error": error, "due": due})


def given_up(c: Connection, number: int, *, error: str, now: float) -> None:
    _change(c, number, {"state": "dead", "error": error, "finished": now})


def of_channel(
    c: Connection, channel: str, *, states: Collection[str], before: int | None, limit: int
) -> list[Sending]:
    """Messages of a channel, newest first; before: only those with a smaller id."""
    query = select(_outbox).where(_outbox.c.channel == channel).order_by(_outbox.c.id.desc()).limit(limit)
    if states:
        query = query.where(_outbox.c.state.in_(states))
    if before is not None:
        query = query.where(_outbox.c.id < before)
    return [_sending(row) for row in c.execute(query)]


def revive(c: Connection, channel: str, number: int, *, now: float) -> Sending:
    """Sends a dead message again, with all its attempts; one that waits is only made due.

    One that was sent stays as it is. Raises DeliveryNotFound.
    """
    mine = and_(_outbox.c.channel == channel, _outbox.c.id == number)
    values = {"state": "pending", "attempts": 0, "due": now, "finished": None}
    c.execute(update(_outbox).where(mine, _outbox.c.state != "sent").values(**values))
    row = c.execute(select(_outbox).where(mine)).first()
    if row is None:
        raise DeliveryNotFound(channel, number)
    return _sending(row)


def hurry(c: Connection, channel: str, *, now: float) -> None:
    """Makes all that waits on a channel due, since something about it was changed."""
    c.execute(update(_outbox).where(_outbox.c.channel == channel, _waits()).values(due=now))


def give_up_all(c: Connection, channel: str, *, error: str, now: float) -> None:
    """What waits on a channel is dead; it can be sent again one by one."""
    values = {"state": "dead", "error": error, "finished": now}
    c.execute(update(_outbox).where(_outbox.c.channel == channel, _waits()).values(**values))


def counts(c: Connection) -> dict[str, int]:
    """Number of messages in each state."""
    query = select(_outbox.c.state, func.count()).group_by(_outbox.c.state)
    return dict.fromkeys(STATES, 0) | {state: int(n) for state, n in c.execute(query)}


def forget(c: Connection, *, finished_before: float, newest: int, limit: int) -> int:
    """Deletes up to ``limit`` finished messages that are old or not among the ``newest``; says how many."""
    edge = (
        select(_outbox.c.id)
        .where(_outbox.c.state.in_(FINISHED))
        .order_by(_outbox.c.id.desc())
        .offset(newest)
        .limit(1)
    ).scalar_subquery()
    old = or_(_outbox.c.finished < finished_before, _outbox.c.id <= edge)
    query = select(_outbox.c.id).where(_outbox.c.state.in_(FINISHED), old).order_by(_outbox.c.id).limit(limit)
    numbers = list(c.execute(query).scalars())
    if numbers:
        c.execute(delete(_about).where(_about.c.message.in_(numbers)))
        c.execute(delete(_outbox).where(_outbox.c.id.in_(numbers)))
    return len(numbers)


def forget_channel(c: Connection, channel: str) -> None:
    """Deletes all messages of a channel."""
    mine = select(_outbox.c.id).where(_outbox.c.channel == channel)
    c.execute(delete(_about).where(_about.c.message.in_(mine)))
    c.execute(delete(_outbox).where(_outbox.c.channel == channel))


def _change(c: Connection, number: int, values: dict[str, Any]) -> None:
    """Records the end of an attempt, once: a message that does not wait any more is left as it is."""
    counted = {**values, "attempts": _outbox.c.attempts + 1}
    c.execute(update(_outbox).where(_outbox.c.id == number, _waits()).values(**counted))


def _heads() -> Any:
    """The oldest waiting message of every (channel, run)."""
    return (
        select(func.min(_outbox.c.id))
        .join(tables.alert, tables.alert.c.id == _outbox.c.alert)
        .where(_waits())
        .group_by(_outbox.c.channel, tables.alert.c.run)
    )


def _waits() -> ColumnElement[bool]:
    return _outbox.c.state == "pending"


def _sending(row: Row[Any]) -> Sending:
    return Sending(
        id=row.id,
        alert=row.alert,
        event=row.event,
        state=row.state,
        attempts=row.attempts,
        created=row.created,
        due=row.due,
        finished=row.finished,
        error=row.error,
    )

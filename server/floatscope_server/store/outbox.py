"""Messages that wait to be sent.

A message is stored in the transaction of what it tells, so neither exists alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.database import upsert

_outbox = tables.outbox
_about = tables.outbox_alert
SHOWN = 20  # messages of an alert that are shown unless more are asked for


@dataclass(frozen=True)
class Delivery:
    """What became of a message, for the alert's page: state is pending, sent or dead. due: of the next
    try.
    """

    channel: str
    event: str
    state: str
    attempts: int
    created: float
    finished: float | None
    error: str | None
    due: float


def add(
    c: Connection,
    *,
    channel: str,
    alert: str,
    event: str,
    body: Mapping[str, Any],
    now: float,
    once: str | None = None,
    others: Sequence[tuple[str, str]] = (),
) -> int | None:
    """Queues a message about an alert and returns its id; None if the channel has one of this ``once``.

    others: (alert, event) of further alerts that the message tells of.
    """
    statement = upsert(c, _outbox).values(
        channel=channel,
        alert=alert,
        event=event,
        body_json=strict_json.dumps(body),
        state="pending",
        created=now,
        due=now,
        attempts=0,
        once=once,
    )
    row = c.execute(
        statement.on_conflict_do_nothing(index_elements=["channel", "once"]).returning(_outbox.c.id)
    ).first()
    if row is None:
        return None
    about = [{"alert": of, "message": row.id, "event": what} for of, what in ((alert, event), *others)]
    c.execute(insert(_about), about)
    return int(row.id)


def deliveries(
    c: Connection, alert_ids: Collection[str], *, newest: int = SHOWN
) -> dict[str, list[Delivery]]:
    """The newest messages about each alert, sent or waiting, oldest first, also where another alert leads."""
    place = func.row_number().over(partition_by=_about.c.alert, order_by=_about.c.message.desc())
    numbered = (
        select(
            _about.c.alert.label("of"), _about.c.message, _about.c.event.label("what"), place.label("place")
        )
        .where(_about.c.alert.in_(alert_ids))
        .subquery()
    )
    query = (
        select(numbered.c.of, numbered.c.what, _outbox)
        .join(_outbox, _outbox.c.id == numbered.c.message)
        .where(numbered.c.place <= newest)
        .order_by(_outbox.c.id)
    )
    out: dict[str, list[Delivery]] = {alert_id: [] for alert_id in alert_ids}
    for row in c.execute(query):
        out[row.of].append(
            Delivery(
                channel=row.channel,
                event=row.what,
                state=row.state,
                attempts=row.attempts,
                created=row.created,
                finished=row.finished,
                error=row.error,
                due=row.due,
            )
        )
    return out

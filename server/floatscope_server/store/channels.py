"""Channels by which people are told.

A channel's address and its key are secrets: they leave this module only towards the sender.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select
from sqlalchemy.exc import DataError, IntegrityError

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.database import upsert
from floatscope_server.errors import ChannelNotFound
from floatscope_server.store import sending
from floatscope_server.telling.quiet_hours import QuietHours

_channel = tables.channel
SEVERITIES = ("info", "warning", "critical")


@dataclass(frozen=True)
class ChannelRecord:
    """A channel. ``url`` and ``signing_key`` are secret and never show in ``repr``.

    url: None where the address is taken from the settings.  repeat_s: tells again of an alert that nobody
    acknowledged; None: never.  escalate_s: tells only of what nobody acknowledged for so long; None: at once.
    quiet: hours in which only critical alerts are told.  updated, updated_by: when somebody changed it last
    and who; None: nobody that is known.
    """

    id: str
    kind: str
    name: str
    url: str | None
    min_severity: str
    projects: tuple[str, ...]
    enabled: bool
    created: float
    signing_key: bytes | None = None
    repeat_s: float | None = None
    escalate_s: float | None = None
    quiet: QuietHours | None = None
    updated: float | None = None
    updated_by: str | None = None

    def __repr__(self) -> str:
        return f"ChannelRecord(id={self.id!r}, kind={self.kind!r}, name={self.name!r})"

    def wants(self, *, severity: str, project: str) -> bool:
        """Whether an alert of this severity and project is told here."""
        loud = SEVERITIES.index(severity) >= SEVERITIES.index(self.min_severity)
        return self.enabled and loud and (not self.projects or project in self.projects)


def listed(c: Connection, *, lock: bool = False) -> list[ChannelRecord]:
    """All channels. lock: none is removed before the transaction ends, which must be one that writes."""
    query = select(_channel).order_by(_channel.c.created, _channel.c.id)
    if lock:
        query = query.with_for_update(read=True, key_share=True)
    return [_record(row) for row in c.execute(query)]


def count(c: Connection) -> int:
    return int(c.execute(select(func.count()).select_from(_channel)).scalar_one())


def get(c: Connection, channel_id: str, *, lock: bool = False) -> ChannelRecord:
    """The channel; raises ChannelNotFound. lock: who changes or removes it waits until the transaction ends;
    who tells it something does not.
    """
    query = select(_channel).where(_channel.c.id == channel_id)
    row = c.execute(query.with_for_update(key_share=True) if lock else query).first()
    if row is None:
        raise ChannelNotFound(channel_id)
    return _record(row)


def put(c: Connection, record: ChannelRecord) -> None:
    """Stores the channel, in place of one with the same id. Raises ValueError for what no column takes."""
    values = {
        "kind": record.kind,
        "name": record.name,
        "url": record.url,
        "min_severity": record.min_severity,
        "projects_json": strict_json.dumps(record.projects),
        "enabled": record.enabled,
        "created": record.created,
        "signing_key": record.signing_key,
        "repeat_s": record.repeat_s,
        "escalate_s": record.escalate_s,
        "quiet_json": None if record.quiet is None else strict_json.dumps(record.quiet.to_json()),
        "updated": record.updated,
        "updated_by": record.updated_by,
    }
    statement = upsert(c, _channel).values(id=record.id, **values)
    kept = {k: v for k, v in values.items() if k != "created"}
    try:
        c.execute(statement.on_conflict_do_update(index_elements=["id"], set_=kept))
    except (IntegrityError, DataError) as error:  # PostgreSQL quotes the whole row in its message
        raise ValueError(f"channel {record.id} cannot be stored: {type(error).__name__}") from None


def remove(c: Connection, channel_id: str) -> None:
    """Deletes the channel with its secrets, its messages, and what it was told.

    It waits for transactions that are telling this channel something, and is not seen by later ones. Those
    have locked their run before what the channel was told, and the channel last, so here the runs come first.
    """
    channel = select(_channel.c.id).where(_channel.c.id == channel_id)
    c.execute(channel.with_for_update(key_share=True))  # one that is being changed; no teller waits for it
    told_of = select(tables.telling.c.run).where(tables.telling.c.channel == channel_id)
    of_it = select(tables.run.c.id).where(tables.run.c.id.in_(told_of)).order_by(tables.run.c.id)
    c.execute(of_it.with_for_update()).all()
    c.execute(channel.with_for_update())
    sending.forget_channel(c, channel_id)
    c.execute(delete(tables.telling).where(tables.telling.c.channel == channel_id))
    c.execute(delete(_channel).where(_channel.c.id == channel_id))


def _record(row: Row[Any]) -> ChannelRecord:
    values = dict(row._mapping)
    values["projects"] = tuple(json.loads(values.pop("projects_json")))
    quiet = values.pop("quiet_json")
    values["quiet"] = None if quiet is None else QuietHours.of_json(json.loads(quiet))
    return ChannelRecord(**values)

"""Channels by which people are told.

A channel's address is a secret: it leaves this module only towards the sender.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.database import upsert
from floatscope_server.errors import ChannelNotFound

_channel = tables.channel
SEVERITIES = ("info", "warning", "critical")
_NOT_SHOWN = ("signing_key", "quiet_json", "repeat_s", "escalate_s")


@dataclass(frozen=True)
class ChannelRecord:
    """A channel. ``url`` is None where the address is taken from the settings; it never shows in ``repr``."""

    id: str
    kind: str
    name: str
    url: str | None
    min_severity: str
    projects: tuple[str, ...]
    enabled: bool
    created: float

    def __repr__(self) -> str:
        return f"ChannelRecord(id={self.id!r}, kind={self.kind!r}, name={self.name!r})"

    def wants(self, *, severity: str, project: str) -> bool:
        """Whether an alert of this severity and project is told here."""
        loud = SEVERITIES.index(severity) >= SEVERITIES.index(self.min_severity)
        return self.enabled and loud and (not self.projects or project in self.projects)


def listed(c: Connection) -> list[ChannelRecord]:
    return [_record(row) for row in c.execute(select(_channel).order_by(_channel.c.created, _channel.c.id))]


def get(c: Connection, channel_id: str) -> ChannelRecord:
    """The channel; raises ChannelNotFound."""
    row = c.execute(select(_channel).where(_channel.c.id == channel_id)).first()
    if row is None:
        raise ChannelNotFound(channel_id)
    return _record(row)


def put(c: Connection, record: ChannelRecord) -> None:
    """Stores the channel, in place of one with the same id."""
    values = {
        "kind": record.kind,
        "name": record.name,
        "url": record.url,
        "min_severity": record.min_severity,
        "projects_json": strict_json.dumps(record.projects),
        "enabled": record.enabled,
        "created": record.created,
    }
    statement = upsert(c, _channel).values(id=record.id, **values)
    kept = {k: v for k, v in values.items() if k != "created"}
    c.execute(statement.on_conflict_do_update(index_elements=["id"], set_=kept))


def disable(c: Connection, channel_id: str) -> None:
    """Switches a channel off; its deliveries stay on record."""
    c.execute(update(_channel).where(_channel.c.id == channel_id).values(enabled=False))


def _record(row: Row[Any]) -> ChannelRecord:
    values = {key: value for key, value in row._mapping.items() if key not in _NOT_SHOWN}
    values["projects"] = tuple(json.loads(values.pop("projects_json")))
    return ChannelRecord(**values)

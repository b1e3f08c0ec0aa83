"""Browser sessions by the hash of their cookie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from floatscope_server import tables

MOST_PER_TOKEN = 1000
_s = tables.session.c


@dataclass(frozen=True)
class SessionRecord:
    """A session. token: hash of the stored token it was started with; environment: hash of the settings'
    token it was started with. One of them is None. Times are Unix seconds.
    """

    digest: str
    token: str | None
    environment: str | None
    created: float
    expires: float
    seen: float


def add(c: Connection, record: SessionRecord) -> None:
    """Stores a session. Of one token only the newest 1,000 are kept."""
    c.execute(
        insert(tables.session).values(
            hash=record.digest,
            token=record.token,
            environment=record.environment,
            created=record.created,
            expires=record.expires,
            seen=record.seen,
        )
    )
    of_token = _s.environment == record.environment if record.token is None else _s.token == record.token
    older = select(_s.hash).where(of_token).order_by(_s.seen.desc(), _s.hash).offset(MOST_PER_TOKEN)
    surplus = list(c.execute(older.limit(100)).scalars())
    if surplus:
        c.execute(delete(tables.session).where(_s.hash.in_(surplus)))


def find(c: Connection, digest: str) -> SessionRecord | None:
    row = c.execute(select(tables.session).where(_s.hash == digest)).first()
    if row is None:
        return None
    return SessionRecord(row.hash, row.token, row.environment, row.created, row.expires, row.seen)


def seen(c: Connection, when: Mapping[str, float]) -> None:
    """Notes when sessions were last used."""
    for digest, moment in when.items():
        c.execute(update(tables.session).where(_s.hash == digest, _s.seen < moment).values(seen=moment))


def remove(c: Connection, digest: str) -> None:
    c.execute(delete(tables.session).where(_s.hash == digest))


def remove_ended(c: Connection, *, expired_before: float, idle_since: float) -> None:
    """Forgets sessions that ran out or that nobody used since a time."""
    c.execute(delete(tables.session).where((_s.expires <= expired_before) | (_s.seen <= idle_since)))

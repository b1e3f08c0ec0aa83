"""Access tokens by their hash, and the server's own secrets."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, insert, select

from floatscope_server import tables
from floatscope_server.database import upsert

_SECRET_BYTES = 32


def add(c: Connection, digest: str, *, name: str, now: float) -> None:
    c.execute(insert(tables.token).values(hash=digest, id=digest[:12], name=name, created=now))


def digests(c: Connection) -> tuple[str, ...]:
    """SHA-256 (hex) of every token that is valid."""
    return tuple(c.execute(select(tables.token.c.hash).order_by(tables.token.c.created)).scalars())


def secret(c: Connection, name: str) -> bytes:
    """A random secret of the server that is made the first time and stays the same across restarts."""
    statement = upsert(c, tables.secret).values(name=name, value=secrets.token_bytes(_SECRET_BYTES))
    c.execute(statement.on_conflict_do_nothing())
    return bytes(c.execute(select(tables.secret.c.value).where(tables.secret.c.name == name)).scalar_one())

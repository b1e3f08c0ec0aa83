"""Access tokens by their hash, and the server's own secrets."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.callers import ADMIN
from floatscope_server.database import upsert

ID_CHARS = 12
_SECRET_BYTES = 32
_t = tables.token.c


@dataclass(frozen=True)
class TokenRecord:
    """A stored token. The token itself is not known here, only its SHA-256 (``digest``).

    expires, last_used, revoked: Unix seconds, None for never.
    """

    digest: str
    id: str
    name: str
    scopes: tuple[str, ...]
    created: float
    created_by: str
    expires: float | None = None
    last_used: float | None = None
    revoked: float | None = None

    def state(self, now: float) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


def add(
    c: Connection,
    digest: str,
    *,
    name: str,
    now: float,
    scopes: Iterable[str] = (ADMIN,),
    created_by: str = "server",
    expires: float | None = None,
) -> TokenRecord:
    """Stores a token by its hash."""
    record = TokenRecord(digest, digest[:ID_CHARS], name, tuple(scopes), now, created_by, expires)
    c.execute(
        insert(tables.token).values(
            hash=digest,
            id=record.id,
            name=name,
            created=now,
            scopes_json=strict_json.dumps(list(record.scopes)),
            created_by=created_by,
            expires=expires,
        )
    )
    return record


def any_stored(c: Connection) -> bool:
    """Whether there ever was a token that is still on record, valid or not."""
    return c.execute(select(_t.hash).limit(1)).first() is not None


def count(c: Connection) -> int:
    return int(c.execute(select(func.count()).select_from(tables.token)).scalar_one())


def listed(c: Connection) -> list[TokenRecord]:
    """All tokens on record, oldest first, revoked and expired ones too."""
    return [_record(row) for row in c.execute(select(tables.token).order_by(_t.created, _t.hash))]


def not_revoked(c: Connection) -> list[TokenRecord]:
    return [_record(row) for row in c.execute(select(tables.token).where(_t.revoked.is_(None)))]


def find(c: Connection, token_id: str) -> TokenRecord | None:
    row = c.execute(select(tables.token).where(_t.id == token_id)).first()
    return None if row is None else _record(row)


def lasting_admins(c: Connection) -> list[TokenRecord]:
    """Admin tokens that are valid and have no end, locked until the transaction ends, so that of two
    revocations at once the second sees the first.
    """
    query = select(tables.token).where(_t.revoked.is_(None), _t.expires.is_(None))
    rows = c.execute(query.order_by(_t.hash).with_for_update())
    return [record for record in map(_record, rows) if ADMIN in record.scopes]


def revoke(c: Connection, digest: str, *, now: float) -> None:
    """Ends the token and every browser session that was started with it."""
    c.execute(update(tables.token).where(_t.hash == digest).values(revoked=now))
    c.execute(delete(tables.session).where(tables.session.c.token == digest))


def used(c: Connection, when: Mapping[str, float]) -> None:
    """Notes when tokens (by hash) were last used; an older time never replaces a newer one."""
    for digest, moment in when.items():
        newer = _t.last_used.is_(None) | (_t.last_used < moment)
        c.execute(update(tables.token).where(_t.hash == digest, newer).values(last_used=moment))


def remove_ended_before(c: Connection, moment: float) -> None:
    """Forgets tokens that were revoked or ran out before a time, and what is left of their sessions."""
    ended = select(_t.hash).where((_t.revoked < moment) | (_t.expires < moment))
    c.execute(delete(tables.session).where(tables.session.c.token.in_(ended)))
    c.execute(delete(tables.token).where((_t.revoked < moment) | (_t.expires < moment)))


def secret(c: Connection, name: str) -> bytes:
    """A random secret of the server that is made the first time and stays the same across restarts."""
    statement = upsert(c, tables.secret).values(name=name, value=secrets.token_bytes(_SECRET_BYTES))
    c.execute(statement.on_conflict_do_nothing())
    return bytes(c.execute(select(tables.secret.c.value).where(tables.secret.c.name == name)).scalar_one())


def _record(row: Row[tuple[object, ...]]) -> TokenRecord:
    return TokenRecord(
        digest=row.hash,
        id=row.id,
        name=row.name,
        scopes=tuple(strict_json.loads(row.scopes_json)),
        created=row.created,
        created_by=row.created_by,
        expires=row.expires,
        last_used=row.last_used,
        revoked=row.revoked,
    )

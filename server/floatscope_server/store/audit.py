"""The audit log: who did what, when, from where. Written in the transaction of the act, so that there is
never one without the other.

    with database.write() as c:
        silences.add(c, record)
        audit.write(c, by, "silence.add", target=record.id, detail={"run": record.run_id}, now=now)

Nothing secret may be given to it: no token, no address of a webhook.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.callers import Caller

MAX_TEXT = 1024
MAX_DETAIL = 4096
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class AuditRecord:
    """One act. ``who``: the caller's name; ``token``: the id of its token, None for the environment's."""

    id: int
    time: float
    who: str
    token: str | None
    action: str
    target: str | None
    detail: Mapping[str, Any]
    address: str | None


def write(
    c: Connection,
    by: Caller,
    action: str,
    *,
    target: str | None = None,
    detail: Mapping[str, Any] = _NOTHING,
    now: float,
) -> None:
    """Records one act. Texts are cut to what the log keeps; a detail that is too large says only that."""
    text = strict_json.dumps(dict(detail))
    if len(text) > MAX_DETAIL:
        text = strict_json.dumps({"left_out": f"{len(text):,} characters"})
    c.execute(
        insert(tables.audit).values(
            time=now,
            who=_kept(by.name),
            token=by.token,
            action=action,
            target=None if target is None else _kept(target),
            detail_json=_storable(text),
            address=by.address or None,
        )
    )


def listed(
    c: Connection,
    *,
    action: str | None = None,
    who: str | None = None,
    target: str | None = None,
    since: float | None = None,
    before: int | None = None,
    limit: int,
) -> list[AuditRecord]:
    """Acts, newest first. ``action`` also takes a group: ``token`` for ``token.add`` and ``token.revoke``."""
    t = tables.audit.c
    query = select(t.id, t.time, t.who, t.token, t.action, t.target, t.detail_json, t.address)
    if action is not None:
        query = query.where((t.action == action) | t.action.startswith(f"{action}.", autoescape=True))
    if target is not None:
        query = query.where(t.target == target)
    if who is not None:
        query = query.where(t.who == who)
    if since is not None:
        query = query.where(t.time >= since)
    if before is not None:
        query = query.where(t.id < before)
    rows = c.execute(query.order_by(t.id.desc()).limit(limit))
    return [
        AuditRecord(
            row.id,
            row.time,
            row.who,
            row.token,
            row.action,
            row.target,
            strict_json.loads(row.detail_json),
            row.address,
        )
        for row in rows
    ]


def remove_before(c: Connection, moment: float, *, limit: int) -> int:
    """Removes at most ``limit`` of the oldest acts before a time and returns how many it removed."""
    t = tables.audit.c
    oldest = select(t.id).where(t.time < moment).order_by(t.id).limit(limit)
    ids = list(c.execute(oldest).scalars())
    if ids:
        c.execute(delete(tables.audit).where(t.id.in_(ids)))
    return len(ids)


def _kept(text: str) -> str:
    return _storable(text[:MAX_TEXT])


def _storable(text: str) -> str:
    """Without what a database cannot hold: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")

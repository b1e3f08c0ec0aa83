"""Workers of one PostgreSQL database: their locks, which of them are there, and what they tell each other.

Locks are PostgreSQL's advisory locks of a session: the database itself frees them when the process that
holds them dies or its connection breaks, so there is nothing to expire and nothing to clean up.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select, text

from floatscope_server import tables
from floatscope_server.database import upsert

CHANNEL = "floatscope"
"""The channel of LISTEN and NOTIFY."""
_CLOCK = func.extract("epoch", func.clock_timestamp())


@dataclass(frozen=True)
class Holder:
    """The worker that holds a lock. ``url``: where it listens for others; None if it does not say."""

    worker: str
    url: str | None


def lock_key(kind: str, name: str) -> int:
    """The 64-bit number of a lock. Two names that share one would only share their owner."""
    digest = hashlib.sha256(f"floatscope {kind} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def try_lock(c: Connection, key: int) -> bool:
    """Takes a lock for this session unless another has it; never waits."""
    return bool(c.execute(text("select pg_try_advisory_lock(:key)"), {"key": key}).scalar_one())


def unlock(c: Connection, key: int) -> None:
    c.execute(text("select pg_advisory_unlock(:key)"), {"key": key})


def holder(c: Connection, key: int) -> Holder | None:
    """Who holds a lock. Asked of the locks themselves, so it cannot be out of date."""
    query = text(
        "select a.application_name, w.url from pg_locks l join pg_stat_activity a on a.pid = l.pid"
        " left join worker w on w.id = a.application_name"
        " where l.locktype = 'advisory' and l.granted and l.objsubid = 1"
        " and l.database = (select oid from pg_database where datname = current_database())"
        " and l.classid::bigint = :high and l.objid::bigint = :low"
    )
    bits = key & 0xFFFF_FFFF_FFFF_FFFF
    row = c.execute(query, {"high": bits >> 32, "low": bits & 0xFFFF_FFFF}).first()
    return None if row is None else Holder(row[0], row[1] or None)


def seen(c: Connection, worker: str, *, url: str) -> float:
    """Notes that a worker is there; returns the database's time (Unix seconds), one clock for all."""
    now = float(c.execute(select(_CLOCK)).scalar_one())
    values = {"url": url, "seen": now}
    statement = upsert(c, tables.worker).values(id=worker, started=now, **values)
    c.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))
    return now


def gone(c: Connection, worker: str) -> None:
    c.execute(delete(tables.worker).where(tables.worker.c.id == worker))


def silent(c: Connection, *, longer_than_s: float) -> list[str]:
    """Workers that were not heard of for so long, by the database's clock."""
    query = select(tables.worker.c.id).where(tables.worker.c.seen < _CLOCK - longer_than_s)
    return list(c.execute(query).scalars())


def cut_off(c: Connection, worker: str) -> int:
    """Closes all of a worker's connections and forgets it: its locks are free then, and what it was about
    to commit is undone. Waits up to a second for each; returns how many there were.
    """
    query = text(
        "select count(pg_terminate_backend(pid, 1000)) from pg_stat_activity where application_name = :worker"
        " and datname = current_database() and usename = current_user and pid <> pg_backend_pid()"
    )
    closed = int(c.execute(query, {"worker": worker}).scalar_one())
    gone(c, worker)
    return closed


def listen(c: Connection) -> None:
    c.execute(text(f"listen {CHANNEL}"))


def notify(c: Connection, payloads: list[str]) -> None:
    """Sends payloads (at most 7,999 bytes each) to every connection that listens."""
    for payload in payloads:
        c.execute(text("select pg_notify(:channel, :payload)"), {"channel": CHANNEL, "payload": payload})

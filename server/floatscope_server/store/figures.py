"""Counts of what there is, for whoever watches the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from floatscope_server import tables
from floatscope_server.chunk_plan import LIMITS
from floatscope_server.store import hot

_run, _rank, _alert, _outbox, _channel = (
    tables.run,
    tables.rank,
    tables.alert,
    tables.outbox,
    tables.channel,
)


@dataclass(frozen=True)
class Figures:
    """runs: by status.  alerts: by state and severity.  messages: by kind of channel and state.

    most_hot_rows: of one rank.  waiting: ranks that compaction is due for.  removing: runs that are deleted
    and not gone yet.
    """

    runs: Mapping[str, int]
    alerts: Mapping[tuple[str, str], int]
    messages: Mapping[tuple[str, str], int]
    hot_rows: int
    most_hot_rows: int
    waiting: int
    removing: int


def of(c: Connection) -> Figures:
    """Everything in one look."""
    alive = _run.c.deleted.is_(None)
    runs = select(_run.c.status, func.count()).where(alive).group_by(_run.c.status)
    alerts = select(_alert.c.state, _alert.c.severity, func.count()).group_by(
        _alert.c.state, _alert.c.severity
    )
    messages = (
        select(_channel.c.kind, _outbox.c.state, func.count())
        .join(_channel, _channel.c.id == _outbox.c.channel)
        .group_by(_channel.c.kind, _outbox.c.state)
    )
    rows = c.execute(
        select(func.coalesce(func.sum(_rank.c.hot_rows), 0), func.coalesce(func.max(_rank.c.hot_rows), 0))
    ).one()
    removing = c.execute(
        select(func.count()).select_from(_run).where(_run.c.deleted.is_not(None))
    ).scalar_one()
    return Figures(
        runs={status: int(count) for status, count in c.execute(runs)},
        alerts={(state, severity): int(count) for state, severity, count in c.execute(alerts)},
        messages={(kind, state): int(count) for kind, state, count in c.execute(messages)},
        hot_rows=int(rows[0]),
        most_hot_rows=int(rows[1]),
        waiting=len(hot.waiting(c, rows=LIMITS.rows, batches=LIMITS.hot_batches)),
        removing=int(removing),
    )

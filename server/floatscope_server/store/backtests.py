"""Back-tests of rule settings: what was asked, how far it is, what came out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.errors import BacktestNotFound

_table = tables.backtest
WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"
OPEN = (WAITING, RUNNING)
STATES = (WAITING, RUNNING, DONE, FAILED, CANCELLED)


@dataclass(frozen=True)
class BacktestRecord:
    """A back-test. state: one of STATES.  result: None before there is any; of a running one so far."""

    id: str
    created: float
    created_by: str
    state: str
    request: Mapping[str, Any]
    result: Mapping[str, Any] | None
    updated: float


def add(c: Connection, record: BacktestRecord) -> None:
    c.execute(
        insert(_table).values(
            id=record.id,
            created=record.created,
            created_by=record.created_by,
            state=record.state,
            request_json=strict_json.dumps(dict(record.request)),
            result_json=None,
            updated=record.updated,
        )
    )


def get(c: Connection, backtest_id: str) -> BacktestRecord:
    """The back-test; raises BacktestNotFound."""
    row = c.execute(select(_table).where(_table.c.id == backtest_id)).first()
    if row is None:
        raise BacktestNotFound(backtest_id)
    return _record(row)


def listed(c: Connection, *, limit: int) -> list[BacktestRecord]:
    """The newest, newest first."""
    query = select(_table).order_by(_table.c.created.desc(), _table.c.id).limit(limit)
    return [_record(row) for row in c.execute(query)]


def open_ones(c: Connection) -> list[BacktestRecord]:
    """Those that wait or run, oldest first."""
    query = select(_table).where(_table.c.state.in_(OPEN)).order_by(_table.c.created, _table.c.id)
    return [_record(row) for row in c.execute(query)]


def move(
    c: Connection,
    backtest_id: str,
    *,
    before: tuple[str, ...],
    after: str,
    now: float,
    result: Mapping[str, Any] | None = None,
) -> bool:
    """Brings it from one of some states to another; False, and nothing changed, if it is in none of them.

    result: in place of the one before; None leaves that.
    """
    values: dict[str, Any] = {"state": after, "updated": now}
    if result is not None:
        values["result_json"] = strict_json.dumps(dict(result))
    mine = (_table.c.id == backtest_id) & _table.c.state.in_(before)
    statement = update(_table).where(mine).values(values).returning(_table.c.id)
    return c.execute(statement).first() is not None


def keep_newest(c: Connection, count: int) -> None:
    """Removes those that are over, but for so many of the newest."""
    kept = select(_table.c.id).order_by(_table.c.created.desc(), _table.c.id).limit(count)
    c.execute(delete(_table).where(_table.c.state.not_in(OPEN), _table.c.id.not_in(kept)))


def _record(row: Row[Any]) -> BacktestRecord:
    return BacktestRecord(
        id=row.id,
        created=row.created,
        created_by=row.created_by,
        state=row.state,
        request=json.loads(row.request_json),
        result=None if row.result_json is None else json.loads(row.result_json),
        updated=row.updated,
    )

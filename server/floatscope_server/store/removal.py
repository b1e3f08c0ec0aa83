"""Removing a run: it is gone for everybody at once, its rows go afterwards, a few at a time.

``mark`` is one short transaction. What is left is found by ``run.deleted``, so a process that dies in the
middle leaves work for the next one and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Select,
    Table,
    any_,
    delete,
    exists,
    func,
    literal_column,
    select,
    update,
)

from floatscope_server import tables
from floatscope_server.callers import Caller
from floatscope_server.database import upsert
from floatscope_server.store import audit, runs
from floatscope_server.store.runs import RunRecord

DELETED = "deleted"
_AT_ONCE = ("outbox", "alert_event", "telling", "alert", "engine_state", "verdict")
_LATER = ("tile", "level", "block", "chunk", "frame", "series", "batch", "tensor_table", "rank")
"""Tables that refer to a run, those first that refer to others of them. Tiles lead, since the objects they
lie in are noted as garbage with them.
"""


@dataclass(frozen=True)
class Marked:
    """A run that is being removed. ``run_id``: a name that no client can give."""

    id: int
    run_id: str
    deleted: float


def forget(c: Connection, run: RunRecord, *, by: Caller, why: str | None, now: float) -> list[str]:
    """Deletes a run for everybody: ``mark``, a line in the audit log, and those compared with it are behind.

    Returns the latter.
    """
    mark(c, run.id, run.run_id, now=now)
    dependents = [other.run_id for other in runs.with_baseline(c, run.run_id)]
    runs.restart_dependents(c, run.run_id)
    detail = {"name": run.name, "project": run.project} | ({} if why is None else {"why": why})
    audit.write(c, by, "run.delete", target=run.run_id, detail=detail, now=now)
    return dependents


def mark(c: Connection, run: int, run_id: str, *, now: float) -> None:
    """Takes the run out of sight: its name is free, its alerts, messages, silences and texts are gone."""
    alerts = select(tables.alert.c.id).where(tables.alert.c.run == run)
    messages = select(tables.outbox.c.id).where(tables.outbox.c.alert.in_(alerts))
    about = tables.outbox_alert.c
    c.execute(delete(tables.outbox_alert).where(about.alert.in_(alerts) | about.message.in_(messages)))
    c.execute(delete(tables.outbox).where(tables.outbox.c.alert.in_(alerts)))
    c.execute(delete(tables.alert_event).where(tables.alert_event.c.alert.in_(alerts)))
    for name in _AT_ONCE[2:]:
        table = tables.metadata.tables[name]
        c.execute(delete(table).where(table.c.run == run))
    c.execute(delete(tables.silence).where(tables.silence.c.run_id == run_id))
    values = {
        "run_id": f"~{run}",  # not a name the API takes
        "name": "",
        "baseline": None,
        "status": DELETED,
        "reason": None,
        "summary": "",
        "cause": None,
        "recipe_json": "{}",
        "info_json": "{}",
        "diagnosis_error": None,
        "deleted": now,
        "version": tables.run.c.version + 1,
    }
    c.execute(update(tables.run).where(tables.run.c.id == run).values(**values))


def waiting(c: Connection) -> list[Marked]:
    """Runs that are marked and still have rows, oldest mark first."""
    query = select(tables.run.c.id, tables.run.c.run_id, tables.run.c.deleted).where(
        tables.run.c.deleted.is_not(None)
    )
    return [Marked(*row) for row in c.execute(query.order_by(tables.run.c.deleted, tables.run.c.id))]


def step(c: Connection, run: int, *, rows: int, now: float) -> int:
    """Deletes at most so many rows of the run and returns how many; 0: nothing is left of it.

    Objects that tiles lay in become garbage in the same transaction.
    """
    for name in _LATER:
        table = tables.metadata.tables[name]
        gone = _tiles(c, run, rows, now) if table is tables.tile else _some(c, table, run, rows)
        if gone:
            return gone
    # Whoever still writes for the run (a chunk that was being made) waits for this row and then fails on it.
    c.execute(select(tables.run.c.id).where(tables.run.c.id == run).with_for_update())
    for name in (*_AT_ONCE[2:], *_LATER):
        table = tables.metadata.tables[name]
        if c.execute(select(exists().where(table.c.run == run))).scalar():
            if name in _AT_ONCE:
                c.execute(delete(table).where(table.c.run == run))
            else:
                return step(c, run, rows=rows, now=now)
    c.execute(delete(tables.run).where(tables.run.c.id == run))
    return 0


def left(c: Connection, run: int) -> int:
    """Rows the run still has."""
    counts = (
        select(func.count()).select_from(table).where(table.c.run == run)
        for table in (tables.metadata.tables[name] for name in _LATER)
    )
    return sum(int(c.execute(query).scalar_one()) for query in counts)


def _some(c: Connection, table: Table, run: int, rows: int) -> int:
    return len(c.execute(_delete_some(c, table, run, rows).returning(table.c.run)).all())


def _tiles(c: Connection, run: int, rows: int, now: float) -> int:
    found = c.execute(_delete_some(c, tables.tile, run, rows).returning(tables.tile.c.object)).all()
    objects = sorted({row.object for row in found if row.object is not None})
    if objects:
        garbage = [{"object": name, "due": now} for name in objects]
        statement = upsert(c, tables.garbage)
        c.execute(
            statement.on_conflict_do_update(index_elements=["object"], set_={"due": statement.excluded.due}),
            garbage,
        )
    return len(found)


def _delete_some(c: Connection, table: Table, run: int, rows: int) -> Delete:
    """A DELETE of the first rows by the databases' own row address, which neither has to look up."""
    if c.dialect.name == "sqlite":
        address: ColumnElement[Any] = literal_column("rowid")
        return delete(table).where(
            address.in_(select(address).select_from(table).where(table.c.run == run).limit(rows))
        )
    # As an array, or the planner may read the whole table to compare addresses.
    found: Select[Any] = (
        select(literal_column("ctid")).select_from(table).where(table.c.run == run).limit(rows)
    )
    return delete(table).where(literal_column("ctid") == any_(func.array(found.scalar_subquery())))

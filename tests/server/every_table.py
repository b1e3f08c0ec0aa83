"""A database with rows in every table: a run as the server stores it, and made-up rows where it has none."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    func,
    insert,
    select,
)

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import tables
from floatscope_server.app import create_app
from floatscope_server.database import Database
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from tests.server.samples import TABLE, Scripted, body, finding, ingest, rows

_WITH_MEANING = {
    "quiet_json": '{"from": "22:00", "to": "07:00"}',
    "projects_json": '["p"]',
    "scopes_json": '["ingest"]',
    "thresholds_json": "{}",
    "min_severity": "warning",
    "severity": "warning",
    "kind": "slack",
}


def services_over(database: Database, settings: Settings) -> Services:
    """A server's parts without HTTP; every batch raises one finding."""
    app: FastAPI = create_app(settings, database=database, engines=Scripted(lambda _last: [finding(id="f")]))
    found: Services = app.state.services
    return found


def fill(database: Database, settings: Settings, *, leave_empty: tuple[str, ...] = ()) -> None:
    """Rows in every table but ``leave_empty``."""
    services = services_over(database, settings)
    services.lifecycle.open("r", RunInfo(name="r \u00e9\u4e2d", project="p", tensors=TABLE))
    for seq in range(6):
        ingest(services, "r", seq, body(rows(seq * 10, 10)))
    ingest(services, "r", 0, body(rows(0, 5, seed=4)), rank=3)
    with database.write() as c:
        for table in tables.metadata.sorted_tables:
            if table.name not in leave_empty and not count(c, table):
                c.execute(insert(table).values(**made_up(c, table)))
    with database.read() as c:
        empty = {table.name for table in tables.metadata.sorted_tables if not count(c, table)}
    assert empty == set(leave_empty)


def count(c: Connection, table: Table) -> int:
    return int(c.execute(select(func.count()).select_from(table)).scalar_one())


def made_up(c: Connection, table: Table) -> dict[str, Any]:
    """A row with a value in every column, references included."""
    return {column.name: _value(c, column) for column in table.c if column is not table.autoincrement_column}


def _value(c: Connection, column: Column[Any]) -> Any:
    for key in column.foreign_keys:
        return c.execute(select(key.column).limit(1)).scalar_one()
    if column.name in _WITH_MEANING and not isinstance(column.type, SmallInteger):
        return _WITH_MEANING[column.name]
    if column.name.endswith("_json"):
        return '{"a": [1, "NaN", "\\u00e9"]}'
    if isinstance(column.type, Boolean):
        return True
    if isinstance(column.type, Double):
        return 1764420000.123456789
    if isinstance(column.type, LargeBinary):
        return bytes(range(256)) * 40
    if isinstance(column.type, Integer | SmallInteger):
        return 7
    return "caf\u00e9"

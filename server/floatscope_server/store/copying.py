"""Whole tables, row by row: counted, summed up and copied, in bounded memory."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    Double,
    LargeBinary,
    Table,
    Text,
    exists,
    func,
    insert,
    select,
    text,
)

from floatscope_server import tables

OF_PROCESSES = ("worker",)
"""Tables that say which process does what now; they mean nothing in another place."""
LARGE_AT_ONCE, SMALL_AT_ONCE = 16, 500  # rows in memory at a time
_ALL = (1 << 128) - 1


@dataclass
class Sum:
    """How many rows a table has and what is in them, whatever their order."""

    rows: int = 0
    digest: int = 0

    def add(self, table: Table, row: Mapping[str, Any]) -> None:
        self.rows += 1
        self.digest = (self.digest + _digest(table, row)) & _ALL


def copied() -> list[Table]:
    """The tables that hold data, those first that others refer to."""
    return [table for table in tables.metadata.sorted_tables if table.name not in OF_PROCESSES]


def each(c: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    """All rows, some at a time."""
    large = any(isinstance(column.type, LargeBinary | Text) for column in table.c)
    at_once = LARGE_AT_ONCE if large else SMALL_AT_ONCE
    options = {"stream_results": True, "yield_per": at_once}
    with c.execute(select(table), execution_options=options) as found:
        for rows in found.mappings().partitions(at_once):
            yield [dict(row) for row in rows]


def summed(c: Connection, table: Table) -> Sum:
    """Count and digest of a table."""
    out = Sum()
    for rows in each(c, table):
        for row in rows:
            out.add(table, row)
    return out


def add(c: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    c.execute(insert(table), list(rows))


def filled(c: Connection) -> list[str]:
    """Names of the tables that hold any row."""
    return [t.name for t in tables.metadata.sorted_tables if c.execute(select(exists(select(t)))).scalar()]


def state(c: Connection) -> tuple[int, ...]:
    """Numbers that change when a server works on the database."""
    run = tables.run.c
    sums = c.execute(
        select(
            func.count(), func.coalesce(func.sum(run.arrivals), 0), func.coalesce(func.sum(run.version), 0)
        )
    ).one()
    counts = (
        c.execute(select(func.count()).select_from(table)).scalar_one()
        for table in (tables.token, tables.channel, tables.chunk, tables.outbox)
    )
    return (*(int(n) for n in sums), *(int(n) for n in counts))


def last_number(c: Connection, table: Table) -> int:
    """The highest number the table ever gave to a row, which is not given again; 0 if it gives none."""
    column = table.autoincrement_column
    if column is None:
        return 0
    top = int(c.execute(select(func.coalesce(func.max(column), 0))).scalar_one())
    if c.dialect.name == "sqlite":
        used = c.execute(text("select seq from sqlite_sequence where name = :n"), {"n": table.name}).scalar()
        return max(top, int(used or 0))
    last, called = c.exec_driver_sql(f'select last_value, is_called from "{_sequence(c, table)}"').one()  # noqa: S608
    return max(top, int(last) if called else 0)


def set_last_number(c: Connection, table: Table, number: int) -> None:
    """Makes the table go on behind this number."""
    if table.autoincrement_column is None or number == 0:
        return
    if c.dialect.name != "sqlite":
        c.execute(text("select setval(:s, :n)"), {"s": _sequence(c, table), "n": number})
    elif table.dialect_options["sqlite"].get("autoincrement"):
        values = {"n": table.name, "s": number}
        if c.execute(text("update sqlite_sequence set seq = :s where name = :n"), values).rowcount == 0:
            c.execute(text("insert into sqlite_sequence (name, seq) values (:n, :s)"), values)


def _sequence(c: Connection, table: Table) -> str:
    column = table.autoincrement_column
    assert column is not None
    found = c.execute(
        text("select pg_get_serial_sequence(:t, :c)"), {"t": table.name, "c": column.name}
    ).scalar_one()
    return str(found).rpartition(".")[2].strip('"')


def _digest(table: Table, row: Mapping[str, Any]) -> int:
    parts = hashlib.blake2b(digest_size=16)
    for column in table.c:
        value = row[column.name]
        if value is None:
            parts.update(b"-")
            continue
        if isinstance(column.type, Double):
            piece = struct.pack("<d", float(value))
        elif isinstance(column.type, Boolean):
            piece = bytes([bool(value)])
        elif isinstance(value, str):
            piece = value.encode("utf-8", "surrogatepass")
        elif isinstance(value, int):
            piece = str(value).encode()
        else:
            piece = bytes(value)
        parts.update(b"%d:" % len(piece))
        parts.update(piece)
    return int.from_bytes(parts.digest(), "big")

"""Checks that everything stored can be read and fits together; says of which run, rank and steps it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from floatscope.protocol import strict_json
from floatscope.protocol.wire_safetensors import table_hash
from floatscope_server.codec import expand, unpack
from floatscope_server.database import Database
from floatscope_server.dbtool import verify_chunks, verify_hot
from floatscope_server.dbtool.faults import Fault, faults_of
from floatscope_server.store import checking
from floatscope_server.store.checking import Where
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects


@dataclass
class Counted:
    """What was looked at."""

    ranks: int = 0
    batches: int = 0
    chunks: int = 0
    levels: int = 0


def verify(database: Database, *, full: bool, objects: Objects | None, counted: Counted) -> Iterator[Fault]:
    """Everything that is wrong. full: every level is made anew from its tiles, else those of some chunks.

    One read transaction: a server may go on beside it.
    """
    with database.read() as c:
        yield from look(c, full=full, objects=objects, counted=counted)


def look(c: Connection, *, full: bool, objects: Objects | None, counted: Counted) -> Iterator[Fault]:
    """Everything that is wrong as the connection sees it."""
    tables = TensorTables()
    yield from (Fault("database", what) for what in checking.structure(c))
    yield from _texts(c)
    yield from _once(c)
    for run_id, counts, there, highest in checking.arrivals(c):
        if not counts == there == highest:
            yield Fault(
                f"run {run_id}", f"counts {counts} batches, {there} are stored, the last is no. {highest}"
            )
    for at in checking.ranks(c):
        counted.ranks += 1
        yield from _rank(c, at, tables, full=full, objects=objects, counted=counted)


def _texts(c: Connection) -> Iterator[Fault]:
    for column, key, text in checking.json_values(c):
        with faults_of(f"{column} of {key}") as found:
            strict_json.loads(text)
        yield from found


def _once(c: Connection) -> Iterator[Fault]:
    for row in checking.tensor_tables(c):
        with faults_of(f"run {row.run_id} tensor table {row.id}") as found:
            if table_hash(json.loads(expand(row.table))) != row.hash:
                raise ValueError("its content does not have its hash")
        yield from found
    for name, whose, data in checking.packed(c):
        with faults_of(f"{whose} {name}") as found:
            expand(data) if name == "engine_state" else unpack(data)
        yield from found


def _rank(
    c: Connection,
    at: Where,
    tables: TensorTables,
    *,
    full: bool,
    objects: Objects | None,
    counted: Counted,
) -> Iterator[Fault]:
    batches = list(checking.batches(c, at))
    counted.batches += len(batches)
    if [row.seq for row in batches] != list(range(at.next_seq)):
        stored = {row.seq for row in batches}
        missing = [seq for seq in range(at.next_seq) if seq not in stored]
        yield Fault(str(at), f"batches {missing[:10]} are missing" if missing else "has batches too many")
    hot = [row for row in batches if row.seq >= at.chunked_seq]
    yield from verify_hot.check(c, at, hot, tables)
    found = verify_chunks.check(
        c, at, [row for row in batches if row.seq < at.chunked_seq], tables, full=full, objects=objects
    )
    for checked in found:
        counted.chunks += 1
        counted.levels += checked.levels
        yield from checked.faults

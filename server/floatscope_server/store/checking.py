"""Queries for checking that what is stored fits together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from floatscope_server import tables

AT_ONCE = 200
_batch, _block, _rank, _run, _tile = tables.batch, tables.block, tables.rank, tables.run, tables.tile


@dataclass(frozen=True)
class Where:
    """A rank of a run and where it says that it stands."""

    run: int
    run_id: str
    rank: int
    next_seq: int
    chunked_seq: int
    hot_rows: int
    segment: int

    def __str__(self) -> str:
        return f"run {self.run_id} rank {self.rank}"


def _streamed(c: Connection, query: Select[Any], *, at_once: int = AT_ONCE) -> Iterator[Any]:
    """Rows some at a time; the cursor is closed also if the reader stops in the middle."""
    with c.execute(query, execution_options={"yield_per": at_once}) as found:
        yield from found


def structure(c: Connection) -> list[str]:
    """What SQLite itself finds wrong with its file. PostgreSQL has no such check of its own."""
    if c.dialect.name != "sqlite":
        return []
    found = [str(row[0]) for row in c.exec_driver_sql("pragma integrity_check(50)")]
    found = [] if found == ["ok"] else found
    for table, row, parent, _number in c.exec_driver_sql("pragma foreign_key_check"):
        found.append(f"row {row} of table {table} refers to a row of {parent} that is not there")
    return found


def json_values(c: Connection) -> Iterator[tuple[str, str, str]]:
    """(table.column, key of the row, text) of every JSON column that holds something."""
    for table in tables.metadata.sorted_tables:
        for column in table.c:
            if column.name.endswith("_json"):
                keys = list(table.primary_key.columns)
                query = select(column, *keys).where(column.is_not(None))
                for text, *key in _streamed(c, query):
                    yield f"{table.name}.{column.name}", ", ".join(map(str, key)), text


def ranks(c: Connection) -> list[Where]:
    """Every rank of every run that is not being removed."""
    query = (
        select(
            _run.c.id,
            _run.c.run_id,
            _rank.c.rank,
            _rank.c.next_seq,
            _rank.c.chunked_seq,
            _rank.c.hot_rows,
            _rank.c.segment,
        )
        .join(_run, _run.c.id == _rank.c.run)
        .where(_run.c.deleted.is_(None))
        .order_by(_run.c.id, _rank.c.rank)
    )
    return [Where(*row) for row in c.execute(query)]


def arrivals(c: Connection) -> list[tuple[str, int, int, int]]:
    """(run_id, arrivals it counts, batches it has, highest arrival) of every run."""
    query = (
        select(
            _run.c.run_id,
            _run.c.arrivals,
            func.count(_batch.c.seq),
            func.coalesce(func.max(_batch.c.arrival), 0),
        )
        .outerjoin(_batch, _batch.c.run == _run.c.id)
        .where(_run.c.deleted.is_(None))
        .group_by(_run.c.id, _run.c.run_id, _run.c.arrivals)
    )
    return [(row[0], row[1], row[2], row[3]) for row in c.execute(query)]


def batches(c: Connection, at: Where) -> Iterator[Row[Any]]:
    """seq, segment, rows, first_step, last_step, lost, tensor_table of the rank's batches in order of seq."""
    names = ("seq", "segment", "rows", "first_step", "last_step", "lost", "tensor_table")
    query = select(*(_batch.c[name] for name in names)).where(
        _batch.c.run == at.run, _batch.c.rank == at.rank
    )
    yield from _streamed(c, query.order_by(_batch.c.seq), at_once=2000)


def blocks(c: Connection, at: Where, seq: int) -> dict[tuple[int, str], bytes]:
    """(kind, name) -> bytes of a batch's hot blocks."""
    query = select(_block.c.kind, _block.c.name, _block.c.data).where(
        _block.c.run == at.run, _block.c.rank == at.rank, _block.c.seq == seq
    )
    return {(row.kind, row.name): row.data for row in c.execute(query)}


def block_seqs(c: Connection, at: Where) -> set[int]:
    """Batches that have any block and are in no chunk."""
    query = select(_block.c.seq).where(
        _block.c.run == at.run, _block.c.rank == at.rank, _block.c.seq >= at.chunked_seq
    )
    return set(c.execute(query.distinct()).scalars())


def tile_rows(c: Connection, at: Where, chunk: int) -> list[Row[Any]]:
    """kind, name, part, stored (bytes in the row or None), object, start, length of a chunk's tiles."""
    query = select(
        _tile.c.kind,
        _tile.c.name,
        _tile.c.part,
        func.length(_tile.c.data).label("stored"),
        _tile.c.object,
        _tile.c.start,
        _tile.c.length,
    ).where(_tile.c.run == at.run, _tile.c.rank == at.rank, _tile.c.chunk == chunk)
    return list(c.execute(query))


def level_rows(c: Connection, at: Where, chunk: int) -> Iterator[Any]:
    """kind, name, width, part, data of a chunk's levels."""
    level = tables.level.c
    query = select(level.kind, level.name, level.width, level.part, level.data).where(
        level.run == at.run, level.rank == at.rank, level.chunk == chunk
    )
    yield from _streamed(c, query.order_by(level.kind, level.name, level.part, level.width))


def tensor_tables(c: Connection) -> Iterator[Any]:
    """id, run_id, hash and bytes of every tensor table."""
    t = tables.tensor_table.c
    query = select(t.id, _run.c.run_id, t.hash, t.table).join(_run, _run.c.id == t.run)
    yield from _streamed(c, query.order_by(t.id))


def packed(c: Connection) -> Iterator[tuple[str, str, bytes]]:
    """(engine_state or frame, whose, bytes) of what is stored once per run or rank."""
    state, frame = tables.engine_state.c, tables.frame.c
    for run_id, data in c.execute(select(_run.c.run_id, state.state).join(_run, _run.c.id == state.run)):
        yield "engine_state", f"run {run_id}", data
    query = select(_run.c.run_id, frame.rank, frame.data).join(_run, _run.c.id == frame.run)
    for run_id, rank, data in c.execute(query):
        yield "frame", f"run {run_id} rank {rank}", data

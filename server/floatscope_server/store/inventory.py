"""How much is stored, of what, where, and what is waiting to be tidied up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, exists, func, inspect, select, text

from floatscope_server import tables

_run, _rank, _batch, _block = tables.run, tables.rank, tables.batch, tables.block
_chunk, _tile, _level = tables.chunk, tables.tile, tables.level


@dataclass(frozen=True)
class Room:
    """Bytes on disk. free: inside the file, used again or given back; log: not yet in the file."""

    total_bytes: int
    free_bytes: int | None = None
    log_bytes: int | None = None


def rows(c: Connection) -> dict[str, int]:
    """Rows of every table that is there."""
    there = set(inspect(c).get_table_names())
    return {
        table.name: int(c.execute(select(func.count()).select_from(table)).scalar_one())
        for table in tables.metadata.sorted_tables
        if table.name in there
    }


def room(c: Connection) -> Room:
    """What the database takes up, without the log of SQLite, which is a file of its own."""
    if c.dialect.name == "postgresql":
        size = c.execute(text("select pg_database_size(current_database())")).scalar_one()
        return Room(int(size))
    page, pages, free = (
        int(c.exec_driver_sql(f"pragma {name}").scalar_one())
        for name in ("page_size", "page_count", "freelist_count")
    )
    return Room(page * pages, page * free)


def runs_by_status(c: Connection) -> dict[str, int]:
    query = select(_run.c.status, func.count()).where(_run.c.deleted.is_(None)).group_by(_run.c.status)
    return {status: int(count) for status, count in c.execute(query.order_by(_run.c.status))}


def being_removed(c: Connection) -> int:
    return _count(c, _run, _run.c.deleted.is_not(None))


def bytes_stored(c: Connection) -> dict[str, int]:
    """Compressed bytes of the numbers, by where they are."""
    return {
        "hot_blocks": _total(c, func.length(_block.c.data)),
        "tiles_in_database": _total(c, _tile.c.length, _tile.c.object.is_(None)),
        "tiles_in_objects": _total(c, _tile.c.length, _tile.c.object.is_not(None)),
        "levels": _total(c, func.length(_level.c.data)),
        "frames": _total(c, func.length(tables.frame.c.data)),
    }


def steps(c: Connection) -> dict[str, int]:
    """Rows of steps in hot blocks and in chunks."""
    hot = exists(
        select(1).where(
            _rank.c.run == _batch.c.run, _rank.c.rank == _batch.c.rank, _batch.c.seq >= _rank.c.chunked_seq
        )
    )
    return {"hot": _total(c, _batch.c.rows, hot), "in_chunks": _total(c, _chunk.c.rows)}


def left_overs(c: Connection) -> dict[str, int]:
    """What nothing refers to any more and what is waiting to be deleted; none of it is ever read."""
    in_a_chunk = exists(
        select(1).where(
            _rank.c.run == _block.c.run, _rank.c.rank == _block.c.rank, _block.c.seq < _rank.c.chunked_seq
        )
    )
    return {
        "blocks": _count(c, _block, in_a_chunk),
        "tiles": _count(c, _tile, ~_counts(_tile)),
        "levels": _count(c, _level, ~_counts(_level)),
        "objects": _count(c, tables.garbage),
    }


def _counts(table: Table) -> Any:
    """Whether the chunk of a tile or level is there."""
    return exists(
        select(1).where(
            _chunk.c.run == table.c.run, _chunk.c.rank == table.c.rank, _chunk.c.chunk == table.c.chunk
        )
    )


def _count(c: Connection, table: Table, *where: ColumnElement[bool]) -> int:
    return int(c.execute(select(func.count()).select_from(table).where(*where)).scalar_one())


def _total(c: Connection, what: ColumnElement[Any], *where: ColumnElement[bool]) -> int:
    return int(c.execute(select(func.coalesce(func.sum(what), 0)).where(*where)).scalar_one())

"""Left-overs of compaction: hot blocks of batches that are in a chunk, tiles and levels of no chunk.

Nothing reads them. The caller holds the rank's claim, is not in the middle of a chunk, and deletes a little
at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, and_, bindparam, delete, exists, func, select

from floatscope_server import tables
from floatscope_server.database import upsert
from floatscope_server.store import garbage

GRACE_S = 600.0
"""An object is kept for so long after the last row that named it: readers that began before may want it."""
_block, _tile, _level, _chunk, _rank = tables.block, tables.tile, tables.level, tables.chunk, tables.rank


@dataclass(frozen=True)
class Leftover:
    """Rows of one table by their keys, with about the bytes they take."""

    table: Table
    keys: tuple[dict[str, Any], ...]
    bytes: int


def find(
    c: Connection, run: int, rank: int, *, tiles: bool, most_bytes: int, number: int | None = None
) -> list[Leftover]:
    """The rank's left-overs in portions of at most so many bytes (or one row).

    tiles: look for tiles and levels too, of chunks that were merged into a later one or never came to count.
    number: only for those of this chunk; not every tile of the rank is looked up then.
    """
    chunked = select(_rank.c.chunked_seq).where(_rank.c.run == run, _rank.c.rank == rank).scalar_subquery()
    where = and_(_block.c.run == run, _block.c.rank == rank, _block.c.seq < chunked)
    found = _portions(c, _block, ("kind", "name", "seq"), func.length(_block.c.data), where, most_bytes)
    if tiles:
        of_level = ("kind", "name", "width", "part", "chunk")
        found += _of_chunks(c, _tile, ("kind", "name", "part", "chunk"), run, rank, most_bytes, number)
        found += _of_chunks(c, _level, of_level, run, rank, most_bytes, number)
    return found


def remove(c: Connection, run: int, rank: int, leftover: Leftover, *, now: float) -> None:
    """Deletes a portion. Objects that its tiles lay in are noted as garbage."""
    table = leftover.table
    of_key = [table.c[name] == bindparam(f"key_{name}") for name in leftover.keys[0]]
    keys = [{f"key_{name}": value for name, value in key.items()} for key in leftover.keys]
    if table is _tile:
        numbers = sorted({key["chunk"] for key in leftover.keys})
        _forget_objects(c, run, rank, numbers, due=now + GRACE_S)
    c.execute(delete(table).where(table.c.run == run, table.c.rank == rank, *of_key), keys)


def note_object(c: Connection, key: str, *, due: float) -> None:
    """Notes an object before it is written: one that never comes to count is deleted when it is due."""
    c.execute(upsert(c, tables.garbage).values(object=key, due=due).on_conflict_do_nothing())


def keep_objects(c: Connection, keys: Sequence[str]) -> bool:
    """In the transaction in which the objects come to count. False: some are being deleted, since this took
    longer than they were noted for, so they cannot.
    """
    if not keys:
        return True
    g = tables.garbage.c
    statement = delete(tables.garbage).where(g.object.in_(keys), g.due != garbage.MARKED)
    return len(c.execute(statement.returning(g.object)).all()) == len(keys)


def _forget_objects(c: Connection, run: int, rank: int, numbers: Sequence[int], *, due: float) -> None:
    query = (
        select(_tile.c.object)
        .where(_tile.c.run == run, _tile.c.rank == rank, _tile.c.chunk.in_(numbers))
        .where(_tile.c.object.is_not(None))
        .distinct()
    )
    objects = list(c.execute(query).scalars())
    if objects:
        rows = [{"object": name, "due": due} for name in objects]
        c.execute(upsert(c, tables.garbage).on_conflict_do_nothing(), rows)


def _of_chunks(
    c: Connection,
    table: Table,
    names: Sequence[str],
    run: int,
    rank: int,
    most_bytes: int,
    number: int | None,
) -> list[Leftover]:
    where = and_(table.c.run == run, table.c.rank == rank)
    of_rank = and_(_chunk.c.run == run, _chunk.c.rank == rank)
    if number is None:
        where &= ~exists().where(of_rank, _chunk.c.chunk == table.c.chunk)
    elif c.execute(select(_chunk.c.chunk).where(of_rank, _chunk.c.chunk == number)).first() is None:
        where &= table.c.chunk == number
    else:
        return []
    return _portions(c, table, names, func.length(table.c.data), where, most_bytes)


def _portions(
    c: Connection, table: Table, names: Sequence[str], size: Any, where: Any, most_bytes: int
) -> list[Leftover]:
    query = select(*(table.c[name] for name in names), func.coalesce(size, 0)).where(where)
    out: list[Leftover] = []
    keys: list[dict[str, Any]] = []
    total = 0
    for *values, length in c.execute(query.order_by(*(table.c[name] for name in names))):
        if keys and total + length > most_bytes:
            out.append(Leftover(table, tuple(keys), total))
            keys, total = [], 0
        keys.append(dict(zip(names, values, strict=True)))
        total += length
    return [*out, Leftover(table, tuple(keys), total)] if keys else out

"""Chunks: whole batches of one rank and segment, rewritten from hot blocks to tiles and levels.

A chunk's columns are the tensors of its ``tensor_table``, sorted by code point. Tiles are series-major:

- ROWS, name "", part 0: ``pack([step [T], time [T], stat_row [D], hist_row [H], makeup])``, makeup: JSON of
  what every batch had beside numbers (``tiles.Makeup``);
- SCALARS, one per name, part 0: ``pack([values [1, T], present])``;
- STAT, one per name and part: ``pack([values [s, D], present])``, the s tensors from ``part * TILE_SERIES``;
- HISTOGRAM, name "", one per part: ``pack([counts [s, H, 64], present])``, present [s, H]: the tensor
  belonged to the batch.

present: ``codec.pack_mask``, empty where everything is there. A value that is not there is 0. Which rows
belong to which batch follows from ``batch.rows``, in order of seq. Levels are ``pack_level``, of the tensors
from ``part * LEVEL_SERIES``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from floatscope_server import tables
from floatscope_server.database import upsert
from floatscope_server.levels import Level
from floatscope_server.store.level_format import unpack_level

_chunk, _level = tables.chunk, tables.level


@dataclass(frozen=True)
class Chunk:
    """A chunk without its numbers. ``number``: seq of its last batch.

    widths: of the levels of scalars; stat_widths: of the levels of statistics; finest first.
    """

    rank: int
    number: int
    first_seq: int
    segment: int
    tensor_table: int | None
    rows: int
    stat_rows: int
    hist_rows: int
    first_step: int
    last_step: int
    widths: tuple[int, ...]
    stat_widths: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class LevelRow:
    """A level as it is stored: ``data`` is ``pack_level``."""

    kind: int
    name: str
    width: int
    part: int
    data: bytes


def of_rank(
    c: Connection, run: int, rank: int, *, first_step: int | None = None, last_step: int | None = None
) -> list[Chunk]:
    """The rank's chunks that touch a range of steps, in order of seq."""
    query = select(_chunk).where(_chunk.c.run == run, _chunk.c.rank == rank).order_by(_chunk.c.chunk)
    if first_step is not None:
        query = query.where(_chunk.c.last_step >= first_step)
    if last_step is not None:
        query = query.where(_chunk.c.first_step <= last_step)
    return [_record(row) for row in c.execute(query)]


def ranks(c: Connection) -> list[tuple[int, int]]:
    """(run, rank) of every rank that has chunks."""
    query = select(_chunk.c.run, _chunk.c.rank).distinct().order_by(_chunk.c.run, _chunk.c.rank)
    return [(row[0], row[1]) for row in c.execute(query)]


def of_seq(c: Connection, run: int, rank: int, seq: int) -> Chunk | None:
    """The chunk that a batch is in; None while it is in hot blocks."""
    query = (
        select(_chunk)
        .where(_chunk.c.run == run, _chunk.c.rank == rank, _chunk.c.chunk >= seq)
        .order_by(_chunk.c.chunk)
        .limit(1)
    )
    row = c.execute(query).first()
    return None if row is None or row.first_seq > seq else _record(row)


def before(c: Connection, run: int, rank: int, seq: int) -> Chunk | None:
    """The rank's last chunk of batches before ``seq``."""
    query = (
        select(_chunk)
        .where(_chunk.c.run == run, _chunk.c.rank == rank, _chunk.c.chunk < seq)
        .order_by(_chunk.c.chunk.desc())
        .limit(1)
    )
    row = c.execute(query).first()
    return None if row is None else _record(row)


def add(c: Connection, run: int, chunk: Chunk, *, now: float) -> None:
    """Makes the chunk count: its tiles and levels are stored already."""
    values = {name: getattr(chunk, name) for name in Chunk.__dataclass_fields__}
    lists = [values.pop("widths"), values.pop("stat_widths")]
    number = values.pop("number")
    c.execute(
        insert(_chunk).values(run=run, chunk=number, widths_json=json.dumps(lists), created=now, **values)
    )


def insert_levels(c: Connection, run: int, rank: int, number: int, rows: Sequence[LevelRow]) -> None:
    """Stores levels of a chunk that does not count yet, in place of those of an attempt that failed."""
    if not rows:
        return
    statement = upsert(c, _level)
    c.execute(
        statement.on_conflict_do_update(
            index_elements=_level.primary_key.columns, set_={"data": statement.excluded["data"]}
        ),
        [
            {"run": run, "rank": rank, "chunk": number} | {f.name: getattr(row, f.name) for f in fields(row)}
            for row in rows
        ],
    )


def levels(
    c: Connection,
    run: int,
    rank: int,
    kind: int,
    name: str,
    width: int,
    *,
    chunks: Sequence[Chunk],
    parts: Mapping[int, Collection[int]] | None = None,
    thin: bool = False,
) -> Iterator[tuple[int, int, Level]]:
    """(chunk, part, level) of one series or of all parts, parts first, then chunks in order.

    chunks: in order of seq. parts: number of a chunk -> the parts wanted of it. thin: mean and last are not
    wanted and not decoded.
    """
    if not chunks:
        return
    query = (
        select(_level.c.chunk, _level.c.part, _level.c.data)
        .where(_level.c.run == run, _level.c.rank == rank, _level.c.kind == kind, _level.c.name == name)
        .where(_level.c.width == width, _level.c.chunk.between(chunks[0].number, chunks[-1].number))
        .order_by(_level.c.part, _level.c.chunk)
    )
    if parts is not None:
        query = query.where(_level.c.part.in_({part for of_chunk in parts.values() for part in of_chunk}))
    wanted = {chunk.number for chunk in chunks}
    for number, part, data in c.execute(query):
        if number in wanted and (parts is None or part in parts.get(number, ())):
            yield number, part, unpack_level(data, thin=thin)


def _record(row: Row[Any]) -> Chunk:
    values = dict(row._mapping)
    widths, stat_widths = json.loads(values["widths_json"])
    kept = {name: values[name] for name in Chunk.__dataclass_fields__ if name in values}
    return Chunk(number=values["chunk"], widths=tuple(widths), stat_widths=tuple(stat_widths), **kept)

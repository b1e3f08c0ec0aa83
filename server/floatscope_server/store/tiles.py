"""Tiles: written by the compaction, read by series over all chunks of a span with one query.

The bytes of a tile are in its row, or in an object store at the place that the row names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from floatscope.protocol.batch import Bool, Float32, Float64, Int64
from floatscope.protocol.names import HIST_BINS
from floatscope_server import tables
from floatscope_server.codec import pack, pack_mask, unpack, unpack_mask
from floatscope_server.database import upsert
from floatscope_server.store.chunks import Chunk
from floatscope_server.store.kinds import HISTOGRAM, ROWS, SCALARS, STAT, TILE_SERIES

_tile = tables.tile


class Objects(Protocol):
    """A store of immutable objects, such as a bucket. Any method may raise OSError."""

    def read(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes of the object from ``start``."""
        ...

    def write(self, key: str, data: bytes) -> None:
        """Stores the object; one of the same key is replaced."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Removes the objects; those that are not there do not count as a fault."""
        ...


@dataclass(frozen=True)
class Makeup:
    """What a batch had beside numbers: its scalars in their order, and which statistics it carried."""

    scalars: tuple[str, ...]
    stats: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """Steps [T], times [T], the rows that carry statistics [D] and histograms [H], and the makeup of every
    batch that has rows, in order of seq.
    """

    chunk: Chunk
    step: Int64
    time: Float64
    stat_row: Int64
    hist_row: Int64
    makeup: tuple[Makeup, ...]


@dataclass(frozen=True, eq=False)
class ScalarTile:
    """One scalar of one chunk: values [T] and which are present [T], None for all."""

    chunk: Chunk
    name: str
    values: Float64
    present: Bool | None


@dataclass(frozen=True, eq=False)
class StatTile:
    """One statistic of the chunk's tensors from ``part * TILE_SERIES``: values [s, D], present [s, D] or None
    for all.
    """

    chunk: Chunk
    name: str
    part: int
    values: Float32
    present: Bool | None


@dataclass(frozen=True, eq=False)
class HistogramTile:
    """Counts [s, H, 64] of the chunk's tensors from ``part * TILE_SERIES``.

    present [s, H]: whether the tensor belonged to the batch at all.
    """

    chunk: Chunk
    part: int
    counts: NDArray[np.uint32]
    present: Bool


@dataclass(frozen=True)
class Tile:
    """A tile as it is stored. data: None if it is in the object store."""

    kind: int
    name: str
    part: int
    data: bytes | None
    length: int
    object: str | None = None
    start: int | None = None


def insert(c: Connection, run: int, rank: int, number: int, tiles: Sequence[Tile]) -> None:
    """Stores tiles of a chunk that does not count yet, in place of those of an attempt that failed."""
    if not tiles:
        return
    rows = [
        {"run": run, "rank": rank, "chunk": number} | {f.name: getattr(tile, f.name) for f in fields(tile)}
        for tile in tiles
    ]
    statement = upsert(c, _tile)
    replaced = {name: statement.excluded[name] for name in ("data", "object", "start", "length")}
    c.execute(statement.on_conflict_do_update(index_elements=_tile.primary_key.columns, set_=replaced), rows)


def rows(
    c: Connection, run: int, rank: int, chunks: Sequence[Chunk], *, objects: Objects | None = None
) -> list[ChunkRows]:
    """The steps of chunks, which are given in order of seq."""
    out = []
    for chunk, _name, _part, data in _fetch(c, run, rank, ROWS, ("",), chunks, None, objects):
        step, time, stat_row, hist_row, text = unpack(data)
        out.append(ChunkRows(chunk, step, time, stat_row, hist_row, _makeup(text)))
    return out


def scalars(
    c: Connection,
    run: int,
    rank: int,
    names: Collection[str],
    chunks: Sequence[Chunk],
    *,
    objects: Objects | None = None,
) -> Iterator[ScalarTile]:
    """Scalars by name, each over the chunks in order; chunks that have no value of it are left out."""
    for chunk, name, _part, data in _fetch(c, run, rank, SCALARS, names, chunks, None, objects):
        values, bits = unpack(data)
        present = unpack_mask(bits, values.shape)[0] if bits.size else None
        yield ScalarTile(chunk, name, values[0], present)


def stats(
    c: Connection,
    run: int,
    rank: int,
    names: Collection[str],
    chunks: Sequence[Chunk],
    *,
    parts: Mapping[int, Collection[int]] | None = None,
    objects: Objects | None = None,
) -> Iterator[StatTile]:
    """Statistics by name, then by part, each over the chunks in order.

    parts: number of a chunk -> the parts wanted of it, see ``place``; None for all. A chunk that has nothing
    of a statistic is left out.
    """
    for chunk, name, part, data in _fetch(c, run, rank, STAT, names, chunks, parts, objects):
        values, bits = unpack(data)
        yield StatTile(chunk, name, part, values, unpack_mask(bits, values.shape) if bits.size else None)


def histograms(
    c: Connection,
    run: int,
    rank: int,
    chunks: Sequence[Chunk],
    *,
    parts: Mapping[int, Collection[int]] | None = None,
    objects: Objects | None = None,
) -> Iterator[HistogramTile]:
    """Histograms by part, each over the chunks in order; chunks without any are left out."""
    for chunk, _name, part, data in _fetch(c, run, rank, HISTOGRAM, ("",), chunks, parts, objects):
        counts, bits = unpack(data)
        yield HistogramTile(chunk, part, counts, unpack_mask(bits, counts.shape[:2]))


def place(column: int) -> tuple[int, int]:
    """(part, row in the tile) of a chunk's column."""
    return divmod(column, TILE_SERIES)


def pack_rows(
    step: Int64, time: Float64, stat_row: Int64, hist_row: Int64, makeup: Sequence[Makeup]
) -> bytes:
    """The tile of a chunk's steps. Makeups are few, so batches name theirs by number."""
    scalar_names = list(dict.fromkeys(m.scalars for m in makeup))
    stat_names = list(dict.fromkeys(m.stats for m in makeup))
    of_batch = [[scalar_names.index(m.scalars), stat_names.index(m.stats)] for m in makeup]
    text = json.dumps({"scalars": scalar_names, "stats": stat_names, "batches": of_batch})
    return pack([step, time, stat_row, hist_row, np.frombuffer(text.encode(), np.uint8)])


def pack_series(values: NDArray[Any], present: Bool) -> bytes:
    """The tile of series-major values [s, T]. For histograms ``present`` lacks the last dimension."""
    return pack([values, pack_mask(present)])


def no_histograms(rows: int, columns: int) -> NDArray[np.uint32]:
    """As a batch has them: [H, S, 64], or nothing at all where no row has any."""
    return np.zeros((rows, columns if rows else 0, HIST_BINS), np.uint32)


def _makeup(text: NDArray[np.uint8]) -> tuple[Makeup, ...]:
    said = json.loads(text.tobytes())
    scalar_names = [tuple(names) for names in said["scalars"]]
    stat_names = [tuple(names) for names in said["stats"]]
    return tuple(Makeup(scalar_names[a], stat_names[b]) for a, b in said["batches"])


def _fetch(
    c: Connection,
    run: int,
    rank: int,
    kind: int,
    names: Collection[str],
    chunks: Sequence[Chunk],
    parts: Mapping[int, Collection[int]] | None,
    objects: Objects | None,
) -> Iterator[tuple[Chunk, str, int, bytes]]:
    if not chunks or not names:
        return
    query = (
        select(*(_tile.c[n] for n in ("chunk", "name", "part", "data", "object", "start", "length")))
        .where(_tile.c.run == run, _tile.c.rank == rank, _tile.c.kind == kind, _tile.c.name.in_(names))
        .where(_tile.c.chunk.between(chunks[0].number, chunks[-1].number))
        .order_by(_tile.c.name, _tile.c.part, _tile.c.chunk)
    )
    if parts is not None:
        wanted_parts = {part for of_chunk in parts.values() for part in of_chunk}
        query = query.where(_tile.c.part.in_(wanted_parts))
    wanted = {chunk.number: chunk for chunk in chunks}
    for number, name, part, data, key, start, length in c.execute(query):
        chunk = wanted.get(number)
        if chunk is None or (parts is not None and part not in parts.get(number, ())):
            continue
        yield chunk, name, part, data if data is not None else _from_store(objects, key, start, length)


def _from_store(objects: Objects | None, key: str, start: int, length: int) -> bytes:
    if objects is None:
        raise OSError(f"the numbers are in the object store ({key}), and no object store is set up")
    data = objects.read(key, start, length)
    if len(data) != length:
        raise OSError(f"the object store gave {len(data)} bytes of {key} instead of {length}")
    return data

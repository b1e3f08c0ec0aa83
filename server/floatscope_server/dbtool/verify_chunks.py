"""Checks chunks: that they hold their batches, that their tiles can be read, and that their levels say what
the tiles say.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row

from floatscope.protocol.batch import Int64
from floatscope_server import levels
from floatscope_server.dbtool.faults import Fault, faults_of
from floatscope_server.levels import Level
from floatscope_server.store import checking, chunks, tiles
from floatscope_server.store.checking import Where
from floatscope_server.store.chunks import Chunk
from floatscope_server.store.kinds import DERIVED, HISTOGRAM, LEVEL_SERIES, SCALARS, STAT, TILE_SERIES
from floatscope_server.store.level_format import unpack_level
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import ChunkRows, Objects

SAMPLE = 8  # of so many chunks, the levels of one are made anew
NEAR = 1e-9  # of the largest value; a mean may be summed up in another order


@dataclass(frozen=True)
class Checked:
    """One chunk, or what is wrong between chunks."""

    faults: tuple[Fault, ...]
    levels: int = 0


@dataclass(frozen=True, eq=False)
class _Series:
    """One series of a chunk by its part: steps [T], values [s, T], presence [s, T] or None for all."""

    step: Int64
    values: NDArray[Any]
    present: NDArray[np.bool_] | None


def check(
    c: Connection,
    at: Where,
    batches: Sequence[Row[Any]],
    tables: TensorTables,
    *,
    full: bool,
    objects: Objects | None,
) -> Iterator[Checked]:
    """batches: those that are in chunks, in order of seq."""
    found = chunks.of_rank(c, at.run, at.rank)
    covered = {seq for chunk in found for seq in range(chunk.first_seq, chunk.number + 1)}
    bare = [row.seq for row in batches if not row.lost and row.seq not in covered]
    if bare:
        yield Checked((Fault(str(at), f"batches {bare[:10]} are neither hot nor in a chunk"),))
    seqs = [row.seq for row in batches]
    for number, chunk in enumerate(found):
        where = f"{at} steps {chunk.first_step}-{chunk.last_step} (chunk {chunk.number})"
        its_own = slice(bisect_left(seqs, chunk.first_seq), bisect_right(seqs, chunk.number))
        members = [row for row in batches[its_own] if not row.lost]
        with faults_of(where) as faults:
            if chunk.number not in seqs[its_own]:  # which may be a hole of lost steps
                faults.append(Fault(where, "its last batch is not there"))
            faults += [Fault(where, what) for what in _chunk(c, at, chunk, members, tables, objects)]
        made = 0
        if not faults:
            with faults_of(where) as more:
                for what in _levels(c, at, chunk, objects, anew=full or number % SAMPLE == 0):
                    made += 1
                    if what is not None:
                        more.append(Fault(where, what))
            faults += more
        yield Checked(tuple(faults), made)


def _chunk(
    c: Connection,
    at: Where,
    chunk: Chunk,
    members: Sequence[Row[Any]],
    tables: TensorTables,
    objects: Objects | None,
) -> Iterator[str]:
    if not members:
        yield "it has no batches"
        return
    rows = sum(row.rows for row in members)
    if rows != chunk.rows:
        yield f"holds {chunk.rows} steps, its batches have {rows}"
    if {row.segment for row in members} != {chunk.segment}:
        yield "its batches are of another segment"
    known = tiles.rows(c, at.run, at.rank, [chunk], objects=objects)
    if not known:
        yield "its steps are missing"
        return
    yield from _steps(known[0], chunk, members)
    names = () if chunk.tensor_table is None else tables.get(c, chunk.tensor_table).names
    for row in checking.tile_rows(c, at, chunk.number):
        if row.object is None and row.stored != row.length:
            yield f"a tile of {row.name!r} has {row.stored} bytes, its row says {row.length}"
        if row.kind in (STAT, HISTOGRAM) and row.part * TILE_SERIES >= len(names):
            yield f"has a tile of {row.name!r} beyond its {len(names)} tensors"
    scalars = {name for makeup in known[0].makeup for name in makeup.scalars}
    for scalar in tiles.scalars(c, at.run, at.rank, scalars, [chunk], objects=objects):
        if scalar.values.shape != (chunk.rows,):
            yield f"{scalar.name!r} has {len(scalar.values)} values for {chunk.rows} steps"
    stats = {name for makeup in known[0].makeup for name in makeup.stats}
    for tile in tiles.stats(c, at.run, at.rank, stats, [chunk], objects=objects):
        expected = (min(TILE_SERIES, len(names) - tile.part * TILE_SERIES), chunk.stat_rows)
        if tile.values.shape != expected:
            yield f"{tile.name!r} part {tile.part} has the shape {tile.values.shape}, expected {expected}"
    for hist in tiles.histograms(c, at.run, at.rank, [chunk], objects=objects):
        expected = (min(TILE_SERIES, len(names) - hist.part * TILE_SERIES), chunk.hist_rows)
        if hist.counts.shape[:2] != expected:
            yield f"histograms part {hist.part} have the shape {hist.counts.shape}, expected {expected}"


def _steps(known: ChunkRows, chunk: Chunk, members: Sequence[Row[Any]]) -> Iterator[str]:
    counts = (len(known.step), len(known.time), len(known.stat_row), len(known.hist_row), len(known.makeup))
    expected = (chunk.rows, chunk.rows, chunk.stat_rows, chunk.hist_rows, len(members))
    if counts != expected:
        yield f"has {counts} steps, times, rows of statistics, of histograms, batches; expected {expected}"
        return
    row = 0
    for member in members:
        step = known.step[row : row + member.rows]
        if (int(step[0]), int(step[-1])) != (member.first_step, member.last_step):
            yield f"batch {member.seq} has other steps than its row says"
        row += member.rows
    if (np.diff(known.step) <= 0).any():
        yield "its steps are not in order"


def _levels(
    c: Connection, at: Where, chunk: Chunk, objects: Objects | None, *, anew: bool
) -> Iterator[str | None]:
    """One item per level: what is wrong with it, or None."""
    (known,) = tiles.rows(c, at.run, at.rank, [chunk], objects=objects)
    widths = {SCALARS: chunk.widths, STAT: chunk.stat_widths, DERIVED: chunk.stat_widths}
    of: tuple[int, str, int] | None = None
    series: _Series | None = None
    for row in checking.level_rows(c, at, chunk.number):
        named = f"level {row.width} of {row.name!r} part {row.part}"
        level = unpack_level(row.data)
        if row.width not in widths.get(row.kind, ()) or level.width != row.width:
            yield f"{named} is not among its widths"
            continue
        if not anew or row.kind == DERIVED:
            yield None
            continue
        if of != (row.kind, row.name, row.part):
            of, series = (row.kind, row.name, row.part), _series(c, at, chunk, known, row, objects)
        if series is None:
            yield f"{named} has no tile"
        else:
            made = levels.summarise(
                series.step, series.values.T, None if series.present is None else series.present.T, row.width
            )
            yield None if _same(level, made) else f"{named} is not what its tiles say"


def _series(
    c: Connection, at: Where, chunk: Chunk, known: ChunkRows, row: Row[Any], objects: Objects | None
) -> _Series | None:
    if row.kind == SCALARS:
        for scalar in tiles.scalars(c, at.run, at.rank, [row.name], [chunk], objects=objects):
            there = None if scalar.present is None else scalar.present[None]
            return _Series(known.step, scalar.values[None], there)
        return None
    per_level = LEVEL_SERIES // TILE_SERIES
    first = row.part * per_level
    found = {
        tile.part: tile
        for tile in tiles.stats(
            c,
            at.run,
            at.rank,
            [row.name],
            [chunk],
            parts={chunk.number: range(first, first + per_level)},
            objects=objects,
        )
    }
    if not found:
        return None
    size = max(found) * TILE_SERIES + len(found[max(found)].values) - first * TILE_SERIES
    values = np.zeros((size, chunk.stat_rows), np.float32)
    present = np.zeros(values.shape, bool)
    for part, tile in found.items():
        to = slice((part - first) * TILE_SERIES, (part - first) * TILE_SERIES + len(tile.values))
        values[to] = tile.values
        present[to] = True if tile.present is None else tile.present
    return _Series(known.step[known.stat_row], values, present)


def _same(stored: Level, made: Level) -> bool:
    """Stored may have more series: those at the end that no tile holds have no value."""
    if not np.array_equal(stored.bins, made.bins):
        return False
    size = len(made.count)
    if len(stored.count) < size or stored.count[size:].any():
        return False
    for name in ("minimum", "maximum", "count", "nan", "inf", "last"):
        left, right = getattr(stored, name), getattr(made, name)
        if left is not None and not np.array_equal(left[:size], right, equal_nan=True):
            return False
    if stored.mean is None or made.mean is None:
        return True
    largest = np.fmax(np.abs(made.minimum), np.abs(made.maximum)).astype(np.float64)
    left, right = stored.mean[:size], made.mean
    near = np.abs(left - right) <= NEAR * np.where(np.isnan(largest), 0.0, largest)
    return bool((near | (np.isnan(left) & np.isnan(right))).all())

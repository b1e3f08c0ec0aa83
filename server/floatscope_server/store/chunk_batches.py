"""Batches out of chunks, bit for bit as they were stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from floatscope.protocol.batch import Batch, Bool, Float32, Float64, Int64
from floatscope.protocol.names import HIST_BINS
from floatscope_server import tables
from floatscope_server.store import tiles
from floatscope_server.store.chunks import Chunk
from floatscope_server.store.kinds import TILE_SERIES
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import ChunkRows, Makeup, Objects

_batch = tables.batch


@dataclass(frozen=True, eq=False)
class Member:
    """One batch of a chunk: which rows, statistics' rows and histograms' rows of the chunk are its own."""

    seq: int
    tensor_table: int | None
    makeup: Makeup
    rows: slice
    stat_rows: slice
    hist_rows: slice


def members(c: Connection, run: int, found: ChunkRows) -> list[Member]:
    """The batches of a chunk that have rows, in order of seq."""
    chunk = found.chunk
    query = (
        select(_batch.c.seq, _batch.c.rows, _batch.c.tensor_table)
        .where(_batch.c.run == run, _batch.c.rank == chunk.rank, _batch.c.lost.is_(False))
        .where(_batch.c.seq.between(chunk.first_seq, chunk.number))
        .order_by(_batch.c.seq)
    )
    out, row = [], 0
    for (seq, count, table), makeup in zip(c.execute(query), found.makeup, strict=True):
        end = row + count
        stat, hist = (np.searchsorted(rows, (row, end)) for rows in (found.stat_row, found.hist_row))
        out.append(
            Member(seq, table, makeup, slice(row, end), slice(*map(int, stat)), slice(*map(int, hist)))
        )
        row = end
    return out


def cut(
    c: Connection,
    run: int,
    chunk: Chunk,
    *,
    first_seq: int,
    most_bytes: int,
    tensor_tables: TensorTables,
    objects: Objects | None = None,
    tensors: bool = True,
) -> dict[int, Batch]:
    """The chunk's batches from ``first_seq`` on, as many as fit into so many bytes, and at least one.

    tensors: False leaves out statistics and histograms, which are then not decoded.
    """
    (found,) = tiles.rows(c, run, chunk.rank, [chunk], objects=objects)
    table = chunk.tensor_table
    names = tensor_tables.get(c, table).names if tensors and table is not None else ()
    wanted: list[Member] = []
    size = 0
    for member in members(c, run, found):
        if member.seq >= first_seq:
            size += _bytes(member, len(names))
            if wanted and size > most_bytes:
                break
            wanted.append(member)
    window = _Window(c, run, chunk, wanted, names, objects)
    return {
        m.seq: window.batch(
            m,
            found,
            () if not tensors or m.tensor_table is None else tensor_tables.get(c, m.tensor_table).names,
        )
        for m in wanted
    }


class _Window:
    """The numbers of some consecutive batches of a chunk, decoded, time-major."""

    def __init__(
        self,
        c: Connection,
        run: int,
        chunk: Chunk,
        wanted: Sequence[Member],
        names: tuple[str, ...],
        objects: Objects | None,
    ) -> None:
        self.column = {name: s for s, name in enumerate(names)}
        self.names = names
        self.rows, self.stat_rows, self.hist_rows = (
            slice(getattr(wanted[0], of).start, getattr(wanted[-1], of).stop)
            for of in ("rows", "stat_rows", "hist_rows")
        )
        scalar_names = {name for m in wanted for name in m.makeup.scalars}
        self.scalars: dict[str, tuple[Float64, Bool]] = {}
        for s in tiles.scalars(c, run, chunk.rank, scalar_names, [chunk], objects=objects):
            there = np.ones(s.values.shape, bool) if s.present is None else s.present
            self.scalars[s.name] = (s.values[self.rows], there[self.rows])
        shape = (self.stat_rows.stop - self.stat_rows.start, len(names))
        self.stats: dict[str, tuple[Float32, Bool]] = {}
        stat_names = {name for m in wanted for name in m.makeup.stats}
        for name in sorted(stat_names) if names else ():
            values, present = np.zeros(shape, np.float32), np.zeros(shape, bool)
            for t in tiles.stats(c, run, chunk.rank, [name], [chunk], objects=objects):
                columns = slice(t.part * TILE_SERIES, t.part * TILE_SERIES + len(t.values))
                values[:, columns] = t.values[:, self.stat_rows].T
                present[:, columns] = True if t.present is None else t.present[:, self.stat_rows].T
            self.stats[name] = (values, present)
        self.hist = tiles.no_histograms(self.hist_rows.stop - self.hist_rows.start, len(names))
        if self.hist.size:
            for h in tiles.histograms(c, run, chunk.rank, [chunk], objects=objects):
                columns = slice(h.part * TILE_SERIES, h.part * TILE_SERIES + len(h.counts))
                self.hist[:, columns] = h.counts[:, self.hist_rows].swapaxes(0, 1)

    def batch(self, m: Member, found: ChunkRows, names: tuple[str, ...]) -> Batch:
        rows = _inside(m.rows, self.rows)
        scalars = np.zeros((rows.stop - rows.start, len(m.makeup.scalars)))
        scalars_present = np.zeros(scalars.shape, bool)
        for k, name in enumerate(m.makeup.scalars):
            if name in self.scalars:
                scalars[:, k], scalars_present[:, k] = (part[rows] for part in self.scalars[name])
        columns: slice | Int64 = slice(None)
        if names != self.names:
            columns = np.array([self.column[name] for name in names], np.int64)
        stat_rows = _inside(m.stat_rows, self.stat_rows)
        empty = np.zeros((stat_rows.stop - stat_rows.start, 0))
        stats: dict[str, Float32] = {}
        present: dict[str, Bool] = {}
        for name in m.makeup.stats:
            if name in self.stats:
                values, mask = self.stats[name]
                stats[name], present[name] = values[stat_rows][:, columns], mask[stat_rows][:, columns]
            else:
                stats[name], present[name] = empty.astype(np.float32), empty.astype(bool)
        return Batch(
            step=found.step[m.rows],
            time=found.time[m.rows],
            scalar_names=m.makeup.scalars,
            scalars=scalars,
            scalars_present=scalars_present,
            tensor_names=names,
            stat_row=found.stat_row[m.stat_rows] - m.rows.start,
            stats=stats,
            stats_present=present,
            hist_row=found.hist_row[m.hist_rows] - m.rows.start,
            hist_log2=self._hist(_inside(m.hist_rows, self.hist_rows), columns, len(names)),
        )

    def _hist(self, rows: slice, columns: slice | Int64, count: int) -> NDArray[np.uint32]:
        if rows.stop == rows.start or not count:
            return tiles.no_histograms(rows.stop - rows.start, count)
        return self.hist[rows][:, columns]


def _inside(part: slice, window: slice) -> slice:
    return slice(part.start - window.start, part.stop - window.start)


def _bytes(member: Member, columns: int) -> int:
    """About what the batch takes once it is decoded: values and presence."""
    parts = (member.rows, member.stat_rows, member.hist_rows)
    rows, stat_rows, hist_rows = (int(part.stop - part.start) for part in parts)
    scalars = rows * (9 * len(member.makeup.scalars) + 16)
    return scalars + columns * (5 * stat_rows * len(member.makeup.stats) + 4 * HIST_BINS * hist_rows)

"""The columns of a chunk: blocks of batches and tiles of an older chunk put together, series by series. Pure.

One statistic is held at a time, time-major, as blocks are; tiles and levels are cut from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Bool, Float32, Float64, Int64
from floatscope.protocol.names import HIST_BINS
from floatscope_server.codec import unpack
from floatscope_server.levels import Level, is_thin, merge, summarise
from floatscope_server.store.blocks import scalar_block, stat_block
from floatscope_server.store.kinds import LEVEL_SERIES, TILE_SERIES
from floatscope_server.store.tiles import HistogramTile, Makeup, ScalarTile, StatTile, pack_series

Columns = slice | Int64
GROUP_SERIES = 3 * LEVEL_SERIES


@dataclass(frozen=True, eq=False)
class Piece:
    """One batch in the chunk: its rows, and the columns of the chunk that its tensors are."""

    rows: slice
    stat_rows: slice
    hist_rows: slice
    columns: Columns
    all_columns: bool


@dataclass(frozen=True, eq=False)
class Layout:
    """The rows and columns of a chunk to be, and where its batches are in it.

    pieces: seq -> piece, of the batches that come from hot blocks. merged: that of the chunk taken in.
    """

    step: Int64
    time: Float64
    stat_row: Int64
    hist_row: Int64
    makeup: tuple[Makeup, ...]
    names: tuple[str, ...]
    pieces: Mapping[int, Piece]
    merged: Piece | None

    @property
    def stat_step(self) -> Int64:
        return self.step[self.stat_row]


@dataclass(frozen=True, eq=False)
class Source:
    """What is known of a batch or of the chunk taken in before its series are read. seq: None for that."""

    seq: int | None
    step: Int64
    time: Float64
    stat_row: Int64
    hist_row: Int64
    makeup: tuple[Makeup, ...]
    names: tuple[str, ...]


def layout(sources: Sequence[Source]) -> Layout:
    """The chunk of these batches, in order of seq."""
    one_table = all(source.names == sources[0].names for source in sources)
    names = sources[0].names if one_table else tuple(sorted({n for s in sources for n in s.names}))
    place = {} if one_table else {name: i for i, name in enumerate(names)}
    pieces: dict[int, Piece] = {}
    merged = None
    row = stat = hist = 0
    stat_rows, hist_rows = [], []
    for source in sources:
        ends = row + len(source.step), stat + len(source.stat_row), hist + len(source.hist_row)
        whole = source.names == names
        columns = slice(None) if whole else np.array([place[n] for n in source.names], np.int64)
        piece = Piece(slice(row, ends[0]), slice(stat, ends[1]), slice(hist, ends[2]), columns, whole)
        if source.seq is None:
            merged = piece
        else:
            pieces[source.seq] = piece
        stat_rows.append(source.stat_row + row)
        hist_rows.append(source.hist_row + row)
        row, stat, hist = ends
    return Layout(
        step=np.concatenate([source.step for source in sources]),
        time=np.concatenate([source.time for source in sources]),
        stat_row=np.concatenate(stat_rows),
        hist_row=np.concatenate(hist_rows),
        makeup=tuple(makeup for source in sources for makeup in source.makeup),
        names=names,
        pieces=pieces,
        merged=merged,
    )


def scalar_columns(
    at: Layout, blocks: Iterable[tuple[int, bytes]], merged: Iterable[ScalarTile]
) -> dict[str, tuple[Float64, Bool]]:
    """name -> values [T] and presence [T] of every scalar that has a value."""
    out: dict[str, tuple[Float64, Bool]] = {}

    def column(name: str) -> tuple[Float64, Bool]:
        return out.setdefault(name, (np.zeros(len(at.step)), np.zeros(len(at.step), bool)))

    for tile in merged:
        assert at.merged is not None
        values, present = column(tile.name)
        values[at.merged.rows] = tile.values
        present[at.merged.rows] = True if tile.present is None else tile.present
    for seq, data in blocks:
        if seq not in at.pieces:
            continue
        names, numbers, there = scalar_block(data)
        rows = at.pieces[seq].rows
        for k in np.flatnonzero(there.any(axis=0)):
            values, present = column(names[k])
            values[rows], present[rows] = numbers[:, k], there[:, k]
    return out


def stat_columns(
    at: Layout, blocks: Iterable[tuple[int, bytes]], merged: Iterable[StatTile]
) -> tuple[Float32, Bool]:
    """Values [D, S] and presence [D, S] of one statistic."""
    shape = (len(at.stat_row), len(at.names))
    values, present = np.zeros(shape, np.float32), np.zeros(shape, bool)
    for tile in merged:
        assert at.merged is not None
        place = _tile_columns(at.merged, tile.part, len(tile.values))
        values[at.merged.stat_rows, place] = tile.values.T
        present[at.merged.stat_rows, place] = True if tile.present is None else tile.present.T
    for seq, data in blocks:
        if seq in at.pieces:
            piece = at.pieces[seq]
            numbers, there = stat_block(data)
            values[piece.stat_rows, piece.columns] = numbers
            present[piece.stat_rows, piece.columns] = there
    return values, present


def histogram_columns(
    at: Layout, blocks: Iterable[tuple[int, bytes]], merged: Iterable[HistogramTile]
) -> tuple[NDArray[np.uint32], Bool]:
    """Counts [H, S, 64], and which tensors [H, S] belonged to the batch."""
    shape = (len(at.hist_row), len(at.names))
    counts, present = np.zeros((*shape, HIST_BINS), np.uint32), np.zeros(shape, bool)
    for tile in merged:
        assert at.merged is not None
        place = _tile_columns(at.merged, tile.part, len(tile.counts))
        counts[at.merged.hist_rows, place] = tile.counts.swapaxes(0, 1)
        present[at.merged.hist_rows, place] = tile.present.T
    for seq, data in blocks:
        if seq in at.pieces:
            piece = at.pieces[seq]
            (numbers,) = unpack(data)
            counts[piece.hist_rows, piece.columns] = numbers
            present[piece.hist_rows, piece.columns] = True
    return counts, present


def tile_parts(values: NDArray[Any], present: Bool) -> Iterator[tuple[int, bytes]]:
    """(part, bytes) of the tiles of time-major values [T, S, ...]; parts without any value are left out."""
    for part, start in enumerate(range(0, values.shape[1], TILE_SERIES)):
        there = present[:, start : start + TILE_SERIES]
        if there.any():
            # two copies, since one across rows that lie far apart misses the cache at every value
            near = np.ascontiguousarray(values[:, start : start + TILE_SERIES])
            yield part, pack_series(near.swapaxes(0, 1), there.T)


def level_parts(
    step: Int64, values: NDArray[Any], present: Bool, widths: Sequence[int]
) -> Iterator[tuple[int, Level]]:
    """(part, level) of every width, of time-major values [T, S]; parts without any value are left out."""
    parts = range(0, values.shape[1], LEVEL_SERIES)
    filled = [part for part, start in enumerate(parts) if present[:, start : start + LEVEL_SERIES].any()]
    for level in levels_of(step, values, present, widths):
        for part in filled:
            yield part, level.series(part * LEVEL_SERIES, (part + 1) * LEVEL_SERIES)


def column_groups(at: Layout) -> Iterator[slice]:
    """Columns in groups of whole parts of levels. Wide ones are quicker, narrow ones take less memory."""
    for start in range(0, len(at.names), GROUP_SERIES):
        yield slice(start, start + GROUP_SERIES)


def levels_of(step: Int64, values: NDArray[Any], present: Bool, widths: Sequence[int]) -> Iterator[Level]:
    """The levels of some series, each made from the one below; none if there is no value at all."""
    if not widths or not present.any():
        return
    level = summarise(step, values, None if present.all() else present, widths[0])
    for width in widths:
        if width != level.width:
            level = merge([level], width)
        thin = is_thin(len(step), len(level.bins))
        yield replace(level, mean=None, last=None) if thin else level


def _tile_columns(piece: Piece, part: int, count: int) -> Columns:
    columns = slice(part * TILE_SERIES, part * TILE_SERIES + count)
    return columns if isinstance(piece.columns, slice) else piece.columns[columns]

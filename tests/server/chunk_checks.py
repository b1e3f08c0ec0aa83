"""What chunks must say, found by looking at every value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select

from floatscope.protocol.batch import Batch, Bool, Int64
from floatscope_server import tables
from floatscope_server.derived import DERIVED, combine, needs
from floatscope_server.levels import Level, is_thin, widths
from floatscope_server.store import chunks, hot, runs, tiles
from floatscope_server.store.chunks import Chunk
from floatscope_server.store.kinds import DERIVED as DERIVED_KIND
from floatscope_server.store.kinds import LEVEL_SERIES, SCALARS, STAT, TILE_SERIES
from tests.server.compacting import Story, equal

Column = tuple[NDArray[Any], Bool]


def check_chunks(story: Story, *, ranks: int = 1, nothing_hot: bool = False) -> None:
    """Chunks hold whole batches of one segment in order; tiles, levels, counts are those of the batches."""
    size = 0
    for rank in range(ranks):
        with story.database.read() as c:
            found = chunks.of_rank(c, story.run, rank)
            state = hot.state(c, story.run, rank)
        if state is None:
            assert not found
            continue
        at = 0
        for chunk in found:
            assert at <= chunk.first_seq <= chunk.number
            check_chunk(story, chunk)
            at = chunk.number + 1
        assert at <= state.chunked_seq
        left = [b for (r, seq), (b, _s) in story.sent.items() if r == rank and seq >= state.chunked_seq]
        assert state.hot_rows == sum(len(batch) for batch in left)
        assert not (nothing_hot and left)
        assert not state.claimed
        _check_nothing_left_over(story, rank, {chunk.number for chunk in found}, state.chunked_seq)
        size += sum(chunk.bytes for chunk in found)
    with story.database.read() as c:
        total = select(func.sum(func.length(tables.block.c.data))).where(tables.block.c.run == story.run)
        blocks = c.execute(total).scalar() or 0
        listed = c.execute(select(tables.run.c.bytes).where(tables.run.c.id == story.run)).scalar()
    assert listed == size + blocks


def _check_nothing_left_over(story: Story, rank: int, numbers: set[int], chunked_seq: int) -> None:
    with story.database.read() as c:
        block = tables.block.c
        blocks = select(func.count()).where(
            block.run == story.run, block.rank == rank, block.seq < chunked_seq
        )
        assert c.execute(blocks).scalar() == 0
        for table in (tables.tile, tables.level):
            query = select(table.c.chunk).where(table.c.run == story.run, table.c.rank == rank).distinct()
            assert set(c.execute(query).scalars()) <= numbers


def check_chunk(story: Story, chunk: Chunk) -> None:
    sent = [
        (batch, segment)
        for (rank, seq), (batch, segment) in story.sent.items()
        if rank == chunk.rank and chunk.first_seq <= seq <= chunk.number
    ]
    assert {segment for _batch, segment in sent} == {chunk.segment}
    parts = [batch for batch, _segment in sent if batch.lost is None]
    step = np.concatenate([batch.step for batch in parts])
    starts = np.cumsum([0, *map(len, parts)])
    stat_row = np.concatenate([b.stat_row + start for b, start in zip(parts, starts, strict=False)])
    assert (chunk.rows, chunk.first_step, chunk.last_step) == (len(step), step[0], step[-1])
    assert chunk.stat_rows == len(stat_row)
    assert chunk.hist_rows == sum(len(batch.hist_row) for batch in parts)
    assert chunk.widths == widths(step)
    assert chunk.stat_widths == widths(step[stat_row])
    names = sorted({name for batch in parts for name in batch.tensor_names})
    with story.database.read() as c:
        if chunk.tensor_table is not None:
            assert list(story.tables.get(c, chunk.tensor_table).names) == names
        else:
            assert not names
    for name in {name for batch in parts for name in batch.scalar_names}:
        _check_series(story, chunk, SCALARS, name, step, _scalar(parts, name), chunk.widths)
    stats = {
        name: _stat(parts, name, names, len(stat_row))
        for name in sorted({name for batch in parts for name in batch.stats})
    }
    if not names:
        return
    for name, column in stats.items():
        _check_tiles(story, chunk, name, column)
        if name not in DERIVED:
            _check_series(story, chunk, STAT, name, step[stat_row], column, chunk.stat_widths)
    with story.database.read() as c:
        described = runs.info(c, story.run).tensors
    for name in DERIVED:
        made = combine(name, {n: stats[n] for n in needs(name, list(stats))}, names, described)
        if made is not None:
            _check_series(story, chunk, DERIVED_KIND, name, step[stat_row], made, chunk.stat_widths)


def _check_tiles(story: Story, chunk: Chunk, name: str, column: Column) -> None:
    values, present = column
    seen = np.zeros(present.shape, bool)
    with story.database.read() as c:
        for tile in tiles.stats(c, story.run, chunk.rank, [name], [chunk], objects=story.objects):
            part = slice(tile.part * TILE_SERIES, (tile.part + 1) * TILE_SERIES)
            equal(tile.values, values[:, part].T)
            there = np.ones(tile.values.shape, bool) if tile.present is None else tile.present
            equal(there, present[:, part].T)
            seen[:, part] = True
    assert not (present & ~seen).any()


def _check_series(
    story: Story,
    chunk: Chunk,
    kind: int,
    name: str,
    step: Int64,
    column: Column,
    stored: tuple[int, ...],
) -> None:
    values, present = column
    for width in stored:
        seen = np.zeros(present.shape, bool)
        with story.database.read() as c:
            for _number, part, level in chunks.levels(
                c, story.run, chunk.rank, kind, name, width, chunks=[chunk]
            ):
                columns = slice(part * LEVEL_SERIES, (part + 1) * LEVEL_SERIES)
                check_level(level, step, values[:, columns], present[:, columns])
                assert (level.mean is None) == is_thin(len(step), len(level.bins))
                seen[:, columns] = True
        assert not (present & ~seen).any()


def check_level(level: Level, step: Int64, values: NDArray[Any], present: Bool) -> None:
    """Every bin of every series against its values."""
    number = step // level.width
    assert level.bins.tolist() == sorted(set(number.tolist()))
    for b, wanted in enumerate(level.bins):
        rows = number == wanted
        for s in range(values.shape[1]):
            inside = values[rows, s][present[rows, s]]
            finite = inside[np.isfinite(inside)]
            assert level.count[s, b] == len(inside)
            assert level.nan[s, b] == np.isnan(inside).sum()
            assert level.inf[s, b] == np.isinf(inside).sum()
            none = not len(finite)
            assert np.isnan(level.minimum[s, b]) if none else level.minimum[s, b] == finite.min()
            assert np.isnan(level.maximum[s, b]) if none else level.maximum[s, b] == finite.max()
            if level.mean is not None and level.last is not None:
                mean = np.nan if none else finite.astype(np.float64).mean()
                np.testing.assert_allclose(level.mean[s, b], mean, rtol=1e-9, atol=1e-12 * 1e30)
                np.testing.assert_equal(level.last[s, b], np.nan if none else finite[-1])


def _scalar(parts: list[Batch], name: str) -> Column:
    columns = [batch.scalar(name) for batch in parts]
    return (
        np.concatenate([values for values, _present in columns])[:, None],
        np.concatenate([present for _values, present in columns])[:, None],
    )


def _stat(parts: list[Batch], name: str, names: list[str], rows: int) -> Column:
    values, present = np.zeros((rows, len(names)), np.float32), np.zeros((rows, len(names)), bool)
    row = 0
    for batch in parts:
        columns = [names.index(tensor) for tensor in batch.tensor_names]
        numbers, there = batch.stat(name)
        values[row : row + len(numbers), columns] = numbers
        present[row : row + len(numbers), columns] = there
        row += len(numbers)
    return values, present

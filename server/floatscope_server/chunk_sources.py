"""Looks at a rank's hot batches: which of them become chunks now, and the rows of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from floatscope_server.chunk_columns import Source
from floatscope_server.chunk_plan import Content, HotBatch, Limits, Plan, plans
from floatscope_server.codec import unpack
from floatscope_server.store import batches, blocks, chunks, hot, kinds, tiles
from floatscope_server.store.chunks import Chunk
from floatscope_server.store.hot import HotKey
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Makeup

MOST_BATCHES = 4096  # looked at together


@dataclass(frozen=True, eq=False)
class Work:
    """A chunk to make. sources: its batches, after the chunk that is taken in. tables: ids of their tensor
    tables.
    """

    plan: Plan
    sources: tuple[Source, ...]
    tables: tuple[int, ...]
    from_seq: int


def look(
    c: Connection,
    run: int,
    rank: int,
    *,
    from_seq: int,
    whole: bool,
    tensor_tables: TensorTables,
    limits: Limits,
) -> list[Work]:
    """What to make of the hot batches from ``from_seq`` on; empty if there is nothing to do.

    whole: see ``chunk_plan.plans``.
    """
    keys = hot.keys(c, run, rank, from_seq, most=MOST_BATCHES)
    if not keys:
        return []
    tables = _Tables(c, tensor_tables)
    sources = _sources(c, run, rank, keys, tables)
    found = [
        HotBatch(
            key.seq, key.segment, key.tensor_table, _content(sources.get(key.seq), key.tensor_table, tables)
        )
        for key in keys
    ]
    taken_in = _small_chunk(c, run, rank, from_seq, tables, limits)
    before = None if taken_in is None else (taken_in[0], taken_in[2])
    made = list(plans(found, before, whole=whole and len(keys) < MOST_BATCHES, limits=limits))
    if not made and len(keys) == MOST_BATCHES:
        made = list(plans(found, before, whole=True, limits=limits))
    out = []
    for plan in made:
        parts = [sources[b.seq] for b in plan.batches if b.seq in sources]
        ids = [b.tensor_table for b in plan.batches]
        if plan.merged is not None and taken_in is not None:
            parts.insert(0, taken_in[1])
            ids.insert(0, plan.merged.tensor_table)
        used = tuple(dict.fromkeys(table for table in ids if table is not None))
        out.append(Work(plan, tuple(parts), used, from_seq))
        from_seq = plan.number + 1
    return out


class _Tables:
    """Names of tensor tables; one set for each, so that equal ones are seen to be equal at once."""

    def __init__(self, c: Connection, tensor_tables: TensorTables) -> None:
        self._c = c
        self._tensor_tables = tensor_tables
        self._sets: dict[int | None, frozenset[str]] = {None: frozenset()}

    def names(self, table: int | None) -> tuple[str, ...]:
        return () if table is None else self._tensor_tables.get(self._c, table).names

    def set_of(self, table: int | None) -> frozenset[str]:
        if table not in self._sets:
            self._sets[table] = frozenset(self.names(table))
        return self._sets[table]


def _sources(c: Connection, run: int, rank: int, keys: list[HotKey], tables: _Tables) -> Mapping[int, Source]:
    wanted = {key.seq: key for key in keys if not key.lost}
    first, last = keys[0].seq, keys[-1].seq
    stats = hot.stat_names(c, run, rank, batches.stat_names(c, run), first, last)
    scalars = {
        seq: blocks.scalar_names(data)
        for seq, data in blocks.each(c, run, rank, kinds.SCALARS, first_seq=first, last_seq=last)
    }
    out = {}
    for seq, data in blocks.each(c, run, rank, kinds.ROWS, first_seq=first, last_seq=last):
        if seq in wanted:
            step, time, stat_row, hist_row = unpack(data)
            makeup = Makeup(scalars[seq], tuple(sorted(stats.get(seq, ()))))
            names = tables.names(wanted[seq].tensor_table)
            out[seq] = Source(seq, step, time, stat_row, hist_row, (makeup,), names)
    return out


def _small_chunk(
    c: Connection, run: int, rank: int, before_seq: int, tables: _Tables, limits: Limits
) -> tuple[Chunk, Source, Content] | None:
    """The chunk right before, if it is so small that it may be taken into the next."""
    chunk = chunks.before(c, run, rank, before_seq)
    if chunk is None or chunk.rows > limits.merged_rows:
        return None
    (found,) = tiles.rows(c, run, rank, [chunk])
    names = tables.names(chunk.tensor_table)
    source = Source(None, found.step, found.time, found.stat_row, found.hist_row, found.makeup, names)
    content = _content(source, chunk.tensor_table, tables)
    assert content is not None
    return chunk, source, content


def _content(source: Source | None, table: int | None, tables: _Tables) -> Content | None:
    if source is None:
        return None
    return Content(
        rows=len(source.step),
        stat_rows=len(source.stat_row),
        hist_rows=len(source.hist_row),
        tensors=tables.set_of(table),
        stats=frozenset(name for makeup in source.makeup for name in makeup.stats),
        scalars=frozenset(name for makeup in source.makeup for name in makeup.scalars),
    )

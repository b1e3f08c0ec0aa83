"""Batches: what makes every one of them count exactly once."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from floatscope.protocol import strict_json
from floatscope.protocol.batch import Batch, lost_batch
from floatscope_server import tables
from floatscope_server.database import upsert
from floatscope_server.errors import Damaged
from floatscope_server.store import blocks, chunk_batches, chunks, damage, frames, kinds, runs, tiles
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects

_batch = tables.batch
KEYS_AT_ONCE = 1024
LATEST_S = 32_503_680_000.0
"""Unix seconds, the year 3000: what a sender says is later, such as milliseconds, is no time of a step."""


@dataclass(frozen=True)
class BatchKey:
    """A stored batch without its numbers."""

    rank: int
    seq: int
    arrival: int
    segment: int
    rows: int
    first_step: int
    last_step: int
    lost: bool
    tensor_table: int | None
    judged: bool


def digest(c: Connection, run: int, rank: int, seq: int) -> tuple[bytes, int] | None:
    """SHA-256 of the body stored under this seq and its segment, or None."""
    query = select(_batch.c.digest, _batch.c.segment).where(
        _batch.c.run == run, _batch.c.rank == rank, _batch.c.seq == seq
    )
    row = c.execute(query).first()
    return None if row is None else (bytes(row.digest), row.segment)


@dataclass(frozen=True)
class Packed:
    """The numbers of a batch as they are stored."""

    blocks: Sequence[blocks.Block]
    frame: frames.Packed | None
    series: Collection[tuple[int, str]]


def packed(batch: Batch) -> Packed:
    """What ``write`` stores of a batch. It takes longer than storing it, so it is made before the transaction
    begins, which others wait for.
    """
    return Packed(blocks.compressed(batch), frames.packed(batch), blocks.series_of(batch))


def write(
    c: Connection,
    run: int,
    key: BatchKey,
    numbers: Packed,
    *,
    digest: bytes,
    received: float,
    glance: dict[str, float],
) -> int | None:
    """Stores the batch with its blocks and returns their bytes; None, and nothing stored, if this seq is
    there already.
    """
    values = {name: getattr(key, name) for name in BatchKey.__dataclass_fields__}
    statement = upsert(c, _batch).values(
        run=run, digest=digest, received=received, glance_json=strict_json.dumps(glance), **values
    )
    if c.execute(statement.on_conflict_do_nothing().returning(_batch.c.seq)).first() is None:
        return None
    size = blocks.write(c, run, key.rank, key.seq, numbers.blocks)
    table, frame = key.tensor_table, numbers.frame
    if table is not None and frame is not None:
        frames.write(c, run, key.rank, key.seq, segment=key.segment, tensor_table=table, frame=frame)
    runs.add_series(c, run, key.rank, numbers.series)
    return size


def keys(
    c: Connection,
    run: int,
    *,
    rank: int | None = None,
    after_arrival: int = 0,
    first_step: int | None = None,
    last_step: int | None = None,
    limit: int | None = None,
) -> list[BatchKey]:
    """Batches in order of arrival: of one rank or all, stored after an arrival, touching a range of steps; at
    most ``limit``.
    """
    columns = [_batch.c[name] for name in BatchKey.__dataclass_fields__]
    query = select(*columns).where(_batch.c.run == run).order_by(_batch.c.arrival).limit(limit)
    if rank is not None:
        query = query.where(_batch.c.rank == rank)
    if after_arrival:
        query = query.where(_batch.c.arrival > after_arrival)
    if first_step is not None:
        query = query.where(_batch.c.last_step >= first_step)
    if last_step is not None:
        query = query.where(_batch.c.first_step <= last_step)
    return [BatchKey(*row) for row in c.execute(query)]


def arrived(
    c: Connection, run: int, *, after: int, until: int, rank: int | None = None, at_once: int = KEYS_AT_ONCE
) -> Iterator[BatchKey]:
    """Batches that were stored after an arrival, and at the latest as that numbered ``until``, in order."""
    while found := keys(c, run, rank=rank, after_arrival=after, limit=at_once):
        for key in found:
            if key.arrival > until:
                return
            yield key
        after = found[-1].arrival


def judged_rows(c: Connection, run: int, *, after: int, until: int) -> int:
    """Rows of the batches between two arrivals, as in ``arrived``, that the diagnosis did not fail on."""
    query = select(func.coalesce(func.sum(_batch.c.rows), 0)).where(
        _batch.c.run == run, _batch.c.arrival > after, _batch.c.arrival <= until, _batch.c.judged
    )
    return int(c.execute(query).scalar_one())


def load(
    c: Connection,
    run: int,
    key: BatchKey,
    *,
    tensor_tables: TensorTables,
    stats: list[str],
    objects: Objects | None = None,
) -> Batch:
    """The batch behind a key, bit for bit. ``stats``: every statistic the run may have (``stat_names``).

    Who reads many uses ``store.sequence``: out of a chunk, one batch costs about as much as all.
    """
    if key.lost:
        return lost_batch(key.first_step, key.last_step)
    chunk = chunks.of_seq(c, run, key.rank, key.seq)
    if chunk is not None:
        return chunk_batches.cut(
            c, run, chunk, first_seq=key.seq, most_bytes=0, tensor_tables=tensor_tables, objects=objects
        )[key.seq]
    names = () if key.tensor_table is None else tensor_tables.get(c, key.tensor_table).names
    return blocks.read(c, run, key.rank, key.seq, stats=stats, tensor_names=names)


def stat_names(c: Connection, run: int) -> list[str]:
    """Every statistic the run has a block of."""
    query = (
        select(tables.series.c.name)
        .where(tables.series.c.run == run, tables.series.c.kind == kinds.STAT)
        .distinct()
    )
    return sorted(c.execute(query).scalars())


def count(c: Connection, run: int, rank: int) -> int:
    """Batches of a rank, holes included."""
    query = select(func.count()).select_from(_batch).where(_batch.c.run == run, _batch.c.rank == rank)
    return int(c.execute(query).scalar_one())


def glances(
    c: Connection, run: int, rank: int, *, points: int
) -> Iterator[tuple[int, int, dict[str, float]]]:
    """(first step, last step, glance) of evenly spaced batches of a rank, at most about ``points`` and
    always the last.
    """
    top = c.execute(
        select(func.max(_batch.c.seq)).where(
            _batch.c.run == run, _batch.c.rank == rank, _batch.c.lost.is_(False)
        )
    ).scalar()
    if top is None:
        return
    every = -(-(top + 1) // points)
    query = (
        select(_batch.c.first_step, _batch.c.last_step, _batch.c.glance_json)
        .where(_batch.c.run == run, _batch.c.rank == rank, _batch.c.lost.is_(False))
        .where(_batch.c.seq.in_({*range(0, top + 1, every), top}))  # found by their keys, not among all
        .order_by(_batch.c.seq)
    )
    for first, last, text in c.execute(query):
        with damage.reading(f"key figures of rank {rank} at steps {first} to {last}"):
            numbers = {
                name: strict_json.number(value, field=name) for name, value in json.loads(text).items()
            }
        yield first, last, {name: value for name, value in numbers.items() if value is not None}


def time_of(c: Connection, run: int, *, step: int, rank: int) -> float | None:
    """When a step was trained: as its sender says, else when it arrived, else None. What its sender said may
    be unreadable, or no time that a calendar knows; then it is when it arrived.
    """
    query = (
        select(_batch.c.seq, _batch.c.received)
        .where(
            _batch.c.run == run,
            _batch.c.rank == rank,
            _batch.c.first_step <= step,
            _batch.c.last_step >= step,
        )
        .where(_batch.c.lost.is_(False))
        .order_by(_batch.c.seq.desc())
        .limit(1)
    )
    row = c.execute(query).first()
    if row is None:
        return None
    try:
        said = _said_time(c, run, rank, row.seq, step)
    except Damaged:  # logged where it was met
        said = None
    return float(row.received) if said is None else said


def _said_time(c: Connection, run: int, rank: int, seq: int, step: int) -> float | None:
    with damage.reading(f"steps of rank {rank} in batch {seq}"):
        chunk = chunks.of_seq(c, run, rank, seq)
        if chunk is not None:
            parts = [(r.step, r.time) for r in tiles.rows(c, run, rank, [chunk])]
        else:
            found = blocks.each(c, run, rank, kinds.ROWS, first_seq=seq, last_seq=seq)
            parts = [blocks.rows_block(data)[:2] for _seq, data in found]
        for steps, times in parts:
            at = times[steps == step]
            if len(at) and 0 <= at[0] < LATEST_S:
                return float(at[0])
    return None


def newest_with_tensors(c: Connection, run: int, rank: int) -> BatchKey | None:
    """The rank's newest batch that carries statistics of tensors."""
    columns = [_batch.c[name] for name in BatchKey.__dataclass_fields__]
    query = (
        select(*columns)
        .where(_batch.c.run == run, _batch.c.rank == rank, _batch.c.tensor_table.is_not(None))
        .order_by(_batch.c.seq.desc())
        .limit(1)
    )
    row = c.execute(query).first()
    return None if row is None else BatchKey(*row)


def exists(c: Connection, run: int, key: BatchKey) -> bool:
    """Whether the batch is still stored."""
    return digest(c, run, key.rank, key.seq) is not None

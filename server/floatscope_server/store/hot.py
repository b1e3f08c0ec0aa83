"""Hot batches: those that are in no chunk yet, and the moment at which they are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, and_, delete, func, or_, select, update

from floatscope_server import tables
from floatscope_server.store import chunks
from floatscope_server.store.chunks import Chunk
from floatscope_server.store.kinds import STAT
from floatscope_server.store.runs import ENDED

_batch, _block, _rank, _run = tables.batch, tables.block, tables.rank, tables.run


@dataclass(frozen=True)
class RankState:
    """``chunked_seq``: the first seq that is in no chunk. claimed: some worker is at it, or died at it."""

    next_seq: int
    chunked_seq: int
    hot_rows: int
    claimed: bool
    ended: bool


@dataclass(frozen=True)
class HotKey:
    """A hot batch without its numbers."""

    seq: int
    segment: int
    rows: int
    lost: bool
    tensor_table: int | None


def state(c: Connection, run: int, rank: int) -> RankState | None:
    """None: there is no such rank, or its run is being removed."""
    query = (
        select(_rank.c.next_seq, _rank.c.chunked_seq, _rank.c.hot_rows, _rank.c.compactor, _run.c.status)
        .join(_run, _run.c.id == _rank.c.run)
        .where(_rank.c.run == run, _rank.c.rank == rank, _run.c.deleted.is_(None))
    )
    row = c.execute(query).first()
    if row is None:
        return None
    return RankState(row[0], row[1], row[2], row[3] is not None, row[4] in ENDED)


def waiting(c: Connection, *, rows: int, batches: int) -> list[tuple[int, int]]:
    """(run, rank) with so many hot rows or batches, with hot rows of a run that ended, or with a claim."""
    hot = _rank.c.next_seq - _rank.c.chunked_seq
    due = or_(
        _rank.c.hot_rows >= rows,
        hot >= batches,
        and_(_rank.c.hot_rows > 0, _run.c.status.in_(ENDED)),
        _rank.c.compactor.is_not(None),
    )
    query = (
        select(_rank.c.run, _rank.c.rank)
        .join(_run, _run.c.id == _rank.c.run)
        .where(_run.c.deleted.is_(None), due)
        .order_by(_rank.c.run, _rank.c.rank)
    )
    return [(row[0], row[1]) for row in c.execute(query)]


def with_statistics(c: Connection) -> list[tuple[int, int, int, int, int]]:
    """(run, rank, hot rows, newest tensor table, statistics) of every rank of a run that goes on, if it has
    hot rows and statistics.
    """
    frame, series = tables.frame.c, tables.series.c
    of_rank = (series.run == _rank.c.run) & (series.rank == _rank.c.rank) & (series.kind == STAT)
    stats = select(func.count()).select_from(tables.series).where(of_rank).correlate(_rank).scalar_subquery()
    query = (
        select(_rank.c.run, _rank.c.rank, _rank.c.hot_rows, frame.tensor_table, stats)
        .join(_run, _run.c.id == _rank.c.run)
        .join(tables.frame, (frame.run == _rank.c.run) & (frame.rank == _rank.c.rank))
        .where(_run.c.deleted.is_(None), _run.c.status.not_in(ENDED), _rank.c.hot_rows > 0)
        .order_by(_rank.c.run, _rank.c.rank)
    )
    return [(row[0], row[1], row[2], row[3], row[4]) for row in c.execute(query)]


def ranks(c: Connection, run: int) -> list[int]:
    """The run's ranks that have hot rows."""
    query = select(_rank.c.rank).where(_rank.c.run == run, _rank.c.hot_rows > 0).order_by(_rank.c.rank)
    return list(c.execute(query).scalars())


def keys(c: Connection, run: int, rank: int, first_seq: int, *, most: int) -> list[HotKey]:
    """The rank's batches from a seq on, in order, at most so many."""
    columns = (_batch.c[name] for name in HotKey.__dataclass_fields__)
    query = (
        select(*columns)
        .where(_batch.c.run == run, _batch.c.rank == rank, _batch.c.seq >= first_seq)
        .order_by(_batch.c.seq)
        .limit(most)
    )
    return [HotKey(*row) for row in c.execute(query)]


def stat_names(
    c: Connection, run: int, rank: int, names: Collection[str], first_seq: int, last_seq: int
) -> dict[int, set[str]]:
    """seq -> the statistics that its batch carried, of those given."""
    query = select(_block.c.seq, _block.c.name).where(
        _block.c.run == run,
        _block.c.rank == rank,
        _block.c.kind == STAT,
        _block.c.name.in_(names),
        _block.c.seq.between(first_seq, last_seq),
    )
    out: dict[int, set[str]] = {}
    for seq, name in c.execute(query):
        out.setdefault(seq, set()).add(name)
    return out


def block_bytes(
    c: Connection, run: int, rank: int, kinds: Collection[int], names: Collection[str], seqs: tuple[int, int]
) -> int:
    """Bytes of the blocks of a range of batches, both ends included."""
    query = select(func.coalesce(func.sum(func.length(_block.c.data)), 0)).where(
        _block.c.run == run,
        _block.c.rank == rank,
        _block.c.kind.in_(kinds),
        _block.c.name.in_(names),
        _block.c.seq.between(*seqs),
    )
    return int(c.execute(query).scalar_one())


def move_back(c: Connection, run: int, rank: int, chunk: Chunk, *, hot_bytes: int) -> bool:
    """The opposite of ``move`` for the rank's last chunk, whose batches lie in blocks again.

    False, and nothing changed, if it is not the last one any more. The caller holds the claim.
    """
    moved = (
        update(_rank)
        .where(_rank.c.run == run, _rank.c.rank == rank, _rank.c.chunked_seq > chunk.number)
        .values(chunked_seq=chunk.first_seq, hot_rows=_rank.c.hot_rows + chunk.rows)
        .returning(_rank.c.rank)
    )
    last = chunks.before(c, run, rank, 1 << 62)
    if last is None or last.number != chunk.number or c.execute(moved).first() is None:
        return False
    of_chunk = tables.chunk.c
    c.execute(
        delete(tables.chunk).where(of_chunk.run == run, of_chunk.rank == rank, of_chunk.chunk == chunk.number)
    )
    grown = hot_bytes - chunk.bytes
    c.execute(update(_run).where(_run.c.id == run).values(bytes=_run.c.bytes + grown))
    return True


def move(
    c: Connection,
    run: int,
    rank: int,
    chunk: Chunk | None,
    *,
    from_seq: int,
    to_seq: int,
    hot_rows: int,
    hot_bytes: int,
    merged: Chunk | None,
    now: float,
) -> bool:
    """Makes batches from ``from_seq`` up to, not including, ``to_seq`` count as being in the chunk.

    chunk: None for batches that are only holes. merged: the small chunk that went into it. False, and nothing
    changed, if somebody else has moved them. The caller holds the claim.
    """
    moved = (
        update(_rank)
        .where(_rank.c.run == run, _rank.c.rank == rank, _rank.c.chunked_seq == from_seq)
        .values(chunked_seq=to_seq, hot_rows=_rank.c.hot_rows - hot_rows)
        .returning(_rank.c.rank)
    )
    if c.execute(moved).first() is None:
        return False
    grown = -hot_bytes
    if merged is not None:
        old = tables.chunk.c
        c.execute(delete(tables.chunk).where(old.run == run, old.rank == rank, old.chunk == merged.number))
        grown -= merged.bytes
    if chunk is not None:
        chunks.add(c, run, chunk, now=now)
        grown += chunk.bytes
    c.execute(update(_run).where(_run.c.id == run).values(bytes=_run.c.bytes + grown))
    return True

"""Claims: one worker at a time rewrites a rank's batches, without a lock that a dead worker would keep.

A claim is a mark in the rank's row. Every transaction of the worker asks first whether it still holds the
claim, so one that was slow and lost it writes nothing more. A mark that stayed says that there may be
left-overs.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, or_, select, update

from floatscope_server import tables

LEASE_S = 60.0
"""A claim of a worker not heard of for so long may be taken over, whichever way clocks were moved."""
_rank, _run = tables.rank, tables.run


def take(c: Connection, run: int, rank: int, *, worker: str, now: float) -> bool:
    """Claims the rank; False if another worker has it, or if the run is gone or about to go."""
    if not _is_there(c, run):
        return False
    free = or_(
        _rank.c.compactor.is_(None),
        _rank.c.compactor == worker,
        _rank.c.compactor_seen.is_(None),
        ~_rank.c.compactor_seen.between(now - LEASE_S, now + LEASE_S),
    )
    return _mark(c, run, rank, free, worker, now)


def holds(c: Connection, run: int, rank: int, *, worker: str, now: float) -> bool:
    """Whether the claim still stands; it then stands until the end of this transaction, and longer."""
    return _is_there(c, run) and _mark(c, run, rank, _rank.c.compactor == worker, worker, now)


def release(c: Connection, run: int, rank: int, *, worker: str) -> None:
    """Gives the claim up: there is nothing left over."""
    mine = (_rank.c.run == run) & (_rank.c.rank == rank) & (_rank.c.compactor == worker)
    c.execute(update(_rank).where(mine).values(compactor=None, compactor_seen=None))


def hand_over(c: Connection, worker: str) -> None:
    """Lets others go on at once with what this worker leaves unfinished."""
    c.execute(update(_rank).where(_rank.c.compactor == worker).values(compactor_seen=None))


def unfinished(c: Connection) -> list[tuple[int, int]]:
    """(run, rank) of every rank that is claimed, or was by a worker that died."""
    query = select(_rank.c.run, _rank.c.rank).where(_rank.c.compactor.is_not(None))
    return [(row[0], row[1]) for row in c.execute(query)]


def _is_there(c: Connection, run: int) -> bool:
    """The run's row is locked before that of its rank, as a batch does; else the two could wait for each
    other.
    """
    query = select(_run.c.id).where(_run.c.id == run, _run.c.deleted.is_(None))
    return c.execute(query.with_for_update(read=True, key_share=True)).first() is not None


def _mark(c: Connection, run: int, rank: int, free: ColumnElement[bool], worker: str, now: float) -> bool:
    statement = (
        update(_rank)
        .where(_rank.c.run == run, _rank.c.rank == rank, free)
        .values(compactor=worker, compactor_seen=now)
        .returning(_rank.c.rank)
    )
    return c.execute(statement).first() is not None

"""Objects that wait to be deleted, and which objects are in use.

An object is noted here before it is written and taken off in the transaction in which its chunk comes to
count. Who deletes it marks it first; a chunk whose object is marked cannot come to count any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, delete, exists, func, select, update

from floatscope_server import tables

MARKED = 0.0  # in place of the time when it is due
LATER_S = 3600.0  # an object whose rows are still there is looked at again after so long
_garbage, _tile, _run = tables.garbage, tables.tile, tables.run


def mark(c: Connection, *, now: float, limit: int) -> list[str]:
    """Marks what is due, and returns all that is marked: none of it is in use or can come to be."""
    due = select(_garbage.c.object).where(_garbage.c.due <= now, _garbage.c.due != MARKED)
    for key in list(c.execute(due.order_by(_garbage.c.due).limit(limit)).scalars()):
        until = now + LATER_S if in_use(c, key) else MARKED
        c.execute(update(_garbage).where(_garbage.c.object == key, _garbage.c.due <= now).values(due=until))
    return list(c.execute(select(_garbage.c.object).where(_garbage.c.due == MARKED).limit(limit)).scalars())


def due(c: Connection, *, now: float) -> int:
    """Objects that may be deleted now."""
    return int(
        c.execute(select(func.count()).select_from(_garbage).where(_garbage.c.due <= now)).scalar_one()
    )


def forget(c: Connection, keys: Sequence[str]) -> None:
    """The objects are gone."""
    c.execute(delete(_garbage).where(_garbage.c.object.in_(keys)))


def noted(c: Connection, keys: Collection[str]) -> set[str]:
    """Those of the keys that wait to be deleted or are being written."""
    return set(c.execute(select(_garbage.c.object).where(_garbage.c.object.in_(keys))).scalars())


def note(c: Connection, key: str) -> None:
    """Marks an object that nobody knows of."""
    c.execute(_garbage.insert().values(object=key, due=MARKED))


def in_use(c: Connection, key: str) -> bool:
    """Whether a tile of a run that is there lies in the object."""
    place = parsed(key)
    if place is None:
        return True
    run, rank, number, kind = place
    there = (
        select(1)
        .join(_run, _run.c.id == _tile.c.run)
        .where(_tile.c.run == run, _tile.c.rank == rank, _tile.c.kind == kind, _tile.c.chunk == number)
        .where(_tile.c.object == key, _run.c.deleted.is_(None))
    )
    return bool(c.execute(select(exists(there))).scalar())


def parsed(key: str) -> tuple[int, int, int, int] | None:
    """(run, rank, chunk, kind) as an object's key begins; None if it is not one of ours."""
    parts = key.split("/")
    if len(parts) != 6 or not all(part.isdecimal() and len(part) < 16 for part in parts[:4]):
        return None
    run, rank, number, kind = (int(part) for part in parts[:4])
    return run, rank, number, kind

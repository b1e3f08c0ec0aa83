"""Deletes what chunks left over, a little at a time, so that no batch waits long for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from floatscope_server.chunk_writer import Interrupted
from floatscope_server.database import Database
from floatscope_server.store import claims, leftovers

PAUSE_S = 0.002  # between two deletes, so that a batch that waits gets its turn


def sweep(
    database: Database,
    run: int,
    rank: int,
    *,
    tiles_too: bool,
    worker: str,
    portion_bytes: int,
    go_on: Callable[[], None],
    clock: Callable[[], float],
    number: int | None = None,
) -> None:
    """Deletes the left-overs of a rank that ``worker`` has claimed.

    tiles_too: also tiles and levels that belong to no chunk, or only those of the chunk ``number``, which has
    been merged, if it is given. go_on: asked before each transaction; raises to
    end the work. Raises Interrupted if the claim is lost.
    """
    with database.read() as c:
        found = leftovers.find(c, run, rank, tiles=tiles_too, most_bytes=portion_bytes, number=number)
    for portion in found:
        go_on()
        with database.write() as c:
            if not claims.holds(c, run, rank, worker=worker, now=clock()):
                raise Interrupted
            leftovers.remove(c, run, rank, portion, now=clock())
        time.sleep(PAUSE_S)

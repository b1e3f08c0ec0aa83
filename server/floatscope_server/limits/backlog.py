"""Slows a sender down whose steps come in faster than they are rewritten to chunks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from floatscope_server.chunk_plan import LIMITS
from floatscope_server.database import Database
from floatscope_server.errors import Problem
from floatscope_server.store import hot, runs

CHUNKS_BEHIND = 32  # hot rows, in full chunks, from which a sender waits
BATCHES_BEHIND = 16  # the same in hot batches, in as many as make one due
LOOK_S = 1.0
RETRY_S = 2
REMEMBERED = 4096


@dataclass(frozen=True)
class _Behind:
    looked: float


class Backlog:
    """What is far behind. compacting: whether rewriting goes on; while it fails, or has stopped, steps are
    taken all the same: refusing them would not help, and reading hot rows is only slower.
    """

    def __init__(
        self,
        *,
        database: Database,
        compacting: Callable[[], bool],
        rows: int = LIMITS.rows * CHUNKS_BEHIND,
        batches: int = LIMITS.hot_batches * BATCHES_BEHIND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._compacting = compacting
        self._rows = rows
        self._batches = batches
        self._clock = clock
        self._guard = threading.Lock()
        self._behind: dict[tuple[str, int], _Behind] = {}

    def note(self, run_id: str, rank: int, *, hot_rows: int, hot_batches: int) -> None:
        """Where a rank stands after a batch."""
        if hot_rows < self._rows and hot_batches < self._batches:
            return
        with self._guard:
            if len(self._behind) < REMEMBERED:
                self._behind[run_id, rank] = _Behind(self._clock())

    def check(self, run_id: str, rank: int) -> None:
        """Raises Problem 429 while the rank is too far behind. A query at most once a second, and none for
        ranks that are not.
        """
        key = (run_id, rank)
        if key not in self._behind or not self._compacting():
            return
        with self._guard:
            found = self._behind.get(key)
            now = self._clock()
            look = found is not None and now - found.looked >= LOOK_S
            if look:
                self._behind[key] = _Behind(now)
        if look and not self._is_behind(run_id, rank):
            with self._guard:
                self._behind.pop(key, None)
            return
        raise Problem(
            429,
            "Steps come in too fast",
            f"rank {rank} of run {run_id!r} has sent more than the server has brought into its final form",
            hint="send the same batch again later; it is a matter of seconds",
            extra={"limit": "compaction"},
            headers={"Retry-After": str(RETRY_S)},
        )

    def count(self) -> int:
        """Ranks that are held back."""
        return len(self._behind)

    def _is_behind(self, run_id: str, rank: int) -> bool:
        with self._database.read() as c:
            run = runs.find(c, run_id)
            state = None if run is None else hot.state(c, run.id, rank)
        if state is None:
            return False
        return state.hot_rows >= self._rows or state.next_seq - state.chunked_seq >= self._batches

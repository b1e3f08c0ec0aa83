"""Which worker serves a run: the one that holds the run's lock, so that its engine stays in one memory.

This is about speed only. What makes a batch count once is the check of the run's version inside the
transaction that stores it; a worker that believes it owns a run and does not loses that check.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from floatscope_server.store import workers
from floatscope_server.store.workers import Holder
from floatscope_server.workers.session import LockSession, Unreachable

MOST_OWNED = 256  # locks of one worker; PostgreSQL keeps room for some thousands in all
IDLE_S = 300.0  # a run that sent nothing for so long may go to any worker
KNOWN = 4096  # runs of others whose owner is remembered

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Elsewhere:
    """Another worker owns the run. ``url``: where it listens for others; None if it could not be found out
    now. ``worker``: its name, which its answers carry.
    """

    url: str | None
    worker: str = ""


class Owners:
    """The runs of this worker, by their run_id, and where the runs of others are served."""

    def __init__(self, session: LockSession, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._guard = threading.Lock()
        self._owned: OrderedDict[str, float] = OrderedDict()  # by last use, the longest ago first
        self._others: OrderedDict[str, Elsewhere] = OrderedDict()
        self._leaving = False
        self.taken = 0  # runs taken so far

    def holds(self, run_id: str) -> bool:
        """Whether this worker owns the run now, as far as it can know. Costs no query."""
        with self._guard:
            known = run_id in self._owned
        return known and self._session.held(_key(run_id))

    def here(self, run_id: str) -> bool:
        """Whether this worker surely owns the run, which then counts as used. Never waits."""
        with self._guard:
            if run_id not in self._owned or not self._session.surely_held(_key(run_id)):
                return False
            self._owned[run_id] = self._clock()
            self._owned.move_to_end(run_id)
        return True

    def claim(self, run_id: str, *, again: bool = False) -> Elsewhere | None:
        """None: it is this worker's to serve, which takes the run if nobody has it. Else where it is.

        again: do not rely on what is remembered. While the database cannot be asked, and while this worker
        is stopping, it serves whatever it gets.
        """
        if self.holds(run_id):
            self.here(run_id)
            return None
        with self._guard:
            self._owned.pop(run_id, None)  # the lock was lost
            if self._leaving:
                return None
            if again:
                self._others.pop(run_id, None)
            elif run_id in self._others:
                self._others.move_to_end(run_id)
                return self._others[run_id]
        try:
            if self._session.take(_key(run_id)):
                self._own(run_id)
                return None
            with self._session.asked() as c:
                found = workers.holder(c, _key(run_id))
        except Unreachable:
            return None
        return self._remember(run_id, found)

    def release(self, run_id: str) -> None:
        """Lets any worker have the run."""
        with self._guard:
            self._owned.pop(run_id, None)
        self._session.give_back(_key(run_id))

    def release_idle(self, *, idle_s: float = IDLE_S) -> None:
        """Releases runs that were not used for so long, and those beyond the most a worker may own."""
        limit = self._clock() - idle_s
        with self._guard:
            surplus = len(self._owned) - MOST_OWNED
            idle = [
                run for at, (run, used) in enumerate(self._owned.items()) if used <= limit or at < surplus
            ]
        for run_id in idle:
            self.release(run_id)

    def leave(self) -> None:
        """Gives all runs away, for good: this worker stops."""
        with self._guard:
            self._leaving = True
            owned = list(self._owned)
        for run_id in owned:
            self.release(run_id)

    def count(self) -> int:
        """Runs owned now."""
        with self._guard:
            owned = list(self._owned)
        return sum(self._session.held(_key(run_id)) for run_id in owned)

    def _own(self, run_id: str) -> None:
        with self._guard:
            self._owned[run_id] = self._clock()
            self._owned.move_to_end(run_id)
            self._others.pop(run_id, None)
            self.taken += 1
            oldest = next(iter(self._owned)) if len(self._owned) > MOST_OWNED else None
        if oldest is not None:
            self.release(oldest)

    def _remember(self, run_id: str, found: Holder | None) -> Elsewhere:
        place = Elsewhere(None) if found is None else Elsewhere(found.url, found.worker)
        if place.url is not None:
            with self._guard:
                self._others[run_id] = place
                self._others.move_to_end(run_id)
                while len(self._others) > KNOWN:
                    self._others.popitem(last=False)
        return place


def _key(run_id: str) -> int:
    return workers.lock_key("run", run_id)

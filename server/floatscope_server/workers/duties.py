"""Work that one worker at a time does for all: each kind of it is a duty, and a duty is a lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from floatscope_server.store import workers
from floatscope_server.workers.session import LockSession, Unreachable

TRY_AGAIN_S = 2.0  # a duty whose worker died is taken over within about this time


class Duties(Protocol):
    """Asked by background threads before each round of their work."""

    def holds(self, name: str) -> bool:
        """Whether this worker does the work of this name now. It may lose it at any later moment (its
        connection breaks, it is paused), so the work itself must stand being done twice.
        """
        ...


class AllDuties:
    """The only worker there is does everything."""

    def holds(self, name: str) -> bool:
        return True


class SharedDuties:
    """A duty belongs to the worker that asked first, until it stops, dies or loses its connection."""

    def __init__(self, session: LockSession, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._guard = threading.Lock()
        self._tried: dict[str, float] = {}

    def holds(self, name: str) -> bool:
        key = workers.lock_key("duty", name)
        if self._session.held(key):
            return True
        with self._guard:
            now = self._clock()
            if now - self._tried.get(name, -TRY_AGAIN_S) < TRY_AGAIN_S:
                return False
            self._tried[name] = now
        try:
            return self._session.take(key)
        except Unreachable:
            return False

"""One lock per run: its batches are judged and stored one after the other, whatever rank they come from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class RunLocks:
    """Locks that exist only while somebody holds or waits for them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def of(self, run_id: str) -> Iterator[None]:
        with self._guard:
            lock, users = self._locks.get(run_id, (threading.Lock(), 0))
            self._locks[run_id] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[run_id]
                if users == 1:
                    del self._locks[run_id]
                else:
                    self._locks[run_id] = (lock, users - 1)

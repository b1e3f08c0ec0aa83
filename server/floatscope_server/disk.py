"""Whether the embedded database is still where it was, and whether there is room for more on its disk."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from floatscope_server.errors import Problem

LOOK_S = 1.0
MIB = 2**20
RETRY_S = 60


class Disk:
    """``path``: the database's file; None where the data is elsewhere (PostgreSQL): there is always room.

    reserve_bytes: what stays free of steps, so that deleting, acknowledging and closing go on working.
    """

    def __init__(
        self, path: Path | None, *, reserve_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._reserve = reserve_bytes
        self._clock = clock
        self._guard = threading.Lock()
        self._seen: tuple[float, int | None] | None = None
        self._file = self._identity()

    def free_bytes(self) -> int | None:
        """Free now, or a second ago; None if it is not known."""
        if self._path is None:
            return None
        with self._guard:
            now = self._clock()
            if self._seen is None or now - self._seen[0] >= LOOK_S:
                try:
                    self._seen = (now, shutil.disk_usage(self._path).free)
                except OSError:  # then the database will say what is wrong
                    self._seen = (now, None)
            return self._seen[1]

    def is_full(self) -> bool:
        free = self.free_bytes()
        return free is not None and free < self._reserve

    def is_gone(self) -> bool:
        """Whether the file was moved, removed or replaced: what is written now would not be found again."""
        return self._path is not None and self._identity() != self._file

    def check(self) -> None:
        """Raises Problem 507 if there is no room for steps, 503 if they would go into a file that is gone."""
        if self.is_gone():
            raise Problem(
                503,
                "The database is gone",
                "the server's database file was moved, removed or replaced while it runs; nothing was stored",
                hint="put the file back, or stop the server and start it again; senders keep their steps",
                headers={"Retry-After": str(RETRY_S)},
            )
        free = self.free_bytes()
        if free is not None and free < self._reserve:
            raise Problem(
                507,
                "The disk is nearly full",
                f"{free // MIB:,} MiB are free where the server keeps its data, and "
                f"{self._reserve // MIB:,} MiB are kept free; nothing was stored",
                hint="make room, or delete runs; senders keep their steps and send them again by themselves",
                extra={"limit": "disk"},
                headers={"Retry-After": str(RETRY_S)},
            )

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = None if self._path is None else os.stat(self._path)
        except OSError:
            return None
        return None if found is None else (found.st_dev, found.st_ino)

"""Whether there is room for more on the disk that holds the embedded database."""

from __future__ import annotations

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
    """``path``: on the disk; None where the data is elsewhere (PostgreSQL), then there is always room.

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

    def check(self) -> None:
        """Raises Problem 507 if there is no room for steps."""
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

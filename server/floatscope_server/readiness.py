"""Whether this worker can do its work now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from sqlalchemy.exc import SQLAlchemyError

from floatscope_server import migrate
from floatscope_server.database import Database
from floatscope_server.disk import Disk

KEPT_S = 1.0  # anybody may ask, so asking often costs nothing


class Readiness:
    """``parts``: what a thread does that must live, and whether it does."""

    def __init__(
        self,
        *,
        database: Database,
        disk: Disk,
        parts: Mapping[str, Callable[[], bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._disk = disk
        self._parts = parts
        self._clock = clock
        self._guard = threading.Lock()
        self._seen: tuple[float, list[str]] | None = None
        self._draining = False
        self._schema = migrate.newest()

    def drain(self) -> None:
        """From now on the answer is no: the worker finishes what it is at and takes nothing new."""
        self._draining = True

    def problems(self) -> list[str]:
        """Why it cannot work; empty if it can. Known for a second."""
        if self._draining:
            return ["the server is stopping"]
        with self._guard:
            now = self._clock()
            if self._seen is None or now - self._seen[0] >= KEPT_S:
                self._seen = (now, self._look())
            return list(self._seen[1])

    def _look(self) -> list[str]:
        found = []
        try:
            if migrate.revision_of(self._database) != self._schema:
                found.append("the database has the schema of another version")
        except SQLAlchemyError as error:
            found.append(f"the database does not answer ({type(error).__name__})")
        if self._disk.is_gone():
            found.append("the database's file was moved, removed or replaced: no steps are taken")
        if self._disk.is_full():
            found.append("the disk is nearly full: no steps are taken")
        return found + [f"{what} stopped" for what, lives in self._parts.items() if not lives()]

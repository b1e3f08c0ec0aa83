"""The thread that deletes objects nothing refers to any more, and finds those that nobody knows of."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from floatscope_server.background_thread import BackgroundThread
from floatscope_server.database import Database
from floatscope_server.store import garbage
from floatscope_server.store.tiles import Objects


class ListedObjects(Objects, Protocol):
    """A store that also says what it holds."""

    def listed(self) -> Iterator[tuple[str, float]]:
        """(key, when it was written) of every object."""
        ...


LOOK_S = 60.0
LIST_S = 86_400.0  # between two looks through the whole store
ORPHAN_S = 86_400.0  # an object without a row this old is of a process that died between the two
AT_ONCE = 500

_log = logging.getLogger(__name__)


class Sweeper(BackgroundThread):
    """Deletes in the store, if there is one. What it cannot delete now stays noted in the database."""

    def __init__(
        self,
        *,
        database: Database,
        objects: ListedObjects | None,
        alone: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="sweeper")
        self._database = database
        self._store = objects
        self._alone = alone
        self._clock = clock

    def start(self) -> None:
        if self._store is not None:
            super().start()

    def wake(self) -> None:
        """Objects may have become due."""
        self._woken.set()

    def sweep(self) -> int:
        """Deletes all that is due; the number of objects. Raises OSError if the store is away."""
        deleted = 0
        while not self._stopping.is_set():
            with self._database.write() as c:
                keys = garbage.mark(c, now=self._clock(), limit=AT_ONCE)
            if not keys:
                break
            self._objects().delete(keys)
            with self._database.write() as c:
                garbage.forget(c, keys)
            deleted += len(keys)
        return deleted

    def note_orphans(self) -> int:
        """Notes old objects that no row names, so that the next sweep deletes them; how many."""
        found = 0
        for key, written in self._objects().listed():
            if self._stopping.is_set():
                break
            if self._clock() - written < ORPHAN_S or garbage.parsed(key) is None:
                continue
            with self._database.read() as c:
                known = garbage.in_use(c, key) or key in garbage.noted(c, [key])
            if not known:
                with self._database.write() as c:
                    if not garbage.in_use(c, key) and not garbage.noted(c, [key]):
                        garbage.note(c, key)
                        found += 1
        return found

    def _objects(self) -> ListedObjects:
        if self._store is None:
            raise OSError("no object store is set up (tiles_url)")
        return self._store

    def _run(self) -> None:
        listed = 0.0
        while not self._stopping.is_set():
            self._woken.wait(LOOK_S)
            self._woken.clear()
            if self._stopping.is_set():
                return
            try:
                if not self._alone():
                    continue
                if time.monotonic() - listed > LIST_S or listed == 0.0:
                    orphans = self.note_orphans()
                    listed = time.monotonic()
                    if orphans:
                        _log.info("%d objects that no row names are deleted", orphans)
                self.sweep()
            except OSError as error:
                _log.warning("objects are deleted later: %s", error)
            except Exception:  # the database may be away; tried again in a minute
                _log.exception("looking for objects to delete failed")

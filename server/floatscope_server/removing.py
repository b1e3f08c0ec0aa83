"""The thread that removes what was deleted and gives the room back, beside the requests and slower than them.

Every transaction takes about ``TARGET_S``, then as long a pause, so that a batch never waits long for the
write lock. A process that dies in the middle loses nothing: marked runs are found again at the next start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, OperationalError

from floatscope_server.background_thread import BackgroundThread
from floatscope_server.database import Database
from floatscope_server.store import removal

TARGET_S = 0.02
PAUSE_LEAST_S = 0.005
FIRST_ROWS, MOST_ROWS = 16, 2048
TRIES = 20  # of one step that fails because of rows that refer to what it removes
VACUUM_PAGES = 256  # given back in one transaction: 1 MB
LOOK_S = 300.0  # another worker may have marked a run without telling this one

_log = logging.getLogger(__name__)


class Remover(BackgroundThread):
    """Removes marked runs. ``alone`` guards a round, so that one worker of several does it."""

    def __init__(
        self,
        *,
        database: Database,
        alone: Callable[[], bool] = lambda: True,
        removed_some: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="remover")
        self._database = database
        self._alone = alone
        self._removed_some = removed_some
        self._clock = clock

    def start(self) -> None:
        self._woken.set()
        super().start()

    def wake(self) -> None:
        """A run was marked."""
        self._woken.set()

    def round(self) -> int:
        """Removes everything that is marked now and gives its room back; the number of runs removed."""
        removed = 0
        with self._database.read() as c:
            marked = removal.waiting(c)
        for run in marked:
            if not self._remove(run.id):
                return removed
            removed += 1
            _log.info("run %d, deleted at %.0f, is removed", run.id, run.deleted)
        if removed:
            self._removed_some()
            self._give_back()
        return removed

    def _remove(self, run: int) -> bool:
        """False: told to stop before it was done."""
        rows, in_vain = FIRST_ROWS, 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                with self._database.write() as c, _erased(c):
                    gone = removal.step(c, run, rows=rows, now=self._clock())
                in_vain = 0
            except IntegrityError:  # somebody wrote for the run meanwhile: those rows come next
                in_vain += 1
                if in_vain > TRIES:  # or rows that no step removes refer to it
                    raise
                gone = 1
            if gone == 0:
                return True
            rows = self._pace(begun, rows)
        return False

    def _pace(self, begun: float, rows: int) -> int:
        took = time.monotonic() - begun
        self._stopping.wait(max(took, PAUSE_LEAST_S))
        return max(1, rows // 2) if took > 1.5 * TARGET_S else min(MOST_ROWS, rows * 2)

    def _give_back(self) -> None:
        """SQLite: the file shrinks, and its log is emptied. PostgreSQL does this by itself (autovacuum)."""
        before = -1
        while not self._stopping.is_set():
            begun = time.monotonic()
            free = self._database.give_back(pages=VACUUM_PAGES)
            if free in (0, before):  # before: a file that keeps its free pages
                break
            before = free
            self._pace(begun, 1)
        self._database.empty_log()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.wait(LOOK_S)
            self._woken.clear()
            try:
                if not self._stopping.is_set() and self._alone():
                    self.round()
            except Exception as error:  # the database may be away or full; looked at again later
                _log.log(
                    logging.WARNING if isinstance(error, OperationalError) else logging.ERROR,
                    "removing deleted runs failed and is tried again later",
                    exc_info=True,
                )


@contextmanager
def _erased(c: Connection) -> Iterator[None]:
    """On SQLite, what is deleted inside is overwritten with zeros and not only unlinked."""
    if c.dialect.name != "sqlite":
        yield
        return
    c.exec_driver_sql("pragma secure_delete=on").close()
    try:
        yield
    finally:
        c.exec_driver_sql("pragma secure_delete=fast").close()

"""The thread that rewrites hot batches to chunks, off the path of requests."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from floatscope.protocol.batch import Batch
from floatscope_server.background_thread import BackgroundThread
from floatscope_server.chunk_plan import LIMITS
from floatscope_server.chunk_writer import Interrupted
from floatscope_server.database import Database
from floatscope_server.rewriting import Rewriter
from floatscope_server.store import claims, hot, runs
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects

LOOK_S = 30.0
"""Between looks for what nobody told of: ranks of workers that died, runs that ended elsewhere."""
ASIDE_S = 3600.0
"""A rank that cannot be rewritten, whatever the database does, is left alone for so long."""
RETRY_S = (1.0, 5.0, 30.0)  # after the first, second and every later failure in a row

_log = logging.getLogger(__name__)


def cells_a_row(batch: Batch) -> float:
    """Values of statistics that a row of the batch has on average: not every row has them."""
    return len(batch.tensor_names) * len(batch.stats) * len(batch.stat_row) / max(len(batch), 1)


def is_due(*, hot_rows: int, hot_batches: int, cells_a_row: float) -> bool:
    """Whether a rank's hot batches are worth a chunk. cells_a_row: as ``cells_a_row`` says."""
    cells = hot_rows * cells_a_row
    return hot_rows >= LIMITS.rows or hot_batches >= LIMITS.hot_batches or cells >= LIMITS.cells


class Compactor(BackgroundThread):
    """One thread per process; which process works on a rank is settled by a claim in the database."""

    def __init__(
        self,
        *,
        database: Database,
        tensor_tables: TensorTables,
        objects: Objects | None = None,
        retry_s: Sequence[float] = RETRY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="compactor")
        self._database = database
        self._tensor_tables = tensor_tables
        self._worker = secrets.token_hex(8)
        self._guard = threading.Lock()
        self._wanted: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._ended: set[str] = set()
        self._aside: dict[tuple[int, int], float] = {}
        self._retry_s = retry_s
        self._failures = 0
        self._knows_wide = False
        self.chunks_made = 0
        self.busy_s = 0.0
        self.rewriter = Rewriter(
            database=database,
            tensor_tables=tensor_tables,
            worker=self._worker,
            objects=objects,
            stopping=self._stopping.is_set,
            clock=clock,
        )

    def works(self) -> bool:
        """Whether it goes on and its last attempt did not fail."""
        return self.alive() and not self._failures

    def wake(self, run: int, rank: int) -> None:
        """The rank's hot batches are worth a look; asked in a request, so it only notes it."""
        with self._guard:
            self._wanted[run, rank] = None
        self._woken.set()

    def ended(self, run_id: str) -> None:
        """The run ended: what it has in hot batches is rewritten too."""
        with self._guard:
            self._ended.add(run_id)
        self._woken.set()

    def _run(self) -> None:
        looked = -LOOK_S
        while not self._stopping.is_set():
            try:
                if time.monotonic() - looked >= LOOK_S:
                    looked = time.monotonic()
                    self._look()
                self._look_at_ended()
                while (found := self._next()) is not None and not self._stopping.is_set():
                    self._rewrite(*found)
                self._failures = 0
            except Exception:  # the database or the object store may be away: nothing is lost, tried again
                _log.exception("rewriting hot batches to chunks failed; it is tried again")
                self._stopping.wait(self._retry_s[min(self._failures, len(self._retry_s) - 1)])
                self._failures += 1
                self._knows_wide = False
                looked = -LOOK_S
                continue
            self._woken.wait(LOOK_S)
            self._woken.clear()
        self._hand_over()

    def _rewrite(self, run: int, rank: int) -> None:
        began = time.perf_counter()
        try:
            made = self.rewriter.rewrite(run, rank)
            self.chunks_made += made
        except Interrupted:
            _log.debug("rewriting rank %d of run %d was interrupted", rank, run)
        except IntegrityError:
            with self._database.read() as c:
                if hot.state(c, run, rank) is not None:
                    raise
            _log.debug("run %d was removed while its batches were rewritten", run)
        except FileNotFoundError:  # an object of its last chunk is gone, and waiting brings none back
            self._put_aside(run, rank)
        except (SQLAlchemyError, OSError):
            raise
        except Exception:  # its blocks may be damaged: they stay as they are, and others are not held up
            self._put_aside(run, rank)
        else:
            if made:
                _log.debug("rank %d of run %d: %d chunks made", rank, run, made)
        finally:
            self.busy_s += time.perf_counter() - began

    def _put_aside(self, run: int, rank: int) -> None:
        self._aside[run, rank] = time.monotonic() + ASIDE_S
        _log.exception("rank %d of run %d cannot be rewritten to chunks", rank, run)

    def _look(self) -> None:
        with self._database.read() as c:
            found = hot.waiting(c, rows=LIMITS.rows, batches=LIMITS.hot_batches)
            if not self._knows_wide:
                found += self._wide(c)
        self._knows_wide = True
        with self._guard:
            for key in found:
                self._wanted[key] = None

    def _wide(self, c: Connection) -> list[tuple[int, int]]:
        """Ranks that may be due by their values alone. Their batches tell so; what they told before a start
        or a failure is looked for.
        """
        return [
            (run, rank)
            for run, rank, rows, table, stats in hot.with_statistics(c)
            if is_due(
                hot_rows=rows,
                hot_batches=0,
                cells_a_row=len(self._tensor_tables.get(c, table).names) * stats,
            )
        ]

    def _look_at_ended(self) -> None:
        with self._guard:
            ended, self._ended = self._ended, set()
        for run_id in sorted(ended):
            with self._database.read() as c:
                run = runs.find(c, run_id)
                ranks = [] if run is None else hot.ranks(c, run.id)
            for rank in ranks:
                assert run is not None
                self.wake(run.id, rank)

    def _next(self) -> tuple[int, int] | None:
        while True:
            with self._guard:
                found = self._wanted.popitem(last=False)[0] if self._wanted else None
            if found is None or self._aside.get(found, 0.0) <= time.monotonic():
                return found

    def _hand_over(self) -> None:
        try:
            with self._database.write() as c:
                claims.hand_over(c, self._worker)
        except Exception:  # then the claim runs out by itself
            _log.exception("claims could not be given up")

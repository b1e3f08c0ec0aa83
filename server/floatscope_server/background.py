"""Work beside requests: comparing runs with baselines that grew, and marking runs that fell silent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from floatscope_server.background_thread import BackgroundThread
from floatscope_server.database import Database
from floatscope_server.errors import RunNotFound
from floatscope_server.events import Events
from floatscope_server.lifecycle import Lifecycle
from floatscope_server.store import runs
from floatscope_server.workers.crew import Crew
from floatscope_server.workers.duties import AllDuties, Duties

GATHER_S = (
    1.0  # waits this long for more news of a baseline, so that a fast one does not cost a judgement per batch
)
LOOK_S = 5.0
LOOK_AGAIN_S = 30.0  # how often one of several workers looks for verdicts that are behind
REFRESH = "refresh"
STALL_PACES = 10.0  # silent for this many usual intervals between batches
STALL_LEAST_S = 60.0  # and at least this long: a checkpoint or an evaluation is not a stall
STALL_UNKNOWN_S = 600.0  # before a pace is known: compilation and loading may take minutes

_log = logging.getLogger(__name__)


class Refresher(BackgroundThread):
    """One thread that brings verdicts up to date with their baselines.

    It forgets nothing: what is behind is in the database, where one worker looks for it now and then. A run
    that another worker owns is left to it.
    """

    def __init__(self, *, database: Database, crew: Crew | None = None) -> None:
        super().__init__(name="refresher")
        self._database = database
        self._crew = crew
        self._owners = None if crew is None else crew.owners
        if crew is not None:
            crew.changes.hear(REFRESH, self._asked)
        self._lifecycle: Lifecycle | None = None
        self._guard = threading.Lock()
        self._runs: set[str] = set()
        self._baselines: set[str] = set()

    def work_for(self, lifecycle: Lifecycle) -> None:
        """Names who judges runs anew; before the start."""
        self._lifecycle = lifecycle

    def start(self) -> None:
        self._look()
        self._woken.set()
        super().start()

    def baseline_grew(self, run_id: str) -> None:
        """Some run may be compared with this one; asked of every batch, so it only notes it."""
        with self._guard:
            self._baselines.add(run_id)
        self._woken.set()

    def refresh(self, run_id: str) -> None:
        with self._guard:
            self._runs.add(run_id)
        self._woken.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._woken.wait(None if self._owners is None else LOOK_AGAIN_S):
                self._look()
            self._stopping.wait(GATHER_S)
            self._woken.clear()
            with self._guard:
                wanted, self._runs = self._runs, set()
                grown, self._baselines = self._baselines, set()
            try:
                with self._database.read() as c:
                    for baseline in grown:
                        wanted |= {run.run_id for run in runs.with_baseline(c, baseline)}
                for run_id in sorted(wanted):
                    if not self._stopping.is_set():
                        self._refresh(run_id)
            except (
                Exception
            ):  # the database may be away; what is behind is found again at the next batch or start
                _log.exception("comparing runs with their baselines failed")

    def _look(self) -> None:
        """Finds what is behind; several workers leave that to one of them."""
        if self._crew is not None and not self._crew.duties.holds("refresher"):
            return
        try:
            with self._database.read() as c:
                behind = runs.behind_baseline(c)
        except SQLAlchemyError:  # the database may be away; several workers look again
            _log.exception("looking for verdicts that are behind their baselines failed")
            return
        with self._guard:
            self._runs.update(behind)

    def _asked(self, run_id: str | None) -> None:
        """Some worker found that a run is behind: its owner brings it up to date."""
        if run_id is not None and self._owners is not None and self._owners.holds(run_id):
            self.refresh(run_id)

    def _refresh(self, run_id: str) -> None:
        assert self._lifecycle is not None
        if self._crew is not None and self._owners is not None and self._owners.claim(run_id) is not None:
            self._crew.changes.tell(REFRESH, run_id)
            return
        try:
            self._lifecycle.refresh(run_id)
        except RunNotFound:
            _log.info("run %s was deleted before it was compared with its baseline", run_id)
        except SQLAlchemyError:
            raise
        except Exception:  # one run that cannot be judged must not keep the others from it
            _log.exception("run %s could not be compared with its baseline", run_id)


class StallWatch(BackgroundThread):
    """Marks a running run ``stalled`` when it has been silent for much longer than it usually is."""

    def __init__(
        self,
        *,
        database: Database,
        events: Events,
        duties: Duties | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="stalls")
        self._database = database
        self._events = events
        self._duties = duties or AllDuties()
        self._clock = clock
        self._since = clock()

    def look(self) -> list[str]:
        """Marks what is silent now and returns it.

        Time during which this server was down does not count as silence.
        """
        now = self._clock()
        with self._database.read() as c:
            found = [
                row for row in runs.silent(c) if now - max(row[2], self._since) > allowed_silence(row[3])
            ]
        marked = []
        for run, run_id, heard, _pace in found:
            with self._database.write() as c:
                if runs.stalled(c, run, silent_since=heard):
                    marked.append(run_id)
        for run_id in marked:
            self._events.publish("run", run=run_id, status="stalled")
        return marked

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                if self._duties.holds("stalls"):
                    self.look()
            except Exception:  # tried again in a few seconds
                _log.exception("looking for silent runs failed")


def allowed_silence(pace_s: float | None) -> float:
    """Seconds a run may be silent before it counts as stalled."""
    return STALL_UNKNOWN_S if pace_s is None else max(STALL_PACES * pace_s, STALL_LEAST_S)

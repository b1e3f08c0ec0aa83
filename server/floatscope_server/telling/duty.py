"""What has to be told at its time and not with a batch: groups of warnings, repeats, escalation, the ends of
quiet hours and silences. One thread of one worker.

What is due is in the database, so a process that ends forgets nothing, and the next one goes on.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from sqlalchemy.exc import SQLAlchemyError

from floatscope_server.alerting import Touched
from floatscope_server.background_thread import BackgroundThread
from floatscope_server.database import Database
from floatscope_server.events import Events
from floatscope_server.store import runs, silences, telling
from floatscope_server.telling import silencing
from floatscope_server.telling.teller import Teller

LOOK_S = 5.0  # looks at least this often, in case another worker left something
AT_ONCE = 100  # runs of one round
WENT_BACK_S = 2.0  # a clock that goes back by less is only adjusted
REST_S = 0.05  # between rounds, so that one that has nothing to do cannot spin

_log = logging.getLogger(__name__)


class Telling(BackgroundThread):
    """may_work: whether this process is the one that tells. woken: called when messages were queued."""

    def __init__(
        self,
        *,
        database: Database,
        teller: Teller,
        events: Events,
        woken: Callable[[], None],
        may_work: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="telling")
        self._database = database
        self.teller = teller
        self._events = events
        self._sent = woken
        self._may_work = may_work
        self._clock = clock
        self._last: float | None = None
        self._failed = False  # for some run or channel, in the latest look

    def wake(self) -> None:
        """Something changed: what is due may be due earlier."""
        self._woken.set()

    def look(self) -> float:
        """Tells what is due and returns the seconds until more is; infinite if nothing waits."""
        now = self._clock()
        self._failed = False
        self._mind_the_clock(now)
        count = self.apply_silences(now)
        with self._database.read() as c:
            due_runs = telling.due_runs(c, now=now, limit=AT_ONCE)
            due_channels = telling.due_channels(c, now=now)
        count += self._each(due_channels, self._summarise, now)
        count += self._each(due_runs, self._tell, now)
        if count:
            self._sent()
        if self._failed:
            return LOOK_S
        if len(due_runs) == AT_ONCE:
            return 0.0
        with self._database.read() as c:
            moments = (telling.next_due(c), silences.next_change(c, now=now))
        return min((max(m - self._clock(), 0.0) for m in moments if m is not None), default=math.inf)

    def apply_silences(self, now: float | None = None) -> int:
        """Silences what is to be silent now and lets go of the rest; returns the number of messages queued.

        Any worker may do it, also one that does not tell.
        """
        now = self._clock() if now is None else now
        with self._database.read() as c:
            run_ids = silencing.runs_to_change(c, now=now)
        return self._each(run_ids, self._silence, now)

    def _silence(self, run_id: str, now: float) -> int:
        with self._database.write() as c:
            run = runs.find(c, run_id, lock=True)
            if run is None:
                return 0
            moved = silencing.bring_in_line(c, run, now=now)
            count = self.teller.tell(c, run, moved.touched, now=now) if moved.touched.changed else 0
        for alert_id, state in moved.states.items():
            self._events.publish("alert", run=run_id, alert=alert_id, state=state)
        return count

    def _summarise(self, channel_id: str, now: float) -> int:
        with self._database.write() as c:
            return self.teller.summarise(c, channel_id, now=now)

    def _tell(self, run_id: str, now: float) -> int:
        with self._database.write() as c:
            run = runs.find(c, run_id, lock=True)
            return 0 if run is None else self.teller.tell(c, run, Touched(), now=now)

    def _each(self, names: Sequence[str], act: Callable[[str, float], int], now: float) -> int:
        """Does it for each; the sum. What fails for one must not keep the others from being told."""
        count = 0
        for name in names:
            try:
                count += act(name, now)
            except SQLAlchemyError:
                raise
            except Exception:  # such as a damaged row; tried again with the next look
                _log.exception("what is due of %s cannot be told", name)
                self._failed = True
        return count

    def _mind_the_clock(self, now: float) -> None:
        """After a start, or when the clock went back, times that lie ahead say nothing."""
        went_back = self._last is not None and now < self._last - WENT_BACK_S
        if self._last is None:
            with self._database.read() as c:
                went_back = telling.lies_ahead(c, now=now)
        if went_back:
            _log.warning("the clock went back; what was to be told later is looked at anew")
            with self._database.write() as c:
                telling.clock_went_back(c, now=now)
        self._last = now

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            wait = LOOK_S
            try:
                if self._may_work():
                    wait = min(self.look(), LOOK_S)
                else:
                    self._last = None
            except Exception:  # the database may be away for a while; what is due waits in it
                _log.exception("telling of alerts failed; trying again in %g s", LOOK_S)
            self._woken.wait(wait)
            self._stopping.wait(REST_S)

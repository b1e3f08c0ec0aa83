"""Back-tests: what a rule would have said of stored runs under other settings.

One thread, one back-test at a time on all workers together, and no more than a share of one core: after each
piece of work it sleeps in proportion. A run costs little: its engine is brought back from its saved state,
which holds all that was seen, and asked twice; only what came after the state is read again, in pieces, each
in a read transaction of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from floatscope_diagnostics.rule_settings import RuleSettings
from floatscope_server.background_thread import BackgroundThread
from floatscope_server.backtest_result import Firing, Result, RunResult, elsewhere, firings
from floatscope_server.database import Database
from floatscope_server.diagnosis import Diagnosis, StoredEngine, describe
from floatscope_server.rule_book import RuleBook
from floatscope_server.store import backtests, batches, rule_history, rule_settings, runs
from floatscope_server.store.backtests import BacktestRecord
from floatscope_server.store.rule_settings import EVERY
from floatscope_server.store.runs import RunRecord
from floatscope_server.times import iso
from floatscope_server.workers.duties import AllDuties, Duties

SHARE = 0.25  # of one core
POLL_S = 5.0  # for back-tests that another worker was asked for
SAY_S = 1.0  # between two reports of progress
MOST_RUNS = 1000
MOST_ROWS_A_RUN = 50_000  # to read again where no saved state fits; 20 s at 675 tensors
MOST_ROWS = 500_000
MOST_WORK_S = 600.0  # of processor time
BATCHES_AT_ONCE = 4
KEPT = 200  # finished ones
DAY_S = 86_400.0
DUTY = "backtest"

_log = logging.getLogger(__name__)


class _Over(Exception):
    """It was cancelled, or the server stops."""


class BackTests(BackgroundThread):
    """Works off what ``store.backtests`` holds. sleep: takes seconds; for tests."""

    def __init__(
        self,
        *,
        database: Database,
        diagnosis: Diagnosis,
        book: RuleBook,
        duties: Duties | None = None,
        sleep: Callable[[float], Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="backtests")
        self._database = database
        self._diagnosis = diagnosis
        self._book = book
        self._duties = duties or AllDuties()
        self._clock = clock
        self._sleep = sleep or self._stopping.wait
        self._work_s = 0.0

    def wake(self) -> None:
        self._woken.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._duties.holds(DUTY):
                    self.work()
            except Exception:  # the database may be away; what waits is found again
                _log.exception("back-tests are held up")
            self._woken.wait(POLL_S)
            self._woken.clear()

    def work(self) -> None:
        """Does all that waits. One that a worker left when it died is marked as failed, not begun again: it
        may have been what killed it.
        """
        with self._database.read() as c:
            found = backtests.open_ones(c)
        for record in found:
            if record.state == backtests.RUNNING:
                result = {
                    **(record.result or {}),
                    "reason": "the server stopped while it ran; start it again",
                }
                self._move(record, before=(backtests.RUNNING,), after=backtests.FAILED, result=result)
        for record in found:
            if self._stopping.is_set():
                return
            if record.state == backtests.WAITING and self._move(
                record, before=(backtests.WAITING,), after=backtests.RUNNING
            ):
                self._one(record)

    def _one(self, record: BacktestRecord) -> None:
        self._work_s = 0.0
        after, result = backtests.DONE, Result(0)
        try:
            result = self._begun(record)
            self._test(record, result)
        except _Over:
            if not self._stopping.is_set():
                return
            after = backtests.WAITING  # begun again by the next start
        except Exception as error:  # one that fails must not keep the others waiting
            _log.exception("back-test %s failed", record.id)
            after, result.reason = backtests.FAILED, describe(error)
        self._move(record, before=(backtests.RUNNING,), after=after, result=result.to_json())
        with self._database.write() as c:
            backtests.keep_newest(c, KEPT)

    def _begun(self, record: BacktestRecord) -> Result:
        days = record.request.get("days")
        return Result(0, days=None if days is None else int(days))

    def _test(self, record: BacktestRecord, result: Result) -> None:
        wanted = self._runs_of(record, result)
        result.total = len(wanted)
        said_at = self._clock()
        for run_id in wanted:
            self._go_on(record)
            if self._work_s > MOST_WORK_S:
                result.skipped.append((run_id, f"{MOST_WORK_S:.0f} s of work were spent on the runs before"))
                continue
            try:
                self._judge(record, run_id, result)
            except _Over:
                raise
            except Exception as error:  # a run that cannot be judged is told, and the others go on
                _log.exception("back-test %s: run %s failed", record.id, run_id)
                result.skipped.append((run_id, describe(error)))
            if self._clock() - said_at >= SAY_S:
                said_at = self._clock()
                running = (backtests.RUNNING,)
                self._move(record, before=running, after=backtests.RUNNING, result=result.to_json())

    def _runs_of(self, record: BacktestRecord, result: Result) -> list[str]:
        named = record.request.get("runs")
        if named is not None:
            return [str(run_id) for run_id in named]
        project = str(record.request["project"])
        with self._database.read() as c:
            return rule_history.recent_runs(
                c,
                since=record.created - (result.days or 0) * DAY_S,
                project=None if project == EVERY else project,
                limit=MOST_RUNS,
            )

    def _judge(self, record: BacktestRecord, run_id: str, result: Result) -> None:
        rule = str(record.request["rule"])
        with self._reading() as c:
            run = runs.find(c, run_id)
            if run is None:
                result.skipped.append((run_id, "there is no such run"))
                return
            settings = self._settings(c, record, run)
            if settings is None:
                why = "its project sets the rule itself, so this would change nothing"
                result.skipped.append((run_id, why))
                return
            stored = self._diagnosis.stored(c, run)
            behind = self._diagnosis.rows_behind(c, stored)
            raised = rule_history.of_run(c, run.id)
        if behind > min(MOST_ROWS_A_RUN, MOST_ROWS - result.rows):
            why = f"{behind:,} rows would have to be read again, which is more than a back-test reads"
            result.skipped.append((run_id, why))
            return
        self._catch_up(record, stored)
        result.rows += behind
        with self._measured():
            now, proposed = (self._diagnosis.judge_under(stored, s) for s in settings)
            found = RunResult(
                run_id,
                run.name,
                run.project,
                firings(now, rule, raised),
                firings(proposed, rule, raised),
                elsewhere(now, proposed, rule),
                sum(alert.rule == rule for alert in raised.values()),
            )
        with self._reading() as c:
            result.runs.append(_timed(c, run, found))

    def _settings(
        self, c: Connection, record: BacktestRecord, run: RunRecord
    ) -> tuple[RuleSettings, RuleSettings] | None:
        """As it is set for the run's project, and as it would be; None where it would be the same thing."""
        rule, project = str(record.request["rule"]), str(record.request["project"])
        stored = rule_settings.of_project(c, run.project)
        own = stored.get(rule)
        named = record.request.get("runs") is not None
        if project == EVERY and own is not None and own.project != EVERY and not named:
            return None
        now = self._book.valid(stored)
        return now, now.having(rule, self._book.parse(rule, record.request["setting"]))

    def _catch_up(self, record: BacktestRecord, stored: StoredEngine) -> None:
        left = True
        while left:
            with self._reading() as c:
                if runs.find(c, stored.run.run_id) is None:
                    raise LookupError("the run was deleted meanwhile")
                left = self._diagnosis.catch_up(c, stored, most=BATCHES_AT_ONCE)
            self._go_on(record)

    @contextmanager
    def _reading(self) -> Any:
        with self._measured(), self._database.read() as c:
            yield c

    @contextmanager
    def _measured(self) -> Any:
        """A piece of work, and the sleep that keeps it to its share of a core."""
        began = time.thread_time()
        try:
            yield
        finally:
            cost = time.thread_time() - began
            self._work_s += cost
            self._sleep(cost * (1.0 / SHARE - 1.0))

    def _go_on(self, record: BacktestRecord) -> None:
        """Raises _Over when there is no reason to go on."""
        if self._stopping.is_set():
            raise _Over
        with self._database.read() as c:
            if backtests.get(c, record.id).state != backtests.RUNNING:
                raise _Over

    def _move(
        self,
        record: BacktestRecord,
        *,
        before: tuple[str, ...],
        after: str,
        result: dict[str, Any] | None = None,
    ) -> bool:
        with self._database.write() as c:
            return backtests.move(c, record.id, before=before, after=after, now=self._clock(), result=result)


def _timed(c: Connection, run: RunRecord, found: RunResult) -> RunResult:
    """The same with the time of each onset."""

    def timed(firing: Firing) -> Firing:
        moment = batches.time_of(c, run.id, step=firing.onset_step, rank=0)
        return replace(firing, time=None if moment is None else iso(moment))

    return replace(found, now=tuple(map(timed, found.now)), proposed=tuple(map(timed, found.proposed)))

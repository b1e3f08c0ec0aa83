"""The life of a run beside its batches: created or resumed, changed, finished, deleted, compared with a
baseline that grew.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection

from floatscope.protocol import strict_json
from floatscope.protocol.runinfo import RunInfo
from floatscope_server.callers import SERVER, Caller
from floatscope_server.database import Database
from floatscope_server.diagnosis import Diagnosis, Judgement
from floatscope_server.errors import Busy, Refused
from floatscope_server.events import Events
from floatscope_server.locks import RunLocks
from floatscope_server.outcome import Outcome
from floatscope_server.store import audit, removal, runs, verdicts
from floatscope_server.store.runs import RankPosition, RunRecord

SLUG_CHARS = 40
RETRIES = 5  # how often a change starts over because another worker changed the run first


@dataclass(frozen=True)
class Opened:
    """The answer to ``POST /runs``."""

    run_id: str
    created: bool
    ranks: tuple[RankPosition, ...]


class Lifecycle:
    """Everything that changes a run and is not a batch.

    Each change is one transaction under the run's lock.
    """

    def __init__(
        self,
        *,
        database: Database,
        diagnosis: Diagnosis,
        outcome: Outcome,
        locks: RunLocks,
        events: Events,
        refresh_later: Callable[[str], None],
        deleted: Callable[[], None] = lambda: None,
        ended: Callable[[str], None] = lambda _run_id: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._diagnosis = diagnosis
        self._outcome = outcome
        self._locks = locks
        self._events = events
        self._refresh_later = refresh_later
        self._deleted = deleted
        self._ended = ended
        self._clock = clock

    def open(self, run_id: str | None, given: RunInfo) -> Opened:
        """Creates the run, or resumes it: tensors are merged, other given fields replaced, and it counts as
        running.
        """
        run_id = run_id or _made_up(given.name)
        # How a run ended is told by finish(); here it begins or goes on.
        described = replace(given, status=None, reason=None, extra={**given.extra, "run_id": run_id})
        _check(run_id, described)
        with self._locks.of(run_id):
            created = self._create(run_id, described)
            rebuilt = False if created else self._resume(run_id, described)
            with self._database.read() as c:
                positions = runs.positions(c, runs.get(c, run_id).id)
        self._events.publish("run", run=run_id, status="running")
        if rebuilt:
            self._refresh_later(run_id)
        return Opened(run_id, created, positions)

    def change(self, run_id: str, given: Mapping[str, str | None], by: Caller = SERVER) -> None:
        """Changes ``name``, ``project`` or ``baseline``; a baseline of None takes it away."""
        with self._locks.of(run_id):
            with self._database.write() as c:
                run = runs.get(c, run_id, lock=True)
                described = runs.info(c, run.id)
                merged = replace(
                    described,
                    name=given.get("name", described.name),
                    project=given.get("project", described.project),
                    baseline=given.get("baseline", described.baseline),
                )
                _check(run_id, merged)
                rebuild = merged.baseline != described.baseline
                moved = merged.project != described.project and run.status not in runs.ENDED
                runs.describe(c, run, merged)
                if rebuild:
                    _restart(c, run)
                audit.write(c, by, "run.change", target=run_id, detail=given, now=self._clock())
            self._diagnosis.forget(run.id)
        self._events.publish("run", run=run_id, status=run.status)
        if rebuild or moved:  # another project may set other things for its rules
            self._refresh_later(run_id)

    def finish(self, run_id: str, *, status: str, reason: str | None) -> None:
        """Marks how the run ended."""
        with self._locks.of(run_id):
            self._commit(
                run_id,
                lambda c, run: self._diagnosis.finish(c, run, status=status, reason=reason),
                values={"status": status, "reason": reason},
            )
        self._events.publish("run", run=run_id, status=status)
        self._ended(run_id)

    def refresh(self, run_id: str) -> None:
        """Compares the run with what its baseline sent meanwhile."""
        with self._locks.of(run_id):
            self._commit(run_id, self._diagnosis.refresh)

    def delete(
        self,
        run_id: str,
        by: Caller = SERVER,
        *,
        why: str | None = None,
        only_if: Callable[[RunRecord], bool] = lambda _run: True,
    ) -> bool:
        """Deletes the run: it is gone for everybody at once, its data is removed in the background. Runs
        compared with it are judged anew without it. why: a reason for the audit log. only_if: asked when
        nothing can change the run any more; returns what it said.
        """
        with self._locks.of(run_id):
            with self._database.write() as c:
                runs.lock_with_dependents(c, run_id)
                run = runs.get(c, run_id, lock=True)
                if not only_if(run):
                    return False
                dependents = removal.forget(c, run, by=by, why=why, now=self._clock())
            self._diagnosis.forget(run.id)
        self._events.publish("run", run=run_id, status="deleted")
        self._deleted()
        for dependent in dependents:
            self._refresh_later(dependent)
        return True

    def _create(self, run_id: str, described: RunInfo) -> bool:
        with self._database.read() as c:
            if runs.find(c, run_id) is not None:
                return False
        first = self._diagnosis.first_verdict(run_id, described)
        verdict = first.verdict or {}
        with self._database.write() as c:
            now = self._clock()
            if not runs.create(c, run_id, described, summary=verdict["summary"], now=now):
                return False
            run = runs.get(c, run_id)
            runs.change(c, run.id, {"health": verdict["status"], "diagnosis_error": first.error})
            verdicts.save(c, run.id, verdict, now=now)
        return True

    def _resume(self, run_id: str, given: RunInfo) -> bool:
        """Merges what was given; True if with another baseline the verdict must be made anew."""
        with self._database.read() as c:
            run = runs.get(c, run_id)
            described = runs.info(c, run.id)
        if described.merged(given) == described and run.status == "running":
            return False
        running: dict[str, Any] = {"status": "running", "reason": None}
        if run.status != "running":  # or it would count as silent since its last step
            running["last_seen"] = self._clock()
        if given.baseline is not None and given.baseline != described.baseline:
            with self._database.write() as c:
                run = runs.get(c, run_id, lock=True)
                runs.describe(c, run, runs.info(c, run.id).merged(given))
                _restart(c, run)
                runs.change(c, run.id, running)
            self._diagnosis.forget(run.id)
            return True

        def update(c: Connection, run: RunRecord) -> Judgement:
            merged = runs.info(c, run.id).merged(given)
            return self._diagnosis.update(c, run, replace(merged, status="running"))

        self._commit(run_id, update, given=given, values=running)
        return False

    def _commit(
        self,
        run_id: str,
        judge: Callable[[Connection, RunRecord], Judgement],
        *,
        given: RunInfo | None = None,
        values: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Stores a judgement and what goes with it; starts over if another worker changed the run first."""
        for _ in range(RETRIES):
            with self._database.read() as c:
                run = runs.get(c, run_id)
                judgement = judge(c, run)
            news = None
            try:
                with self._database.write() as c:
                    if run.same_as(runs.get(c, run_id, lock=True)):
                        if given is not None:
                            runs.describe(c, run, runs.info(c, run.id).merged(given))
                        if values:
                            runs.change(c, run.id, values)
                        news = self._outcome.store(c, run, judgement, now=self._clock())
            except BaseException:
                self._diagnosis.forget(run.id)
                raise
            if news is not None:
                self._outcome.tell(run, news)
                return
            self._diagnosis.forget(run.id)
        raise Busy(run_id)


def _restart(c: Connection, run: RunRecord) -> None:
    runs.change(c, run.id, runs.REBUILD)
    verdicts.forget_engine(c, run.id)


def _check(run_id: str, described: RunInfo) -> None:
    """What the protocol does not see: a description that cannot be stored, a run that is its own baseline."""
    if described.baseline == run_id:
        raise Refused("baseline", "the id of another run", "the run's own id")
    try:
        strict_json.check_writable(described.to_json())
    except (UnicodeEncodeError, RecursionError) as error:
        raise Refused(
            "run", "valid Unicode text in every field, nested less deeply", type(error).__name__
        ) from error


def _made_up(name: str | None) -> str:
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in (name or "run").lower())
    return f"{kept[:SLUG_CHARS].strip('-') or 'run'}-{secrets.token_hex(4)}"

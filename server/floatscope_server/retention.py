"""Which runs are deleted because of their age or size, and the thread that does it.

Only runs that ended: finished, failed, crashed, or stalled for ``STALLED_S``. A baseline is as young as the
youngest run that names it, and while a run that stays names it, size alone does not delete it.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from floatscope_server.background_thread import BackgroundThread
from floatscope_server.callers import SERVER
from floatscope_server.database import Database
from floatscope_server.errors import RunNotFound
from floatscope_server.lifecycle import Lifecycle
from floatscope_server.settings import Settings
from floatscope_server.store import kept
from floatscope_server.store.kept import Kept
from floatscope_server.store.runs import ENDED, RunRecord

DAY_S, GIB = 86_400.0, 1 << 30
STALLED_S = 7 * DAY_S
LOOK_S = 600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """None: no limit."""

    days: float | None = None
    gib: float | None = None
    keep: bool = False


@dataclass(frozen=True)
class Policy:
    """Limits of all runs together, and of projects that differ. A project's size is its own."""

    every: Limits = Limits()
    projects: Mapping[str, Limits] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        own = {
            name: Limits(p.days if p.days is not None else settings.retention_days, p.gib, p.keep)
            for name, p in settings.retention_projects.items()
        }
        return cls(Limits(settings.retention_days, settings.retention_gib), own)

    def days(self, project: str) -> float | None:
        """Age at which a run of the project goes, in days."""
        limits = self.projects.get(project, self.every)
        return None if limits.keep else limits.days

    def keeps(self, project: str) -> bool:
        return self.projects.get(project, self.every).keep

    def asks_nothing(self) -> bool:
        return all(
            limits.days is None and limits.gib is None for limits in (self.every, *self.projects.values())
        )


@dataclass(frozen=True)
class Doomed:
    """A run that goes, and why. seen: its last sign of life when that was decided (Unix seconds)."""

    run_id: str
    project: str
    bytes: int
    why: str
    seen: float

    def is_still(self, run: RunRecord) -> bool:
        """Whether nobody has taken the run up again since it was decided."""
        seen = run.created if run.last_seen is None else run.last_seen
        return seen == self.seen and run.status in (*ENDED, "stalled")


def plan(runs: Sequence[Kept], policy: Policy, *, now: float) -> list[Doomed]:
    """The runs to delete, oldest first. runs: all of them, oldest sign of life first."""
    doomed = _by_age(runs, policy, now)
    gone = {run.run_id for run in doomed}
    sizes = [(f"project {name}", limits.gib, name) for name, limits in sorted(policy.projects.items())]
    for what, gib, project in [*sizes, ("all runs", policy.every.gib, None)]:
        if gib is not None:
            found = _by_size(runs, policy, gone, what, gib, project, now)
            doomed += found
            gone |= {run.run_id for run in found}
    return doomed


def _by_age(runs: Sequence[Kept], policy: Policy, now: float) -> list[Doomed]:
    used: dict[str, float] = defaultdict(float)
    for run in runs:
        if run.baseline is not None:
            used[run.baseline] = max(used[run.baseline], run.seen)
    out = []
    for run in runs:
        days = policy.days(run.project)
        if days is None or not _ended(run, now):
            continue
        age_days = (now - max(run.seen, used[run.run_id])) / DAY_S
        if age_days > days:
            out.append(Doomed(run.run_id, run.project, run.bytes, f"older than {days:g} days", run.seen))
    return out


def _by_size(
    runs: Sequence[Kept],
    policy: Policy,
    gone: set[str],
    what: str,
    gib: float,
    project: str | None,
    now: float,
) -> list[Doomed]:
    of_limit = [r for r in runs if r.run_id not in gone and project in (None, r.project)]
    total = sum(run.bytes for run in of_limit)
    out: list[Doomed] = []
    while total > gib * GIB:
        leaving = gone | {run.run_id for run in out}
        named = {run.baseline for run in runs if run.run_id not in leaving}
        free = (
            run
            for run in of_limit
            if run.run_id not in leaving
            and run.run_id not in named
            and _ended(run, now)
            and not policy.keeps(run.project)
            and run.bytes
        )
        oldest = next(free, None)
        if oldest is None:
            break
        why = f"{what} over {gib:g} GiB"
        out.append(Doomed(oldest.run_id, oldest.project, oldest.bytes, why, oldest.seen))
        total -= oldest.bytes
    return out


def _ended(run: Kept, now: float) -> bool:
    return run.status in ENDED or (run.status == "stalled" and now - run.seen > STALLED_S)


class Retention(BackgroundThread):
    """Applies a policy now and then. ``alone``: whether this worker is the one that does."""

    def __init__(
        self,
        *,
        database: Database,
        lifecycle: Lifecycle,
        policy: Policy,
        alone: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="retention")
        self._database = database
        self._lifecycle = lifecycle
        self._policy = policy
        self._alone = alone
        self._clock = clock

    def start(self) -> None:
        if not self._policy.asks_nothing():
            super().start()

    def due(self) -> list[Doomed]:
        """What would go now."""
        with self._database.read() as c:
            return plan(kept.all_runs(c), self._policy, now=self._clock())

    def apply(self) -> list[Doomed]:
        """Deletes what is due, with a line in the log and in the audit log for each."""
        done = []
        for run in self.due():
            if self._stopping.is_set():
                break
            try:
                if not self._lifecycle.delete(run.run_id, SERVER, why=run.why, only_if=run.is_still):
                    continue
            except RunNotFound:  # somebody was faster
                continue
            _log.info("run %s of project %s is deleted: %s", run.run_id, run.project, run.why)
            done.append(run)
        return done

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._alone():
                    self.apply()
            except Exception:  # the database may be away; tried again later
                _log.exception("deleting old runs failed")
            self._stopping.wait(LOOK_S)

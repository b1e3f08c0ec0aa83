"""Live diagnosis: one engine per run, brought back after a restart from its saved state and the batches
after it.

The engine gives the same findings under any chunking, so "saved state, then the stored batches in the order
in which they arrived" is exactly the engine that was running. Whatever is not a batch (a new description,
the end of a run) is rare and saves the state at once, so a replay never has to repeat it. See
docs/decisions/0010.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol import strict_json
from floatscope.protocol.batch import Batch, Float64, Int64
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.rule_settings import RuleSettings
from floatscope_server.database import AWAY
from floatscope_server.errors import Unreachable
from floatscope_server.store import batches, kinds, runs, verdicts
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.sequence import BatchSequence
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects
from floatscope_server.store.verdicts import SavedEngine

SNAPSHOT_STEPS = 512  # a restart replays at most this many steps of a run, about a second of work
# Engines kept in memory, each 0.1 to 3 MB. One that is pushed out is restored when its run sends again.
LIVE_ENGINES = 256
# After that many batches that the engine failed on, it is left alone until the next start.
FAILURES_BEFORE_OFF = 5
ERROR_CHARS = 1000
OFF = "; diagnosis of this run is off until the server starts again"

NOTHING_SAID: dict[str, Any] = {
    "schema": "floatscope.verdict/1",
    "status": "healthy",
    "summary": "Nothing has been judged yet.",
    "last_clean_step": None,
    "findings": [],
    "not_checked": [],
}

_log = logging.getLogger(__name__)


class Verdict(Protocol):
    def to_json(self) -> dict[str, Any]: ...


class LiveEngine(Protocol):
    """What the server needs of ``floatscope_diagnostics.engine.Engine``."""

    def feed(self, batch: Batch, rank: int = ..., segment: int | None = ...) -> None: ...
    def feed_baseline(
        self, step: Int64, loss: Float64, data_id: Float64 | None = ..., lr: Float64 | None = ...
    ) -> None: ...
    def update_run(self, run: RunInfo) -> None: ...
    def finish(self, status: str | None = ..., reason: str | None = ...) -> None: ...
    def use(self, settings: RuleSettings) -> None: ...
    def verdict(self, *, live: bool = ...) -> Verdict: ...
    def state(self) -> bytes: ...


class Engines(Protocol):
    """Makes engines: the class ``Engine`` itself, or a stand-in in tests."""

    def __call__(self, run: RunInfo, *, run_key: str | None = ...) -> LiveEngine: ...
    def restore(self, run: RunInfo, state: bytes) -> LiveEngine: ...


@dataclass(frozen=True)
class Judgement:
    """What the engine says after an event. ``verdict`` is None if it was not asked or failed; ``error``
    says why.

    saved: the engine's state, when it is time to store it, in the same transaction as what it was fed.
    """

    verdict: dict[str, Any] | None
    judged: bool
    error: str | None = None
    baseline_arrivals: int | None = None
    saved: SavedEngine | None = None


@dataclass
class _Live:
    engine: LiveEngine
    version: int
    revision: int
    arrivals: int
    baseline_arrivals: int
    unsaved_steps: int
    settings: RuleSettings = field(default_factory=RuleSettings)
    sequence: BatchSequence | None = None  # while stored batches are fed
    is_new: bool = False  # it was made without a saved state and has not read all yet
    brought_back: bool = False  # just now: with more live runs than engines that may happen at every batch


@dataclass(frozen=True)
class StoredEngine:
    """An engine brought back beside the live one, as far as it has read what is stored."""

    run: RunRecord
    live: _Live


def _as_written(_c: Connection, _run: RunRecord) -> RuleSettings:
    return RuleSettings()


class Diagnosis:
    """Engines of the runs that are live.

    The caller holds the run's lock, stores the judgement with the run's version raised by one, and calls
    ``forget`` if that commit failed. rules_of: what is set for the rules of a run; asked at each
    judgement, since a setting holds for all steps of a run at once and leaves no trace in an engine.
    """

    def __init__(
        self,
        *,
        engines: Engines,
        tensor_tables: TensorTables,
        enabled: bool = True,
        objects: Objects | None = None,
        rules_of: Callable[[Connection, RunRecord], RuleSettings] = _as_written,
    ) -> None:
        self._engines = engines
        self._tensor_tables = tensor_tables
        self._enabled = enabled
        self._objects = objects
        self._rules_of = rules_of
        self._lock = threading.Lock()
        self._live: OrderedDict[int, _Live] = OrderedDict()
        self._failures: dict[int, int] = {}
        self.brought_back = 0  # engines that were restored or replayed so far

    def live(self) -> int:
        """Engines in memory."""
        return len(self._live)

    def feed(self, c: Connection, run: RunRecord, *, batch: Batch, rank: int, segment: int) -> Judgement:
        """Judges a batch that is about to be stored as the run's next arrival."""

        def step(live: _Live) -> bool:
            live.engine.feed(batch, rank=rank, segment=segment)
            live.arrivals += 1
            live.unsaved_steps += len(batch)
            return live.unsaved_steps >= SNAPSHOT_STEPS

        return self._judge(c, run, step)

    def refresh(self, c: Connection, run: RunRecord) -> Judgement:
        """Feeds what the baseline sent meanwhile, after a rebuild if the saved engine no longer fits the
        run.
        """
        return self._judge(c, run, lambda live: live.unsaved_steps >= SNAPSHOT_STEPS)

    def update(self, c: Connection, run: RunRecord, described: RunInfo) -> Judgement:
        """Tells the engine a new description of the run."""

        def step(live: _Live) -> bool:
            live.engine.update_run(described)
            return True

        resumed = described.status == "running"
        return self._judge(c, run, step, live=True if resumed else None, may_wait=not resumed)

    def finish(self, c: Connection, run: RunRecord, *, status: str, reason: str | None) -> Judgement:
        """Tells the engine how the run ended."""

        def step(live: _Live) -> bool:
            live.engine.finish(status, reason)
            return True

        return self._judge(c, run, step, live=False, may_wait=False)

    def forget(self, run: int) -> None:
        """Drops the engine in memory; the next event restores it from what is stored."""
        with self._lock:
            self._live.pop(run, None)

    def first_verdict(self, run_id: str, described: RunInfo) -> Judgement:
        """What is said of a run that has sent nothing."""
        try:
            body = _on_server(self._engines(described, run_key=run_id).verdict(live=True).to_json())
            strict_json.dumps(body)
        except Exception as error:  # as below: the run is made, and the fault is shown
            _log.exception("diagnosis of the new run %s failed", run_id)
            return Judgement(_on_server(NOTHING_SAID), judged=False, error=describe(error))
        return Judgement(body, judged=True)

    def stored(self, c: Connection, run: RunRecord) -> StoredEngine:
        """An engine of the run beside the live one, from its saved state; ``catch_up`` feeds it the rest."""
        return StoredEngine(run, self._saved(c, run))

    def rows_behind(self, c: Connection, stored: StoredEngine) -> int:
        """Rows that ``catch_up`` still has to feed."""
        run, after = stored.run, stored.live.arrivals
        return batches.judged_rows(c, run.id, after=after, until=run.arrivals)

    def catch_up(self, c: Connection, stored: StoredEngine, *, most: int) -> bool:
        """Feeds at most so many of the batches that were stored when ``stored`` was made; whether any are
        left.
        """
        if self._replay(c, stored.run, stored.live, most=most):
            return True
        self._feed_baseline(c, stored.live, stored.run)
        return False

    def judge_under(self, stored: StoredEngine, settings: RuleSettings) -> dict[str, Any]:
        """What the engine says of all it was fed, under these settings."""
        stored.live.engine.use(settings)
        going_on = stored.run.status not in runs.ENDED
        return _on_server(stored.live.engine.verdict(live=going_on).to_json())

    def _judge(
        self,
        c: Connection,
        run: RunRecord,
        step: Callable[[_Live], bool],
        *,
        live: bool | None = None,
        may_wait: bool = True,
    ) -> Judgement:
        """``live``: whether the run goes on, so that a finding that recovered no longer counts for its
        status. may_wait: the step is found again in what is stored, so it need not be judged now; else an
        object store that is away raises Unreachable.
        """
        if not self._enabled:
            return Judgement(None, judged=False)
        if self._failures.get(run.id, 0) >= FAILURES_BEFORE_OFF:
            last = (run.diagnosis_error or "").removesuffix(OFF)
            return Judgement(None, judged=False, error=last + OFF)
        try:
            ready = self._ready(c, run)
            wanted = self._rules_of(c, run)
            if wanted != ready.settings:
                ready.engine.use(wanted)
                ready.settings = wanted
            save = step(ready) or ready.brought_back  # so that the next time nothing has to be fed again
            ready.brought_back = False
            self._feed_baseline(c, ready, run)
            ready.version = run.version + 1
            goes_on = run.status not in runs.ENDED if live is None else live
            body = _on_server(ready.engine.verdict(live=goes_on).to_json())
            saved = None
            if save:
                saved = SavedEngine(
                    ready.revision, ready.arrivals, ready.baseline_arrivals, ready.engine.state()
                )
                ready.unsaved_steps = 0
            return Judgement(body, judged=True, baseline_arrivals=ready.baseline_arrivals, saved=saved)
        except AWAY:  # no fault of the diagnosis: the sender sends the batch again
            self.forget(run.id)
            raise
        except OSError as error:  # the object store is away: judged once earlier batches can be read
            self.forget(run.id)
            is_missing = isinstance(error, FileNotFoundError)  # for good, perhaps, so it is shown
            if not may_wait and not is_missing:
                raise Unreachable(f"what the diagnosis of run {run.run_id} has to read") from error
            _log.warning("the diagnosis of run %s waits: %s", run.run_id, error)
            return Judgement(None, judged=True, error=describe(error) if is_missing else None)
        except Exception as error:  # must not cost a batch: it is stored, and the fault is shown
            self.forget(run.id)
            self._failures[run.id] = self._failures.get(run.id, 0) + 1
            _log.exception("diagnosis of run %s failed; its batches are stored all the same", run.run_id)
            return Judgement(None, judged=False, error=describe(error))

    def _ready(self, c: Connection, run: RunRecord) -> _Live:
        """The run's engine as it stands after all that is stored."""
        with self._lock:
            live = self._live.get(run.id)
            if live is not None:
                self._live.move_to_end(run.id)
        if live is None or live.version != run.version or live.revision != run.revision:
            live = self._bring_back(c, run)
            if run.arrivals:
                self.brought_back += 1
                live.brought_back = True
                _log.info("the diagnosis of run %s was brought back at arrival %d", run.run_id, run.arrivals)
            with self._lock:
                self._live[run.id] = live
                while len(self._live) > LIVE_ENGINES:
                    self._live.popitem(last=False)
        return live

    def _bring_back(self, c: Connection, run: RunRecord) -> _Live:
        live = self._saved(c, run)
        self._replay(c, run, live)
        return live

    def _saved(self, c: Connection, run: RunRecord) -> _Live:
        """The engine as it was last saved, or a new one that has read nothing."""
        described = runs.info(c, run.id)
        saved = verdicts.engine(c, run.id)
        if saved is not None and saved.revision == run.revision and saved.arrivals <= run.arrivals:
            try:
                engine = self._engines.restore(described, saved.state)
            except Exception:  # a state of an older version; the batches hold all it knew
                _log.warning(
                    "the saved diagnosis of run %s does not fit this version: judging it anew", run.run_id
                )
            else:
                return _Live(engine, run.version, run.revision, saved.arrivals, saved.baseline_arrivals, 0)
        engine = self._engines(described, run_key=run.run_id)
        return _Live(engine, run.version, run.revision, 0, 0, 0, is_new=True)

    def _replay(self, c: Connection, run: RunRecord, live: _Live, *, most: int | None = None) -> bool:
        """Feeds the stored batches the engine has not seen, at most so many; whether any are left."""
        sequence = live.sequence or self._sequence(run.id, ranks=len(runs.positions(c, run.id)))
        live.sequence = sequence
        at_once = batches.KEYS_AT_ONCE if most is None else most + 1
        left = batches.arrived(c, run.id, after=live.arrivals, until=run.arrivals, at_once=at_once)
        for count, key in enumerate(left):
            if count == most:
                return True
            if key.judged:
                batch = sequence.load(c, key)
                live.engine.feed(batch, rank=key.rank, segment=key.segment)
                live.unsaved_steps += len(batch)
            live.arrivals = key.arrival
        if live.is_new and run.status in runs.ENDED:
            live.engine.finish(run.status, run.reason)
        live.is_new = False
        live.sequence = None
        return False

    def _sequence(self, run: int, *, ranks: int = 1, tensors: bool = True) -> BatchSequence:
        return BatchSequence(
            run, tensor_tables=self._tensor_tables, objects=self._objects, ranks=ranks, tensors=tensors
        )

    def _feed_baseline(self, c: Connection, live: _Live, run: RunRecord) -> None:
        """Feeds the loss of the baseline's batches that the engine has not seen."""
        baseline = None if run.baseline is None else runs.find(c, run.baseline)
        if baseline is None or live.baseline_arrivals >= baseline.arrivals:
            return
        ranks = runs.series(c, baseline.id).get((kinds.SCALARS, "loss"), ())
        if ranks:
            sequence = self._sequence(baseline.id, tensors=False)
            new = {"after": live.baseline_arrivals, "until": baseline.arrivals}
            for key in batches.arrived(c, baseline.id, rank=ranks[0], **new):
                if not key.lost:
                    _feed_losses(live, sequence.load(c, key))
        live.baseline_arrivals = baseline.arrivals


def _feed_losses(live: _Live, batch: Batch) -> None:
    loss, present = batch.scalar("loss")
    ids, has_ids = batch.scalar("data_id")
    rates, has_rates = batch.scalar("lr")
    data_id, lr = (
        np.where(has, values, np.nan)[present] if has.any() else None
        for values, has in ((ids, has_ids), (rates, has_rates))
    )
    if present.any():
        live.engine.feed_baseline(batch.step[present], loss[present], data_id, lr)


def describe(error: Exception) -> str:
    """One line about a fault, in plain ASCII, since its text may hold anything."""
    text = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
    return text.encode("ascii", "backslashreplace").decode().replace("\x00", "")


def _on_server(body: dict[str, Any]) -> dict[str, Any]:
    """On a server a verdict's source is the server, not a file."""
    source = {**body.get("source", {}), "path": None, "format": "floatscope"}
    return {**body, "source": source}

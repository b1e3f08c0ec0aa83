"""Stores batches exactly once, each in one transaction with its diagnosis, alerts and messages."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol import strict_json, wire_json, wire_safetensors
from floatscope.protocol.batch import Batch
from floatscope.protocol.closer_look import CloserLook
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.judgement import Judgement as BriefJudgement
from floatscope.protocol.runinfo import RunInfo, TensorTable
from floatscope_server.body import Body
from floatscope_server.compaction import cells_a_row, is_due
from floatscope_server.database import Database
from floatscope_server.diagnosis import Diagnosis, Judgement
from floatscope_server.errors import Busy, Refused, SeqConflict, SeqGap, from_protocol
from floatscope_server.events import Events
from floatscope_server.glance import glance
from floatscope_server.locks import RunLocks
from floatscope_server.outcome import Outcome
from floatscope_server.store import batches, runs
from floatscope_server.store.batches import BatchKey
from floatscope_server.store.runs import RankPosition, RunRecord
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.times import iso

CONTENT_TYPES = (wire_json.CONTENT_TYPE, wire_safetensors.CONTENT_TYPE)
RETRIES = 5  # how often a batch starts over because another worker stored one of the same run first
PACE_WEIGHT = 0.2  # weight of the latest interval in the usual time between batches
CACHED_DESCRIPTIONS = 128


@dataclass(frozen=True)
class Receipt:
    """The answer to a stored batch.

    verdict: what the diagnosis says now, in short; None where it has nothing to say.  repeated: the batch had
    been stored before.  steps, values: in the batch.  hot_rows, hot_batches: of the rank, not in chunks yet.
    """

    expected_seq: int
    segment: int
    settings: dict[str, Any]
    verdict: dict[str, Any] | None = None
    repeated: bool = False
    steps: int = 0
    values: int = 0
    hot_rows: int = 0
    hot_batches: int = 0


class _Moved(Exception):
    """Another worker changed the run between reading and writing."""


class Ingest:
    """The one way by which steps come in."""

    def __init__(
        self,
        *,
        database: Database,
        tensor_tables: TensorTables,
        diagnosis: Diagnosis,
        outcome: Outcome,
        locks: RunLocks,
        events: Events,
        baseline_grew: Callable[[str], None],
        compact_later: Callable[[int, int], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._tensor_tables = tensor_tables
        self._diagnosis = diagnosis
        self._outcome = outcome
        self._locks = locks
        self._events = events
        self._baseline_grew = baseline_grew
        self._compact_later = compact_later
        self._clock = clock
        self._closer_look = CloserLook()
        self._cache_guard = threading.Lock()
        self._descriptions: OrderedDict[int, tuple[int, RunInfo]] = OrderedDict()

    def check_run(self, run_id: str) -> None:
        """Raises RunNotFound; asked before a body is read."""
        with self._database.read() as c:
            runs.get(c, run_id)

    def put(self, run_id: str, *, rank: int, seq: int, content_type: str, body: Body) -> Receipt:
        """Stores a batch, or finds that it is stored.

        Raises RunNotFound, SeqGap, SeqConflict, Refused (also as 413 and 415) or the 409 that asks for the
        tensor table.
        """
        with self._locks.of(run_id):
            for _ in range(RETRIES):
                try:
                    return self._put(run_id, rank=rank, seq=seq, content_type=content_type, body=body)
                except _Moved:
                    continue
        raise Busy(run_id)

    def _put(self, run_id: str, *, rank: int, seq: int, content_type: str, body: Body) -> Receipt:
        with self._database.read() as c:
            run = runs.get(c, run_id)
            at = runs.position(c, run.id, rank)
            known = self._known(c, run, at, seq=seq, body=body)
            if known is not None:
                return known
            batch, table = self._decode(c, run, at, rank=rank, content_type=content_type, body=body)
            segment = _segment(batch, at)
            described = self._described(c, run)
            merged = described if table is None else described.merged(RunInfo(tensors=table))
            judgement = (
                self._diagnosis.feed(c, run, batch=batch, rank=rank, segment=segment)
                if merged.tensors == described.tensors
                else None
            )
        if judgement is None:
            self._add_tensors(run, merged)
            raise _Moved  # described now: the batch starts over
        now = self._clock()
        seen = glance(batch, merged.tensors)
        numbers = batches.packed(batch)
        try:
            with self._database.write() as c:
                locked = runs.get(c, run_id, lock=True)
                if not run.same_as(locked):
                    raise _Moved
                key = _key(run, at, batch, seq=seq, segment=segment, judged=judgement.judged)
                if batch.tensor_names:
                    key = replace(
                        key, tensor_table=self._tensor_tables.add(c, run.id, table or _names_only(batch))
                    )
                size = batches.write(c, run.id, key, numbers, digest=body.digest, received=now, glance=seen)
                if size is None:
                    raise _Moved
                stands = RankPosition(rank, seq + 1, segment, _last_step(batch, at, segment), now)
                hot_rows, hot_batches = runs.place(c, run.id, stands, rows=len(batch))
                runs.change(c, run.id, _progress(locked, key, seen, now) | runs.more_bytes(size))
                news = self._outcome.store(c, run, judgement, now=now)
        except BaseException:
            self._diagnosis.forget(run.id)
            raise
        self._events.publish("tick", run=run_id, rank=rank, step=key.last_step, time=iso(now))
        self._outcome.tell(run, news)
        if locked.status == "stalled":
            self._events.publish("run", run=run_id, status="running")
        self._baseline_grew(run_id)
        if is_due(hot_rows=hot_rows, hot_batches=hot_batches, cells_a_row=cells_a_row(batch)):
            self._compact_later(run.id, rank)
        asked = self._closer_look.settings(
            judgement.verdict, last_step=key.last_step, run=run.id, tensors=described.tensors
        )
        return Receipt(
            seq + 1,
            segment,
            asked,
            brief(judgement, segment=segment),
            steps=len(batch),
            values=values_in(batch),
            hot_rows=hot_rows,
            hot_batches=hot_batches,
        )

    def _known(
        self, c: Connection, run: RunRecord, at: RankPosition, *, seq: int, body: Body
    ) -> Receipt | None:
        if seq > at.next_seq:
            raise SeqGap(seq, at.next_seq)
        if seq == at.next_seq:
            return None
        stored = batches.digest(c, run.id, at.rank, seq)
        if stored is None or stored[0] != body.digest:
            raise SeqConflict(seq, at.next_seq)
        return Receipt(at.next_seq, at.segment, {}, repeated=True)

    def _decode(
        self, c: Connection, run: RunRecord, at: RankPosition, *, rank: int, content_type: str, body: Body
    ) -> tuple[Batch, TensorTable | None]:
        kind = content_type.partition(";")[0].strip().lower()
        if kind not in CONTENT_TYPES:
            raise Refused("Content-Type", " or ".join(CONTENT_TYPES), kind or "none", status=415)
        if body.fault is not None:
            raise body.fault

        def find_table(digest: str) -> TensorTable | None:
            stored = self._tensor_tables.find(c, run.id, digest)
            return None if stored is None else stored.table

        try:
            if kind == wire_json.CONTENT_TYPE:
                return wire_json.decode(body.content, rank=rank), None
            return wire_safetensors.decode(body.content, find_table=find_table)
        except ProtocolError as error:
            raise from_protocol(error, expected_seq=at.next_seq) from error

    def _described(self, c: Connection, run: RunRecord) -> RunInfo:
        """The run's description, read again only after it changed: its tensor table may be long."""
        with self._cache_guard:
            cached = self._descriptions.get(run.id)
        if cached is not None and cached[0] == run.described:
            return cached[1]
        described = runs.info(c, run.id)
        with self._cache_guard:
            self._descriptions[run.id] = (run.described, described)
            while len(self._descriptions) > CACHED_DESCRIPTIONS:
                self._descriptions.popitem(last=False)
        return described

    def _add_tensors(self, run: RunRecord, merged: RunInfo) -> None:
        """A batch brought tensors that the run's description does not have; that is stored first, by
        itself.
        """
        with self._database.read() as c:
            judgement = self._diagnosis.update(c, run, merged)
        try:
            with self._database.write() as c:
                if not run.same_as(runs.find(c, run.run_id, lock=True)):
                    raise _Moved
                runs.describe(c, run, merged)
                self._outcome.store(c, run, judgement, now=self._clock())
        except BaseException:
            self._diagnosis.forget(run.id)
            raise


def brief(judgement: Judgement, *, segment: int) -> dict[str, Any] | None:
    """The verdict in short, for the loop that sent the batch; None where there is none that can be told."""
    if judgement.verdict is None:
        return None
    said = BriefJudgement.of_verdict(judgement.verdict, segment=segment).to_json()
    try:
        strict_json.check_writable(said)
    except ValueError:  # as with alerts: what cannot be told costs no batch
        return None
    return said


def values_in(batch: Batch) -> int:
    """Numbers in a batch, NaN and infinities among them; missing ones are none."""
    of_tensors = sum(int(np.count_nonzero(present)) for present in batch.stats_present.values())
    return of_tensors + int(np.count_nonzero(batch.scalars_present))


def _names_only(batch: Batch) -> TensorTable:
    return {name: {} for name in batch.tensor_names}


def _segment(batch: Batch, at: RankPosition) -> int:
    """The segment a batch belongs to. A sender that does not know of a newer one is taken into it."""
    if batch.segment is not None and batch.segment > at.segment + 1:
        raise Refused("segment", f"at most {at.segment + 1}, one above the current", batch.segment)
    if batch.segment == at.segment + 1:
        return at.segment + 1
    back = len(batch) > 0 and at.last_step is not None and batch.step[0] <= at.last_step
    return at.segment + 1 if back else at.segment


def _last_step(batch: Batch, at: RankPosition, segment: int) -> int | None:
    """Last stored step of the rank's segment; a hole of lost steps stores none."""
    if len(batch):
        return int(batch.step[-1])
    return at.last_step if segment == at.segment else None


def _key(run: RunRecord, at: RankPosition, batch: Batch, *, seq: int, segment: int, judged: bool) -> BatchKey:
    first, last = batch.lost or (int(batch.step[0]), int(batch.step[-1]))
    return BatchKey(
        rank=at.rank,
        seq=seq,
        arrival=run.arrivals + 1,
        segment=segment,
        rows=len(batch),
        first_step=first,
        last_step=last,
        lost=batch.lost is not None,
        tensor_table=None,
        judged=judged,
    )


def _progress(run: RunRecord, key: BatchKey, seen: dict[str, float], now: float) -> dict[str, Any]:
    """What changes in the run's row with a batch."""
    values: dict[str, Any] = {"arrivals": key.arrival, "last_seen": now}
    if not key.lost:
        values["first_step"] = (
            key.first_step if run.first_step is None else min(run.first_step, key.first_step)
        )
        values["last_step"] = key.last_step if run.last_step is None else max(run.last_step, key.last_step)
    if "loss" in seen and (
        key.rank == 0 or run.last_loss is None
    ):  # ranks log their own; rank 0 speaks for the run
        values["last_loss"] = seen["loss"]
    if run.status == "stalled":
        values["status"] = "running"
    elif run.last_seen is not None:
        interval = max(now - run.last_seen, 0.0)
        values["pace_s"] = (
            interval if run.pace_s is None else (1 - PACE_WEIGHT) * run.pace_s + PACE_WEIGHT * interval
        )
    return values

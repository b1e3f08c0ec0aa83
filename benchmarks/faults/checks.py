"""What must be true of a server's data after everything that was done to it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from benchmarks.faults.same_bits import Compared, compare
from benchmarks.faults.story import Sent, Story
from benchmarks.faults.tally import Tally
from floatscope.protocol import wire_json, wire_safetensors
from floatscope.protocol.batch import Batch, lost_batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from floatscope_server import alerting, tables
from floatscope_server.body import unpack
from floatscope_server.database import Database
from floatscope_server.dbtool.verify import Counted, verify
from floatscope_server.store import batches, runs, verdicts
from floatscope_server.store.batches import BatchKey
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.sequence import BatchSequence
from floatscope_server.store.tensor_tables import TensorTables

SETTLE_S = 120.0  # for messages to be sent at the end
JUDGED = ("status", "summary", "findings", "last_clean_step")


def check_story(
    database: Database, story: Story, *, ended: str | None, acked: Mapping[int, int], tally: Tally
) -> None:
    """Every batch that was acknowledged is stored once and bit-equal, nothing else is, and the verdict and
    the alerts are those of an engine that reads the run from front to back.
    """
    with database.read() as c:
        run = runs.find(c, story.run_id)
        if not tally.holds(run is not None, f"{story.run_id} is not there"):
            return
        assert run is not None
        keys = batches.keys(c, run.id)
        for rank in range(story.ranks):
            seqs = [key.seq for key in keys if key.rank == rank]
            tally.holds(
                seqs == list(range(acked.get(rank, 0))),
                f"{story.run_id} rank {rank}: {len(seqs)} batches stored, {acked.get(rank, 0)} acknowledged",
            )
        tally.holds(
            [key.arrival for key in keys] == list(range(1, len(keys) + 1)),
            f"{story.run_id}: arrivals have gaps",
        )
        replay = Replay(story.run_id, RunInfo.from_json(story.described))
        sequence = BatchSequence(run.id, tensor_tables=TensorTables(), ranks=story.ranks)
        streams = {rank: story.stream(rank) for rank in range(story.ranks)}
        for key in keys:
            if key.rank not in streams:
                tally.holds(False, f"{story.run_id}: rank {key.rank} never sent")
                return
            sent = next(streams[key.rank])
            _check_batch(story.run_id, key, sent, compare(sent.batch, sequence.load(c, key)), tally)
            replay.feed(decoded(sent, key.rank), key)
        _check_verdict(c, run, replay, ended=ended, tally=tally)
    tally.add("runs checked")


def check_stored(
    database: Database, run_id: str, *, ended: str | None, tally: Tally
) -> list[tuple[BatchKey, Batch]]:
    """As check_story, where the sender cut the batches itself: they are returned to be looked at."""
    with database.read() as c:
        run = runs.find(c, run_id)
        if not tally.holds(run is not None, f"{run_id} is not there"):
            return []
        assert run is not None
        sequence = BatchSequence(run.id, tensor_tables=TensorTables())
        replay = Replay(run_id, runs.info(c, run.id))
        found = []
        for key in batches.keys(c, run.id):
            batch = sequence.load(c, key)
            replay.feed(batch, key)
            found.append((key, batch))
        tally.holds([key.seq for key, _ in found] == list(range(len(found))), f"{run_id}: seqs have gaps")
        _check_verdict(c, run, replay, ended=ended, tally=tally)
    return found


class Replay:
    """An engine that reads a run from front to back, and the findings that had to become alerts."""

    def __init__(self, run_id: str, described: RunInfo) -> None:
        self.engine = Engine(described, run_key=run_id)
        self.alerting: set[str] = set()

    def feed(self, batch: Batch, key: BatchKey) -> None:
        self.engine.feed(batch, rank=key.rank, segment=key.segment)
        self._note()

    def verdict(self, ended: str | None) -> dict[str, Any]:
        if ended is not None:
            self.engine.finish(ended, None)
        said = self.engine.verdict(live=ended is None).to_json()
        self._note(said)
        return dict(said)

    def _note(self, said: Mapping[str, Any] | None = None) -> None:
        body = self.engine.verdict(live=True).to_json() if said is None else said
        for finding in body["findings"]:
            if finding["severity"] in alerting.ALERTING and finding["state"] != "replaced":
                self.alerting.add(finding["id"])


def decoded(sent: Sent, rank: int) -> Batch:
    """The batch as the server reads it off the wire."""
    if sent.batch.lost is not None:
        return lost_batch(*sent.batch.lost)
    content = unpack(sent.body, sent.encoding).content
    if sent.content_type == wire_json.CONTENT_TYPE:
        return wire_json.decode(content, rank=rank)
    assert sent.whole is not None
    return wire_safetensors.decode(sent.whole, find_table=lambda _digest: None)[0]


def _check_batch(run_id: str, key: BatchKey, sent: Sent, found: Compared, tally: Tally) -> None:
    where = f"{run_id} rank {key.rank} seq {key.seq}"
    tally.holds(not found.differs, f"{where}: {'; '.join(found.differs)}")
    tally.holds(key.segment == sent.segment, f"{where}: segment {key.segment} instead of {sent.segment}")
    tally.holds(key.judged, f"{where} was not judged")
    tally.add("batches compared")
    tally.add("steps compared", found.steps)
    tally.add("values compared, all bits", found.values)
    tally.add("of them NaN or infinite", found.nonfinite)
    tally.add("missing values compared", found.missing)


def _check_verdict(c: Any, run: RunRecord, replay: Replay, *, ended: str | None, tally: Tally) -> None:
    clean = json.loads(json.dumps(replay.verdict(ended)))
    stored = verdicts.find(c, run.id)
    assert stored is not None
    for name in JUDGED:
        tally.holds(
            stored.get(name) == clean[name],
            f"{run.run_id}: {name} of the verdict is not that of a clean replay",
        )
    tally.holds(run.diagnosis_error is None, f"{run.run_id}: {run.diagnosis_error}")
    tally.add("verdicts equal to a clean replay")
    tally.add("findings in them", len(clean["findings"]))
    rows = c.execute(select(tables.alert).where(tables.alert.c.run == run.id)).all()
    ids = sorted(json.loads(row.finding_json)["id"] for row in rows)
    tally.holds(
        ids == sorted(replay.alerting),
        f"{run.run_id}: alerts {ids} instead of {sorted(replay.alerting)}",
    )
    for row in rows:
        events = (
            c.execute(select(tables.alert_event.c.event).where(tables.alert_event.c.alert == row.id))
            .scalars()
            .all()
        )
        again = sum(event == "raised" for event in events) - 1
        over = sum(event in ("recovered", "withdrawn", "replaced") for event in events)
        tally.holds(0 <= again <= over, f"alert {row.id} was raised twice: {events}")
    tally.add("alerts recorded", len(rows))


def check_messages(database: Database, received: list[Any], *, tally: Tally) -> None:
    """Every alert was told of, every message was sent and arrived at least once."""
    arrived: dict[str, int] = {}
    for body in received:
        text = json.dumps(body, sort_keys=True)
        arrived[text] = arrived.get(text, 0) + 1
    with database.read() as c:
        messages = c.execute(select(tables.outbox)).all()
        about = c.execute(select(tables.outbox_alert)).all()
        alerts = c.execute(select(tables.alert)).all()
    sent: dict[str, int] = {}
    for row in messages:
        tally.holds(row.state == "sent", f"message {row.id} about {row.alert} is {row.state}: {row.error}")
        text = json.dumps(json.loads(row.body_json), sort_keys=True)
        sent[text] = sent.get(text, 0) + 1
        tally.holds(text in arrived, f"message {row.id} about {row.alert} ({row.event}) never arrived")
    tally.holds(set(arrived) <= set(sent), "a message arrived that was never stored")
    told = {row.alert for row in about}
    for alert in alerts:
        # a warning that waits for others to be told with, and meanwhile is taken back or becomes a note, need
        # not be told
        taken_back = alert.severity == "info" or (
            alert.finding_state == "withdrawn" and alert.severity != "critical"
        )
        tally.add("warnings taken back before they were told", alert.id not in told and taken_back)
        tally.holds(
            alert.id in told or taken_back,
            f"alert {alert.id} ({alert.severity}, {alert.state}, {alert.finding_state}) was told to nobody",
        )
    tally.add("alerts told of", len(told))
    tally.add("messages stored", len(messages))
    tally.add("messages that arrived", len(received))
    tally.add("messages that arrived more than once", sum(arrived.values()) - len(arrived))


def check_structure(database: Database, *, tally: Tally) -> None:
    """The database's own check, and that batches, chunks, tiles and levels fit together (as db verify)."""
    counted = Counted()
    for fault in verify(database, full=True, objects=None, counted=counted):
        tally.holds(False, f"db verify: {fault}")
    tally.add("verified batches", counted.batches)
    tally.add("verified chunks", counted.chunks)
    tally.add("verified levels", counted.levels)


def settle(database: Database, tally: Tally) -> None:
    """Waits until all messages are out and none is due later."""

    def pending() -> bool:
        with database.read() as c:
            waiting = c.execute(select(func.count()).where(tables.outbox.c.state == "pending")).scalar_one()
            later = c.execute(select(func.count()).where(tables.telling.c.due.is_not(None))).scalar_one()
        return bool(waiting or later)

    end = time.monotonic() + SETTLE_S
    while pending() and time.monotonic() < end:
        time.sleep(0.5)
    tally.holds(not pending(), f"messages are still waiting {SETTLE_S:.0f} s after the last kill")

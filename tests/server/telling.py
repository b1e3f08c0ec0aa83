"""A bench for alerts and who is told: real database, outcome, teller and duty, with a clock under control."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import event, select

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import migrate, tables
from floatscope_server.database import Database
from floatscope_server.diagnosis import Judgement
from floatscope_server.events import Events
from floatscope_server.outcome import Outcome
from floatscope_server.store import alerts, channels, runs, silences, telling
from floatscope_server.store.channels import ChannelRecord
from floatscope_server.store.silences import Silence
from floatscope_server.telling import actions
from floatscope_server.telling.actions import Action
from floatscope_server.telling.duty import Telling
from floatscope_server.telling.notice import Notice
from floatscope_server.telling.teller import Teller
from tests.server.samples import verdict

START = 1.8e9
GROUP_S, FLAP_S = 30.0, 600.0
MINUTE, HOUR = 60.0, 3600.0


@cache
def _migrated() -> bytes:
    """An embedded database with the current schema; making one for each test would take most of its time."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "floatscope.db")
        database = Database(f"sqlite:///{path}", synchronous="NORMAL")
        migrate.upgrade(database)
        with database.engine.connect() as connection:
            connection.exec_driver_sql("pragma wal_checkpoint(truncate)")
        database.close()
        return path.read_bytes()


@contextmanager
def new_bench(folder: Path) -> Iterator[Bench]:
    """A bench over an embedded database of its own."""
    path = folder / "bench.db"
    path.write_bytes(_migrated())
    database = Database(f"sqlite:///{path}", synchronous="NORMAL")
    try:
        yield Bench(database)
    finally:
        database.close()


class Facts:
    """Bodies that hold what a notice says, for tests."""

    def body(self, notice: Notice, channel: ChannelRecord) -> Mapping[str, Any]:
        return {
            "alerts": [subject.alert_id for subject in notice.subjects],
            "events": [subject.event for subject in notice.subjects],
            "raises": [subject.raises for subject in notice.subjects],
            "more": notice.more,
            "reason": notice.reason,
            "repeat_number": notice.repeat_number,
            "next_repeat": notice.next_repeat,
        }


@dataclass(frozen=True)
class Said:
    """A message that was queued."""

    at: float
    channel: str
    event: str
    body: Mapping[str, Any]

    @property
    def alerts(self) -> list[str]:
        found: list[str] = self.body["alerts"]
        return found


class Bench:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = START
        self.read_to = 0
        self.outcome = self.new_outcome()
        self.duty = self.new_duty()
        self.channel("team")

    def new_teller(self) -> Teller:
        return Teller(bodies=Facts(), group_s=GROUP_S, flap_s=FLAP_S)

    def new_outcome(self) -> Outcome:
        """As of a process that was started now: it remembers nothing."""
        return Outcome(teller=self.new_teller(), events=Events(), woken=lambda: None, changed=lambda: None)

    def new_duty(self, *, may_work: Callable[[], bool] = lambda: True) -> Telling:
        return Telling(
            database=self.database,
            teller=self.new_teller(),
            events=Events(),
            woken=lambda: None,
            may_work=may_work,
            clock=lambda: self.now,
        )

    def channel(self, name: str, **options: Any) -> None:
        values: dict[str, Any] = {"min_severity": "warning", "projects": (), "enabled": True} | options
        with self.database.write() as c:
            channels.put(c, ChannelRecord(name, "slack", name, "http://x/", created=self.now, **values))
            telling.look_again_at_channel(c, name, now=self.now)

    def verdict(self, *findings: dict[str, Any], run: str = "r", project: str = "p") -> list[tuple[str, ...]]:
        """Stores a verdict; returns (event, alerts...) of what channel team is told at once."""
        with self.database.write() as c:
            runs.create(c, run, RunInfo(name=run, project=project), summary="", now=self.now)
        with self.database.write() as c:
            record = runs.get(c, run, lock=True)
            news = self.outcome.store(c, record, Judgement(verdict(findings), judged=True), now=self.now)
        self.outcome.tell(record, news)
        with self.database.read() as c:
            assert runs.get(c, run).diagnosis_error is None
        return self.told()

    def act(self, alert_id: str, action: str, **more: Any) -> alerts.AlertRecord:
        with self.database.write() as c:
            return actions.act(c, self.new_teller(), alert_id, Action(action, "ada", **more), now=self.now)

    def silence(self, name: str, *, ends_in: float | None = None, starts_in: float = 0.0, **of: Any) -> None:
        values: dict[str, Any] = dict.fromkeys(("run_id", "project", "family", "cause"))
        values |= {"critical": False, "note": "", "created_by": "ada"} | of
        ends = None if ends_in is None else self.now + ends_in
        with self.database.write() as c:
            silences.add(c, Silence(name, starts=self.now + starts_in, ends=ends, created=self.now, **values))

    def pass_time(self, seconds: float) -> list[tuple[str, ...]]:
        """Lets the duty do what it does in that time; returns what channel team is told."""
        end = self.now + seconds
        while True:
            wait = self.duty.look()
            if self.now >= end:
                return self.told()
            self.now = min(self.now + max(wait, 0.01), end)

    def told(self, channel: str = "team") -> list[tuple[str, ...]]:
        """(event, alerts...) of messages to the channel that were not asked for before."""
        new = self.said(channel)[self.read_to if channel == "team" else 0 :]
        if channel == "team":
            self.read_to += len(new)
        return [(said.event, *said.alerts) for said in new]

    def said(self, channel: str | None = None) -> list[Said]:
        outbox = tables.outbox.c
        query = select(outbox.created, outbox.channel, outbox.event, outbox.body_json).order_by(outbox.id)
        if channel is not None:
            query = query.where(outbox.channel == channel)
        with self.database.read() as c:
            return [Said(*row[:3], json.loads(row[3])) for row in c.execute(query)]

    def alert(self, alert_id: str = "f1") -> alerts.AlertRecord:
        with self.database.read() as c:
            return alerts.get(c, alert_id)

    def state(self, alert_id: str = "f1") -> str:
        return self.alert(alert_id).state

    def history(self, alert_id: str = "f1") -> list[alerts.AlertEvent]:
        with self.database.read() as c:
            return alerts.history(c, [alert_id])[alert_id]

    def events(self, alert_id: str = "f1") -> list[str]:
        return [event.event for event in self.history(alert_id)]

    @contextmanager
    def statements(self) -> Iterator[list[str]]:
        """SQL that is sent meanwhile."""
        seen: list[str] = []

        def note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            seen.append(" ".join(statement.split()))

        event.listen(self.database.engine, "before_cursor_execute", note)
        try:
            yield seen
        finally:
            event.remove(self.database.engine, "before_cursor_execute", note)

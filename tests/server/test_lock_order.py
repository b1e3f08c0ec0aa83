"""Whoever changes several runs, or what they told a channel, waits for a batch instead of deadlocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text

from floatscope_server import migrate
from floatscope_server.callers import SERVER
from floatscope_server.database import Database
from floatscope_server.store import channels, removal, runs, telling
from tests.server import postgres
from tests.server.live import wait_for
from tests.server.samples import finding
from tests.server.telling import Bench

WAITING = text("select count(*) from pg_locks where not granted")


@pytest.fixture
def bench(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[Bench]:
    url = postgres.new_database(postgres_url, f"order_{abs(hash(request.node.nodeid)) % 10**9}")
    database = Database(url.replace("postgresql://", "postgresql+psycopg://"))
    migrate.upgrade(database)
    yield Bench(database)
    database.close()


def meanwhile(database: Database, act: Callable[[], None]) -> threading.Thread:
    """Starts it, and returns when it waits for a lock."""
    thread = threading.Thread(target=act)
    thread.start()

    def waits() -> bool:
        with database.read() as c:
            return bool(c.execute(WAITING).scalar())

    wait_for(waits, seconds=20)
    return thread


def test_a_channel_that_is_removed_leaves_a_batch_that_changes_an_alert_alone(bench: Bench) -> None:
    bench.verdict(finding())

    def remove() -> None:
        with bench.database.write() as c:
            channels.remove(c, "team")

    with bench.database.write() as c:
        runs.get(c, "r", lock=True)
        telling.hush(c, ["f1"])
        thread = meanwhile(bench.database, remove)
        assert [channel.id for channel in channels.listed(c, lock=True)] == ["team"]
    thread.join(20)
    with bench.database.read() as c:
        assert channels.listed(c) == []
        assert c.execute(text("select count(*) from telling")).scalar() == 0


def test_a_baseline_that_is_deleted_waits_for_earlier_runs_before_it_holds_its_own(bench: Bench) -> None:
    bench.verdict(run="compared")
    bench.verdict(run="baseline")
    with bench.database.write() as c:
        runs.change(c, runs.get(c, "compared").id, {"baseline": "baseline"})

    def delete() -> None:
        with bench.database.write() as c:
            runs.lock_with_dependents(c, "baseline")
            removal.forget(c, runs.get(c, "baseline", lock=True), by=SERVER, why=None, now=1.0)

    with bench.database.write() as c:
        runs.get(c, "compared", lock=True)
        thread = meanwhile(bench.database, delete)
        c.execute(text("set local lock_timeout = '5s'"))
        assert runs.get(c, "baseline", lock=True).run_id == "baseline"
    thread.join(20)
    with bench.database.read() as c:
        assert runs.find(c, "baseline") is None

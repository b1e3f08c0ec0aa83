"""Who owns a run and who does a duty: one worker at a time, none that died, stands still or was cut off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from floatscope.protocol import strict_json
from floatscope_server import migrate
from floatscope_server.data_lock import AlreadyServed, DataLock
from floatscope_server.database import Database
from floatscope_server.store import workers
from floatscope_server.workers import owners as owning
from floatscope_server.workers.bus import GAP, Bus, packed
from floatscope_server.workers.changes import Changes
from floatscope_server.workers.duties import SharedDuties
from floatscope_server.workers.owners import Elsewhere, Owners
from floatscope_server.workers.roster import Roster
from floatscope_server.workers.session import LockSession, Unreachable
from tests.server import postgres
from tests.server.live import wait_for


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Worker:
    """A worker without its web server."""

    database: Database
    clock: Clock
    session: LockSession
    owners: Owners
    duties: SharedDuties
    roster: Roster


@pytest.fixture(scope="module")
def shared_url(postgres_url: str) -> str:
    url = postgres.new_database(postgres_url, "owners").replace("postgresql://", "postgresql+psycopg://")
    opened = Database(url)
    migrate.upgrade(opened)
    opened.close()
    return url


@pytest.fixture
def pair(shared_url: str) -> Iterator[tuple[Worker, Worker]]:
    made = [worker(shared_url, f"http://worker-{n}") for n in range(2)]
    for one in made:
        one.roster.beat()
    yield made[0], made[1]
    for one in made:
        one.roster.stop()
        one.session.close()
        one.database.close()


def worker(url: str, address: str) -> Worker:
    database, clock = Database(url), Clock()
    session = LockSession(database, clock=clock)
    owners = Owners(session, clock=clock)
    roster = Roster(session, name=database.name, url=address, owners=owners)
    return Worker(database, clock, session, owners, SharedDuties(session, clock=clock), roster)


def cut(worker: Worker, by: Worker) -> None:
    """The database closes the worker's connections."""
    with by.session.asked() as c:
        assert workers.cut_off(c, worker.database.name) >= 1


def test_one_owner_at_a_time(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    assert one.owners.claim("r") is None
    assert one.owners.here("r")
    assert other.owners.claim("r") == Elsewhere("http://worker-0", one.database.name)
    assert not other.owners.here("r")
    one.owners.release("r")
    assert other.owners.claim("r") == Elsewhere("http://worker-0", one.database.name), "as remembered"
    assert other.owners.claim("r", again=True) is None
    assert one.owners.claim("r") == Elsewhere("http://worker-1", other.database.name)
    assert (one.owners.count(), other.owners.count()) == (0, 1)


def test_a_lost_connection_is_found_out_at_once(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    assert one.owners.claim("r") is None
    assert one.duties.holds("sweep")
    cut(one, by=other)
    assert not one.owners.here("r"), "without a question to the database"
    assert not one.duties.holds("sweep")
    assert one.session.losses == 1
    assert other.owners.claim("r", again=True) is None
    assert other.duties.holds("sweep")
    one.clock.now += 10
    assert one.owners.claim("r", again=True) == Elsewhere("http://worker-1", other.database.name)
    assert not one.duties.holds("sweep")


def test_a_duty_goes_to_another_when_its_worker_stops(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    assert one.duties.holds("stalls")
    assert not other.duties.holds("stalls")
    assert other.duties.holds("retention")
    one.session.close()
    assert not other.duties.holds("stalls"), "it asks again only after a while"

    def holds_later() -> bool:  # the database takes a moment to notice that the connection is gone
        other.clock.now += 10
        return other.duties.holds("stalls")

    wait_for(holds_later)
    assert not one.duties.holds("stalls")


def test_a_worker_that_stands_still_is_cut_off_and_commits_nothing(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    assert one.owners.claim("r") is None
    with one.database.engine.connect() as held:
        held.execute(text("insert into secret (name, value) values ('half done', '\\x00')"))

        strict = Roster(
            other.session, name=other.database.name, url="http://worker-1", owners=other.owners, silent_s=0.2
        )

        def is_cut_off() -> bool:
            strict.beat()  # one no longer beats
            return not one.owners.here("r")

        wait_for(is_cut_off)
        with pytest.raises(DBAPIError):
            held.commit()
        held.invalidate()
    assert other.owners.claim("r", again=True) is None
    with other.database.read() as c:
        assert c.execute(text("select count(*) from secret where name = 'half done'")).scalar() == 0
        known = set(c.execute(text("select id from worker")).scalars())
    assert other.database.name in known
    assert one.database.name not in known
    one.clock.now += 10
    one.roster.beat()  # it wakes up
    assert one.owners.claim("r") == Elsewhere("http://worker-1", other.database.name)


def test_runs_are_released_when_idle_and_beyond_the_most(
    pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    monkeypatch.setattr(owning, "MOST_OWNED", 3)
    for number in range(5):
        one.clock.now += 1
        assert one.owners.claim(f"r{number}") is None
    assert [one.owners.holds(f"r{n}") for n in range(5)] == [False, False, True, True, True]
    assert other.owners.claim("r0") is None
    one.clock.now += owning.IDLE_S - 1
    assert one.owners.here("r4")
    one.clock.now += 2
    one.owners.release_idle()
    assert [one.owners.holds(f"r{n}") for n in range(5)] == [False, False, False, False, True]
    one.owners.leave()
    assert one.owners.count() == 0
    assert one.owners.claim("r9") is None, "a worker that stops serves what it still gets"
    assert other.owners.claim("r9") is None


def test_without_the_database_a_worker_serves_what_it_gets(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    cut(one, by=other)
    one.session.check()
    one.owners.claim("r")  # connects again
    one.session.close()
    assert one.owners.claim("r") is None
    assert not one.owners.here("r")
    with pytest.raises(Unreachable), one.session.asked():
        pass


def test_many_at_once_take_a_run_once(pair: tuple[Worker, Worker]) -> None:
    places: list[Elsewhere | None] = []
    threads = [threading.Thread(target=lambda w=w: places.append(w.owners.claim("busy"))) for w in pair * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(places) == 16
    assert sum(place is None for place in places) == 8
    assert pair[0].owners.count() + pair[1].owners.count() == 1
    mine = pair[0] if pair[0].owners.count() else pair[1]
    mine.owners.release("busy")
    with mine.session.asked() as c:
        assert workers.holder(c, workers.lock_key("run", "busy")) is None


def test_news_reach_others_newest_only_and_gaps_are_told(pair: tuple[Worker, Worker]) -> None:
    buses = [Bus(one.database) for one in pair]
    heard: list[object] = []
    changes = Changes()
    changes.hear("tokens", heard.append)
    buses[1].hear("changed", changes.arrived)
    buses[1].on_gap(changes.missed)
    told = Changes()
    told.relay_by(buses[0].tell)
    for bus in buses:
        bus.start()
    wait_for(buses[1].listening.is_set)
    assert heard == [None], "what was told before it listened"
    for _ in range(20):
        told.tell("tokens", "a")
    wait_for(lambda: heard[1:2] == ["a"])
    assert len(heard) < 10
    heard.clear()
    cut(pair[1], by=pair[0])
    wait_for(lambda: heard == [None])
    told.tell("tokens", "b")
    wait_for(lambda: heard == [None, "b"])
    for bus in buses:
        bus.stop()


@given(st.lists(st.tuples(st.sampled_from(["event", "changed"]), st.text(max_size=4000)), max_size=30))
def test_news_fit_into_payloads(items: list[tuple[str, str]]) -> None:
    payloads = packed([[topic, {"text": said}] for topic, said in items], sender="floatscope-0123")
    assert all(len(payload.encode()) < 8000 for payload in payloads)
    found = [item for payload in payloads for item in strict_json.loads(payload)["items"]]
    assert len(found) == len(items)
    for (topic, said), item in zip(items, found, strict=True):
        assert item in ([topic, {"text": said}], [GAP, {}])
        assert item[0] != GAP or len(strict_json.dumps(said).encode()) > 7000


def test_a_data_directory_has_one_server(tmp_path: Path) -> None:
    first, second = DataLock(tmp_path), DataLock(tmp_path)
    first.take()
    with pytest.raises(AlreadyServed, match=r"process \d+"):
        second.take()
    first.release()
    second.take()
    second.release()

"""Several worker processes on one PostgreSQL database, each step once whichever worker it is sent to, whoever
dies.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from tests.server.crews import Crew, batches, crew, put
from tests.server.live import Client, in_own_process, wait_for
from tests.server.postgres import new_database
from tests.server.samples import as_stored, faulty_run, lines
from tests.server.test_events import Stream, until

STEPS, SIZE = 96, 4
RANKS = (0, 1)


def clean_replay(run_id: str, described: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """What one engine says of the steps of all ranks, fed in the order of the steps."""
    engine = Engine(RunInfo.from_json(described), run_key=run_id)
    for at in range(0, len(steps), SIZE):
        for rank in RANKS:
            own = [{**step, "rank": rank} for step in steps[at : at + SIZE]]
            engine.feed(batch_from_rows(own), rank=rank, segment=0)
    return dict(engine.verdict(live=True).to_json())


def check(client: Client, run_id: str, described: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Every step of every rank is there once, bit-equal, and judged as by one process that never stopped."""
    for rank in RANKS:
        assert lines(client.steps(run_id, f"?rank={rank}")) == as_stored(steps, rank=rank)
    clean = clean_replay(run_id, described, steps)
    found = client.get(f"/api/v1/runs/{run_id}/verdict").json
    assert [f["id"] for f in found["findings"]] == [f["id"] for f in clean["findings"]]
    assert found["findings"] == clean["findings"]
    assert (found["status"], found["summary"]) == (clean["status"], clean["summary"])
    alerting = [f["id"] for f in clean["findings"] if f["severity"] in ("warning", "critical")]
    assert alerting, "the faulty run must raise something"
    alerts = client.get(f"/api/v1/alerts?run={run_id}").json["items"]
    assert sorted(alert["id"] for alert in alerts) == sorted(alerting)
    for alert in alerts:
        events = [event["event"] for event in alert["history"]]
        # a finding may be taken back while one rank is ahead of the others, and made again
        assert events.count("raised") == events.count("withdrawn") + 1


def send_all(clients: list[Client], run_id: str, steps: list[dict[str, Any]]) -> None:
    """Each rank is a thread of its own that sends to the servers in turn."""
    faults: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            for seq, content in enumerate(batches(steps, size=SIZE, rank=rank)):
                turn = (seq + rank) % len(clients)
                answer = put([*clients[turn:], *clients[:turn]], run_id, seq, content, rank=rank)
                assert answer.status == 200, answer.text
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in RANKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert faults == []


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[Crew]:
    """Three servers on one database; the last test kills one of them."""
    with crew(tmp_path_factory.mktemp("trio"), postgres_url, 3) as found:
        found.start()
        yield found


def clients_of(found: Crew) -> list[Client]:
    return [Client(process.port) for process in found.processes]


@pytest.mark.timeout(120)
def test_ranks_of_one_run_on_different_workers(trio: Crew) -> None:
    described, steps = faulty_run(STEPS, fault_at=64)
    clients = clients_of(trio)
    assert clients[0].open_run("r", **described).status == 201
    assert clients[1].open_run("r", **described).status == 200
    send_all(clients, "r", steps)
    check(clients[1], "r", described, steps)
    assert trio.brought_back("r") == 0, "one worker keeps the engine, whoever takes the batches in"
    for client in clients:  # a repeat and a gap are told wherever they arrive
        assert put([client], "r", 3, batches(steps, size=SIZE)[3]).json["expected_seq"] == STEPS // SIZE
        assert client.put("r", 99, batches(steps, size=SIZE)[3]).json["reason"] == "gap"
    assert (
        clients[1].call("POST", "/api/v1/runs/r/finish", {"status": "finished"}).json["status"] == "finished"
    )
    assert clients[0].call("PATCH", "/api/v1/runs/r", {"name": "named"}).json["name"] == "named"
    for client in clients:
        assert client.call("DELETE", "/api/v1/runs/r").status in (200, 404)
        assert client.put("r", 0, b"{}").status == 404
    held = "select count(*) from pg_locks where locktype = 'advisory'"
    before = trio.ask(held)[0][0]
    assert before <= 8, "only duties are held: a deleted run, and one that never was, are nobody's"


@pytest.mark.timeout(60)
def test_a_run_is_compared_with_its_baseline_by_its_owner(trio: Crew) -> None:
    here, there, _third = clients_of(trio)
    described, steps = faulty_run(SIZE * 4, fault_at=99)
    there.open_run("base", **described)
    here.open_run("follow", **described, baseline="base")
    for seq, content in enumerate(batches(steps, size=SIZE)):
        assert here.put("follow", seq, content).status == 200
        assert there.put("base", seq, content).status == 200  # the owner of the other run hears of it
    behind = (
        "select r.baseline_arrivals, b.arrivals from run r join run b on b.run_id = r.baseline "
        "where r.run_id = 'follow'"
    )
    wait_for(lambda: trio.ask(behind) == [(4, 4)], seconds=20)
    assert trio.brought_back("follow") == 0


@pytest.mark.timeout(60)
def test_events_reach_readers_of_all_workers(trio: Crew) -> None:
    here, there, _third = clients_of(trio)
    _described, steps = faulty_run(SIZE * 3, fault_at=99)
    contents = batches(steps, size=SIZE)
    stream = Stream(there, "?run=e")
    here.open_run("e")
    here.put("e", 0, contents[0])
    first, tick = until(stream, "tick")
    assert tick["step"] == SIZE - 1
    stream.close()
    here.put("e", 1, contents[1])
    here.call("POST", "/api/v1/runs/e/finish", {"status": "failed"})
    again = Stream(here, "?run=e", last_id=first)  # the browser comes back to the other worker
    seen = [again.next() for _ in range(3)]
    assert {(kind, data.get("step")) for _id, kind, data in seen} >= {("tick", 2 * SIZE - 1)}
    again.close()
    late = Stream(here, "?run=e", last_id=first - 10**12)
    assert late.next()[1] == "reset"
    late.close()


@pytest.mark.timeout(60)
def test_readers_are_told_when_news_may_have_been_missed(trio: Crew) -> None:
    here, there, _third = clients_of(trio)
    stream = Stream(there, "?run=n")
    listening = (
        "select pid from pg_stat_activity where datname = current_database() and query ilike 'listen %%'"
    )
    wait_for(lambda: bool(trio.ask(listening)), seconds=10)
    trio.ask(f"select pg_terminate_backend(pid) from ({listening}) as l")
    assert stream.next()[1] == "reset"
    here.open_run("n")
    assert until(stream, "run")[1]["run"] == "n"
    stream.close()


@pytest.mark.timeout(60)
def test_the_private_address_is_for_workers_only(trio: Crew) -> None:
    urls = [row[0] for row in trio.ask("select url from worker")]
    assert len(urls) == 3
    for url in urls:
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)", url)
        assert found is not None
        inside = Client(int(found[1]))
        assert inside.get("/api/v1/runs").status == 403
        assert inside.call("GET", "/healthz", headers={"X-Floatscope-Worker": "0" * 64}).status == 403
    outside = clients_of(trio)[0]
    secret = trio.ask("select encode(value, 'hex') from secret where name = 'workers'")[0][0]
    headers = {"X-Floatscope-Worker": secret, "X-Floatscope-Client": "1.2.3.4 5"}
    assert Client(outside.port, token=None).call("GET", "/api/v1/runs", headers=headers).status == 401


@pytest.mark.timeout(120)
def test_the_owner_is_killed_and_lock_connections_are_cut(trio: Crew) -> None:
    described, steps = faulty_run(STEPS, fault_at=64)
    clients = clients_of(trio)
    assert clients[0].open_run("k", **described).status == 201  # it owns the run now
    first, last = trio.processes[0], clients[1:]
    trouble: threading.Timer | None = None
    for at in range(0, STEPS, SIZE):
        if at == STEPS // 4:
            trouble = threading.Timer(0.02, first.kill)
            trouble.start()
        if at == STEPS // 2:
            assert trio.cut_lock_connections() >= 1
        for rank in RANKS:
            content = batches(steps[at : at + SIZE], size=SIZE, rank=rank)[0]
            assert put([*last, clients[0]], "k", at // SIZE, content, rank=rank).status == 200
    assert trouble is not None
    trouble.join()
    assert first.process is not None
    assert first.process.poll() == -signal.SIGKILL
    assert trio.said("connection that holds this worker's .* was lost") >= 1
    check(clients[2], "k", described, steps)
    assert 1 <= trio.brought_back("k") <= 4, "once for each new owner, not once a batch"
    for process in trio.processes[1:]:
        assert process.stop() == 0


@pytest.mark.timeout(120)
def test_workers_behind_one_address(tmp_path: Path, postgres_url: str) -> None:
    described, steps = faulty_run(STEPS, fault_at=64)
    url = new_database(postgres_url, "behind_one")
    with in_own_process(tmp_path / "data", FLOATSCOPE_DATABASE_URL=url) as process:
        process.arguments = ("--workers", "2")
        client = process.start()
        wait_for(lambda: len(pids(process.log)) == 2, seconds=30)
        client.open_run("r", **described)
        victim = pids(process.log)[0]
        trouble = threading.Timer(0.2, os.kill, (victim, signal.SIGKILL))
        trouble.start()
        send_all([client], "r", steps)
        trouble.join()
        wait_for(lambda: len(pids(process.log)) == 3, seconds=30)
        check(client, "r", described, steps)
        assert process.stop() == 0
        log = process.log.read_text()
        assert "ended with -9; starting it again" in log
        assert log.count("Finished server process") == 2
        for pid in pids(process.log):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def pids(log: Path) -> list[int]:
    """Processes that said they are ready."""
    started = re.findall(r"worker (\d) .*Started server process \[(\d+)\]", log.read_text())
    ready = re.findall(r"worker (\d) .*Application startup complete", log.read_text())
    return [int(pid) for _worker, pid in started][: len(ready)]

"""Several workers on one database: whoever stores a batch first, it is stored once and judged once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import export
from floatscope_server.app import create_app
from floatscope_server.database import Database
from floatscope_server.errors import Problem
from floatscope_server.ingest import Receipt
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import runs, verdicts
from floatscope_server.store.reads import Span
from tests.server import postgres
from tests.server.live import in_own_process
from tests.server.samples import TABLE, Scripted, as_stored, body, faulty_run, ingest, lines, rows, send

BATCHES = 24


def worker(settings: Settings, url: str) -> Services:
    found: Services = create_app(settings, database=Database(url)).state.services
    return found


def test_the_same_batches_through_three_workers_at_once(
    settings: Settings, database: Database, database_url: str
) -> None:
    workers = [worker(settings, database_url) for _ in range(3)]
    workers[0].lifecycle.open("r", RunInfo(name="r", tensors=TABLE))
    faults: list[Exception] = []

    def send_all(services: Services) -> None:
        seq = 0
        while seq < BATCHES:
            try:
                seq = max(seq + 1, ingest(services, "r", seq, body(rows(seq * 4, 4))).expected_seq)
            except Problem as problem:
                if problem.status != 503:
                    faults.append(problem)
                    return
            except Exception as error:
                faults.append(error)
                return

    threads = [threading.Thread(target=send_all, args=(services,)) for services in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    with database.read() as c:
        run = runs.get(c, "r")
        found = verdicts.find(c, run.id)
    assert run.arrivals == BATCHES
    exported = export.rows(database, run.id, [0], Span(0, 10**6), tensor_tables=workers[0].tensor_tables)
    assert lines(list(exported)) == as_stored([row for seq in range(BATCHES) for row in rows(seq * 4, 4)])
    assert found is not None
    assert found["source"]["steps"] == BATCHES * 4
    for services in workers:
        services.database.close()


def test_a_worker_that_stood_still_while_another_stored_the_batch_changes_nothing(
    settings: Settings, database: Database, database_url: str
) -> None:
    """It thinks that it owns the run and judged the batch; what counts is the version it finds at the end."""
    judging, go_on = threading.Event(), threading.Event()

    def slow(last: int | None) -> list[dict[str, Any]]:
        if last is not None and not judging.is_set():
            judging.set()
            assert go_on.wait(30)
        return []

    shared = Database(database_url)
    paused: Services = create_app(settings, database=shared, engines=Scripted(slow)).state.services
    awake = worker(settings, database_url)
    paused.lifecycle.open("r", RunInfo(name="r", tensors=TABLE))
    answers: list[Receipt] = []
    thread = threading.Thread(target=lambda: answers.append(ingest(paused, "r", 0, body(rows(0, 4)))))
    thread.start()
    assert judging.wait(30)
    assert ingest(awake, "r", 0, body(rows(0, 4))).expected_seq == 1
    assert ingest(awake, "r", 1, body(rows(4, 4))).expected_seq == 2
    go_on.set()
    thread.join(30)
    assert [(receipt.repeated, receipt.expected_seq) for receipt in answers] == [(True, 2)]
    with database.read() as c:
        run = runs.get(c, "r")
        found = verdicts.find(c, run.id)
    assert run.arrivals == 2
    assert found is not None
    assert found["source"]["steps"] == 8
    for services in (paused, awake):
        services.database.close()


@pytest.mark.timeout(90, func_only=True)  # the last test: databases of all others are removed after it
def test_a_server_on_postgresql_is_killed_and_goes_on(tmp_path: Path, postgres_url: str) -> None:
    described, steps = faulty_run(96, fault_at=64)
    url = postgres.new_database(postgres_url, "served")
    with in_own_process(tmp_path / "data", FLOATSCOPE_DATABASE_URL=url) as process:
        client = process.start()
        client.open_run("r", **described)
        seq = send(client, "r", steps[:72])
        process.kill()
        client = process.start()
        assert client.open_run("r").json["expected_seq"] == {"0": seq}
        send(client, "r", steps[72:], seq=seq)
        assert lines(client.steps("r")) == as_stored(steps)
        assert client.get("/api/v1/alerts?run=r").json["items"]
        assert not (tmp_path / "data" / "floatscope.db").exists()

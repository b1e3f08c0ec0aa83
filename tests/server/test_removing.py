"""A deleted run: out of sight at once, its name free at once, its rows and its bytes gone soon after."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import migrate, tables
from floatscope_server.app import create_app
from floatscope_server.database import Database
from floatscope_server.errors import RunNotFound
from floatscope_server.removing import Remover
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import removal, runs
from tests.server.live import in_own_process, wait_for
from tests.server.samples import Scripted, body, finding, ingest, rows

SECRET = "blocks.77.secret/input"
TRACE = b"numbers of it"


@pytest.fixture
def services(database: Database, settings: Settings) -> Services:
    app: FastAPI = create_app(settings, database=database, engines=Scripted(lambda _last: [finding(id="f")]))
    found: Services = app.state.services
    return found


def counts(database: Database, run: int) -> dict[str, int]:
    """Rows of every table that has some of this run."""
    with database.read() as c:
        found = {
            name: int(c.execute(select(func.count()).select_from(t).where(t.c.run == run)).scalar_one())
            for name, t in tables.metadata.tables.items()
            if "run" in t.c
        }
    return {name: count for name, count in found.items() if count}


def secret_run(services: Services, run_id: str = "r", *, batches: int = 20) -> int:
    services.lifecycle.open(run_id, RunInfo(name="secret-name", tensors={SECRET: {"format": "e4m3"}}))
    for seq in range(batches):
        steps = rows(seq * 10, 10)
        for step in steps:
            step["tensors"] = {SECRET: {"amax": 1.0}}
        ingest(services, run_id, seq, body(steps))
    with services.database.read() as c:
        return runs.get(c, run_id).id


def test_it_is_gone_at_once_and_its_name_is_free(services: Services) -> None:
    old = secret_run(services)
    services.lifecycle.open("other", RunInfo(name="other", baseline="r"))
    services.lifecycle.delete("r")
    assert counts(services.database, old)["block"] > 0, "nothing was removed yet"
    assert "alert" not in counts(services.database, old)
    with services.database.read() as c:
        assert runs.find(c, "r") is None
        assert runs.find(c, f"~{old}") is None
        assert [run.run_id for run in runs.listed(c, limit=9)] == ["other"]
        assert runs.count(c) == 1
    with pytest.raises(RunNotFound):
        ingest(services, "r", 20, body(rows(200, 1)))
    new = secret_run(services, batches=2)
    assert new != old
    assert services.remover.round() == 1
    assert counts(services.database, old) == {}
    assert counts(services.database, new)["batch"] == 2
    with services.database.read() as c:
        assert [run.run_id for run in runs.with_baseline(c, "r")] == ["other"]
        assert removal.waiting(c) == []


def test_rows_that_are_written_meanwhile_go_too(services: Services) -> None:
    run = secret_run(services, batches=3)
    services.lifecycle.delete("r")
    late = {"run": run, "rank": 0, "kind": 2, "name": "amax", "part": 0, "chunk": 2, "length": 1}
    seen: list[int] = []
    real = removal.step

    def slow(c: Any, run: int, *, rows: int, now: float) -> int:
        gone = real(c, run, rows=1, now=now)
        if gone and not seen and "tile" not in counts_in(c, run):
            c.execute(tables.tile.insert().values(data=b"x", **late))
            seen.append(run)
        return gone

    def counts_in(c: Any, run: int) -> set[str]:
        found = c.execute(select(func.count()).select_from(tables.tile).where(tables.tile.c.run == run))
        return {"tile"} if found.scalar_one() else set()

    while True:
        with services.database.write() as c:
            if slow(c, run, rows=1, now=1.0) == 0:
                break
    assert seen == [run]
    assert counts(services.database, run) == {}


def test_objects_of_its_tiles_become_garbage_in_the_same_transaction(services: Services) -> None:
    run = secret_run(services, batches=1)
    with services.database.write() as c:
        for part in range(3):
            c.execute(
                tables.tile.insert().values(
                    run=run, rank=0, kind=2, name="amax", part=part, chunk=0, object="o/1", start=0, length=9
                )
            )
    services.lifecycle.delete("r")
    with services.database.write() as c:
        assert removal.step(c, run, rows=2, now=7.0) == 2
    with services.database.read() as c:
        assert c.execute(select(tables.garbage.c.object, tables.garbage.c.due)).all() == [("o/1", 7.0)]
    services.remover.round()
    with services.database.read() as c:
        assert c.execute(select(func.count()).select_from(tables.garbage)).scalar_one() == 1
    assert counts(services.database, run) == {}


def test_the_file_shrinks_and_holds_no_trace(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "small.db"
    database = Database(f"sqlite:///{file}")
    migrate.upgrade(database)
    app = create_app(settings, database=database, engines=Scripted(lambda _last: [finding(id="f")]))
    services: Services = app.state.services
    database.empty_log()
    empty = file.stat().st_size
    run = secret_run(services, batches=60)
    with database.write() as c:
        for number in range(60):
            where = {"run": run, "rank": 0, "kind": 2, "name": "amax", "width": 16, "part": 0}
            c.execute(tables.level.insert().values(chunk=number, data=TRACE * 2000, **where))
    database.empty_log()
    full = file.stat().st_size
    assert full > empty + 1_000_000
    assert TRACE in file.read_bytes()
    services.lifecycle.delete("r")
    assert services.remover.round() == 1
    assert file.stat().st_size < empty + (full - empty) / 5
    for path in tmp_path.glob("small.db*"):
        content = path.read_bytes()
        assert not any(word in content for word in (TRACE, SECRET.encode()))
    database.close()


@pytest.mark.timeout(120)
def test_a_server_killed_in_the_middle_goes_on_at_its_next_start(tmp_path: Path) -> None:
    with in_own_process(tmp_path / "data", FLOATSCOPE_DIAGNOSE="0") as process:
        client = process.start()
        client.open_run("r")
        for seq in range(40):
            assert client.put("r", seq, body(rows(seq * 5, 5))).status == 200
        assert process.process is not None
        assert client.call("DELETE", "/api/v1/runs/r").status == 200
        os.kill(process.process.pid, signal.SIGKILL)
        process.process.wait()
        database = Database(f"sqlite:///{tmp_path / 'data' / 'floatscope.db'}")
        client = process.start()
        assert client.get("/api/v1/runs/r").status == 404

        def over() -> bool:
            with database.read() as c:
                return c.execute(select(func.count()).select_from(tables.run)).scalar_one() == 0

        wait_for(over, seconds=20)
        with database.read() as c:
            assert c.execute(select(func.count()).select_from(tables.block)).scalar_one() == 0
        database.close()


def test_a_round_that_is_told_to_stop_leaves_the_rest(services: Services) -> None:
    run = secret_run(services, batches=4)
    services.lifecycle.delete("r")
    stopped = Remover(database=services.database)
    stopped.stop()
    assert stopped.round() == 0
    assert counts(services.database, run)["batch"] == 4
    assert Remover(database=services.database).round() == 1


def test_rows_that_no_step_removes_end_a_round_instead_of_the_processor(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_run(services, batches=1)
    services.lifecycle.delete("r")
    monkeypatch.setattr(removal, "_LATER", tuple(name for name in removal._LATER if name != "rank"))
    with pytest.raises(IntegrityError):
        services.remover.round()
    monkeypatch.undo()
    assert services.remover.round() == 1


def test_a_new_connection_does_not_wait_for_a_writer(sqlite_database: Database) -> None:
    other = Database(str(sqlite_database.engine.url))
    with sqlite_database.write() as c:
        c.execute(tables.garbage.insert().values(object="a", due=1.0))
        with other.read() as reader:  # the writer holds the lock: whoever wanted it would wait for 30 s
            assert reader.execute(select(func.count()).select_from(tables.garbage)).scalar_one() == 0
    other.close()

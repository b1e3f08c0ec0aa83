"""Tiles in a real object store of several nodes: what happens when nodes, the store or the server die."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import export, tables
from floatscope_server.chunk_writer import Interrupted
from floatscope_server.database import Database
from floatscope_server.dbtool.verify import Counted, verify
from floatscope_server.objects.opening import open_objects
from floatscope_server.objects.s3 import ObjectMissing, ObjectStoreAway, S3Objects, client
from floatscope_server.objects.sweeper import ORPHAN_S, Sweeper
from floatscope_server.rewriting import Rewriter
from floatscope_server.services import Services
from floatscope_server.settings import Settings, SettingsError
from floatscope_server.store import garbage, runs, verdicts
from floatscope_server.store.stretches import Span
from floatscope_server.store.tensor_tables import TensorTables
from tests.server import objectstore
from tests.server.every_table import services_over
from tests.server.live import wait_for
from tests.server.objectstore import BUCKET, KEY, SECRET, Cluster
from tests.server.samples import TABLE, TENSORS, as_stored, body, ingest, lines, rows

DAY_S = 86_400.0
ALL = Span(0, 10**9)
Made = tuple[Services, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def store() -> Iterator[Cluster]:
    """The cluster, once for all tests; a test that kills a node starts it again."""
    with objectstore.cluster() as found:
        yield found


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A part of the bucket of its own."""
    return f"floatscope/{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def cold(store: Cluster, prefix: str, database: Database, settings: Settings) -> Made:
    """A server's parts over a run of 400 steps whose statistics lie in the store, and of 20 hot ones."""
    return filled(store, prefix, database, settings)


@pytest.fixture
def cold_sqlite(store: Cluster, prefix: str, sqlite_database: Database, settings: Settings) -> Made:
    """The same on SQLite only, for what the database has no part in."""
    return filled(store, prefix, sqlite_database, settings)


def in_store(store: Cluster, prefix: str) -> dict[str, Any]:
    """Settings of a server that keeps its tiles there."""
    return {
        "tiles_url": f"s3://{BUCKET}/{prefix}",
        "tiles_endpoint_url": store.endpoint,
        "tiles_access_key_id": KEY,
        "tiles_secret_access_key": SecretStr(SECRET),
    }


def filled(
    store: Cluster, prefix: str, database: Database, settings: Settings, *, whole: bool = True
) -> Made:
    services = services_over(database, settings.model_copy(update=in_store(store, prefix)))
    services.lifecycle.open("r", RunInfo(name="r", tensors=TABLE))
    steps = rows(0, 420)
    for seq in range(20):
        ingest(services, "r", seq, body(steps[seq * 20 : seq * 20 + 20]))
    if whole:
        with database.read() as c:
            run = runs.get(c, "r")
        services.compactor.rewriter.rewrite(run.id, 0, whole=True)
    ingest(services, "r", 20, body(steps[400:]))
    return services, steps


def read(database: Database, objects: S3Objects, *, span: Span = ALL) -> list[str]:
    with database.read() as c:
        run = runs.get(c, "r")
    found = export.rows(database, run.id, (0,), span, tensor_tables=TensorTables(), objects=objects)
    return lines(list(found))


def held(objects: S3Objects) -> set[str]:
    return {key for key, _written in objects.listed()}


def named(database: Database) -> set[str]:
    """Objects that tiles lie in."""
    with database.read() as c:
        query = select(tables.tile.c.object).where(tables.tile.c.object.is_not(None))
        return set(c.execute(query).scalars())


def test_objects_are_written_read_in_parts_listed_and_deleted(store: Cluster, prefix: str) -> None:
    objects = store.objects(prefix, remembered_bytes=3000)
    data = os.urandom(20_000)
    objects.write("a/b%2F", data)
    objects.write("a/c", data[::-1])
    for start, length in ((0, 20_000), (19_999, 1), (7, 1000), (7, 1000), (5000, 0)):
        assert objects.read("a/b%2F", start, length) == data[start : start + length]
    objects.write("a/c", b"new")
    assert objects.read("a/c", 0, 3) == b"new"
    found = dict(objects.listed())
    assert set(found) == {"a/b%2F", "a/c"}
    assert all(abs(written - time.time()) < 600 for written in found.values())
    with pytest.raises(ObjectMissing):
        objects.read("a/c", 0, 4)
    with pytest.raises(ObjectMissing):
        objects.read("nothing", 0, 4)
    objects.delete(["a/c", "nothing"])
    assert held(objects) == {"a/b%2F"}


def test_a_store_that_refuses_or_does_not_answer(store: Cluster, prefix: str) -> None:
    wrong = client(endpoint_url=store.endpoint, region=None, access_key_id=KEY, secret_access_key="no")
    refused = S3Objects(wrong, bucket=BUCKET, prefix=prefix)
    for call in (lambda: refused.read("a", 0, 1), lambda: refused.write("a", b"x"), lambda: held(refused)):
        with pytest.raises(ObjectStoreAway) as error:
            call()
        assert SECRET not in str(error.value)
    nobody = client(
        endpoint_url="http://127.0.0.1:9", region=None, access_key_id=KEY, secret_access_key="x", attempts=1
    )
    with pytest.raises(ObjectStoreAway, match="does not answer"):
        S3Objects(nobody, bucket=BUCKET, prefix=prefix).read("a", 0, 1)


@pytest.mark.parametrize("url", ["bucket", "http://x/y", "s3://", "s3://key:secret@bucket/x", "s3://b/?x=1"])
def test_wrong_addresses(url: str) -> None:
    with pytest.raises(SettingsError, match="FLOATSCOPE_TILES_URL"):
        open_objects(Settings(tiles_url=url))


def test_statistics_are_in_the_store_and_read_back(cold_sqlite: Made, store: Cluster, prefix: str) -> None:
    services, steps = cold_sqlite
    objects = store.objects(prefix, remembered_bytes=0)
    assert held(objects) == named(services.database) != set()
    assert read(services.database, objects) == as_stored(steps)
    assert read(services.database, objects, span=Span(100, 110)) == as_stored(steps[100:111])
    assert list(verify(services.database, full=True, objects=objects, counted=Counted())) == []
    with services.database.read() as c:
        assert c.execute(select(func.count()).select_from(tables.garbage)).scalar_one() == 0


def test_reads_go_on_while_a_volume_server_is_killed(cold_sqlite: Made, store: Cluster, prefix: str) -> None:
    services, steps = cold_sqlite
    expected = as_stored(steps)
    over = threading.Event()
    done: list[bool] = []

    def reading() -> None:
        objects = store.objects(prefix, remembered_bytes=0)
        while not over.is_set():
            done.append(read(services.database, objects) == expected)

    reader = threading.Thread(target=reading)
    reader.start()
    try:
        wait_for(lambda: len(done) >= 2)
        store.kill("volume1")
        before = len(done)
        wait_for(lambda: len(done) >= before + 5, seconds=60)
    finally:
        over.set()
        reader.join()
        store.start("volume1")
    assert all(done)


def test_the_other_volume_server_has_everything_too(cold_sqlite: Made, store: Cluster, prefix: str) -> None:
    services, steps = cold_sqlite
    wait_for(lambda: writes(store, prefix), seconds=60)
    store.kill("volume2")
    try:
        assert read(services.database, store.objects(prefix, remembered_bytes=0)) == as_stored(steps)
    finally:
        store.start("volume2")
        wait_for(lambda: writes(store, prefix), seconds=60)


def writes(store: Cluster, prefix: str) -> bool:
    """Whether the store takes new objects, which needs both volume servers."""
    quick = client(
        endpoint_url=store.endpoint,
        region=None,
        access_key_id=KEY,
        secret_access_key=SECRET,
        answer_s=2.0,
        attempts=1,
    )
    objects = S3Objects(quick, bucket=BUCKET, prefix=f"{prefix}-probe")
    try:
        objects.write("probe", b"x")
    except OSError:
        return False
    finally:
        quick.close()
    return True


def test_a_process_killed_between_writing_objects_and_its_chunk_loses_nothing(
    store: Cluster, prefix: str, database: Database, settings: Settings
) -> None:
    _services, steps = filled(store, prefix, database, settings, whole=False)
    objects = store.objects(prefix, remembered_bytes=0)
    with database.read() as c:
        run = runs.get(c, "r")
    url = database.engine.url.render_as_string(hide_password=False)
    environment = {**os.environ, **store.settings(prefix), "FLOATSCOPE_DATABASE_URL": url}
    command = [sys.executable, "-m", "tests.server.dying", str(run.id), "2"]
    died = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert died.returncode == -9, died.stderr
    orphans = held(objects)
    assert len(orphans) == 2
    assert read(database, objects) == as_stored(steps)
    later = time.time() + 2 * DAY_S
    rewriter = Rewriter(
        database=database, tensor_tables=TensorTables(), worker="next", objects=objects, clock=lambda: later
    )
    assert rewriter.rewrite(run.id, 0, whole=True) == 1
    sweeper = Sweeper(database=database, objects=objects, clock=lambda: later)
    assert sweeper.sweep() == 2
    assert held(objects) == named(database)
    assert not held(objects) & orphans
    assert read(database, objects) == as_stored(steps)
    assert list(verify(database, full=True, objects=objects, counted=Counted())) == []


def test_what_no_row_names_is_found_and_swept_and_what_is_not_ours_stays(
    cold: Made, store: Cluster, prefix: str
) -> None:
    services, steps = cold
    objects = store.objects(prefix, remembered_bytes=0)
    used = held(objects)
    objects.write("77/0/5/2/amax/0-abcdef", b"of a run that nobody knows")
    objects.write("1/0/4/2/amax/0-abcdef", b"of another attempt at a chunk that nobody knows")
    objects.write("notes.txt", b"not ours")
    now = Sweeper(database=services.database, objects=objects)
    assert (now.note_orphans(), now.sweep()) == (0, 0), "they may be in the making"
    later = Sweeper(database=services.database, objects=objects, clock=lambda: time.time() + ORPHAN_S + 60)
    assert (later.note_orphans(), later.sweep()) == (2, 2)
    assert held(objects) == {*used, "notes.txt"}
    assert read(services.database, objects) == as_stored(steps)


def test_an_object_in_use_is_not_deleted_and_one_that_is_being_deleted_cannot_come_to_count(
    store: Cluster, prefix: str, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _services, steps = filled(store, prefix, database, settings, whole=False)
    objects = store.objects(prefix, remembered_bytes=0)
    with database.read() as c:
        run = runs.get(c, "r")
    ahead = Sweeper(database=database, objects=objects, clock=lambda: time.time() + 3 * DAY_S)
    real, wrote = objects.write, []

    def slow(key: str, data: bytes) -> None:  # a day and more passes, or a clock jumps
        real(key, data)
        wrote.append(key)
        if len(wrote) == 1:
            assert ahead.sweep() == 1

    monkeypatch.setattr(objects, "write", slow)
    rewriter = Rewriter(database=database, tensor_tables=TensorTables(), worker="w", objects=objects)
    with pytest.raises(Interrupted):
        rewriter.rewrite(run.id, 0, whole=True)
    assert read(database, objects) == as_stored(steps)
    assert rewriter.rewrite(run.id, 0, whole=True) == 1
    with database.write() as c:
        for key in named(database):
            c.execute(tables.garbage.insert().values(object=key, due=1.0))
    assert Sweeper(database=database, objects=objects).sweep() == 0
    assert read(database, objects) == as_stored(steps)
    with database.read() as c:
        assert all(due > time.time() for due in c.execute(select(tables.garbage.c.due)).scalars())
    assert garbage.parsed("1/2/x/4/a/0-b") is None


def test_a_deleted_run_has_nothing_left_in_the_store(cold: Made, store: Cluster, prefix: str) -> None:
    services, _steps = cold
    objects = store.objects(prefix)
    assert held(objects)
    services.lifecycle.delete("r")
    assert services.remover.round() == 1
    assert services.sweeper.sweep() > 0
    assert held(objects) == set()
    with services.database.read() as c:
        assert c.execute(select(func.count()).select_from(tables.garbage)).scalar_one() == 0


def test_while_the_store_is_away_hot_steps_and_levels_answer_and_rewriting_waits(
    store: Cluster, prefix: str, serve: Any, sqlite_database: Database
) -> None:
    client = serve(in_store(store, prefix), database=sqlite_database)
    client.open_run("r", tensors=TABLE)
    steps = rows(0, 400)
    for seq in range(20):
        assert client.put("r", seq, body(steps[seq * 20 : seq * 20 + 20])).status == 200
    objects = store.objects(prefix)
    assert client.call("POST", "/api/v1/runs/r/finish", {"status": "finished"}).status == 200
    wait_for(lambda: chunks(sqlite_database) == 1, seconds=30)
    made = held(objects)
    client.open_run("r")
    store.kill("s3")
    try:
        for seq in range(20, 24):
            assert client.put("r", seq, body(rows(seq * 20, 20))).status == 200
        series = f"/api/v1/runs/r/series?tensor={TENSORS[0]}&stat=amax"
        raw = client.get(f"{series}&from=0&to=40&points=2000")
        assert raw.status == 503, raw.text
        assert "object store" in raw.text
        export_of_cold = client.get("/api/v1/runs/r/steps?from=0&to=40")
        assert (export_of_cold.status, export_of_cold.headers["retry-after"]) == (503, "5")
        assert len(client.steps("r", "?from=400&to=479")) == 80
        assert client.get(f"{series}&from=400&to=479").status == 200
        assert client.get(f"{series}&points=4").status == 200
        assert client.get("/api/v1/runs/r/scalars?names=loss&points=2000").status == 200
        assert client.call("POST", "/api/v1/runs/r/finish", {"status": "finished"}).status == 200
    finally:
        store.start("s3")
    wait_for(lambda: bool(held_or_none(objects) - made), seconds=60)
    wait_for(lambda: client.get(f"{series}&from=0&to=40&points=2000").status == 200, seconds=30)
    assert len(client.steps("r")) == 480


def test_a_diagnosis_that_needs_the_store_waits_for_it_and_misses_no_step(
    cold: Made, store: Cluster, prefix: str, settings: Settings
) -> None:
    services, steps = cold
    database = services.database
    with database.write() as c:  # a server that starts anew and has to read all that was judged
        c.execute(tables.engine_state.delete())
    nowhere = in_store(store, prefix) | {"tiles_endpoint_url": "http://127.0.0.1:9"}
    away = services_over(database, settings.model_copy(update=nowhere))
    late = rows(420, 40)
    ingest(away, "r", 21, body(late[:20]))
    back = services_over(database, settings.model_copy(update=in_store(store, prefix)))
    ingest(back, "r", 22, body(late[20:]))
    with database.read() as c:
        run = runs.get(c, "r")
        assert run.diagnosis_error is None
        assert all(c.execute(select(tables.batch.c.judged)).scalars())
        verdict = verdicts.find(c, run.id)
    assert verdict is not None
    assert verdict["source"]["last_step"] == 459
    assert len(read(database, store.objects(prefix))) == len(steps) + len(late)


def chunks(database: Database) -> int:
    with database.read() as c:
        return int(c.execute(select(func.count()).select_from(tables.chunk)).scalar_one())


def held_or_none(objects: S3Objects) -> set[str]:
    """What the store holds; nothing while it does not answer."""
    try:
        return held(objects)
    except OSError:
        return set()

"""All statistics of one step, the list of tensors, and answers where stored bytes are damaged."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Table, update

from floatscope_server import tables
from floatscope_server.chunk_plan import Limits
from floatscope_server.database import Database
from floatscope_server.rewriting import Rewriter
from floatscope_server.routes import frames
from floatscope_server.settings import Settings
from floatscope_server.store import kinds, runs
from floatscope_server.store.tensor_tables import TensorTables
from tests.server.live import Client
from tests.server.samples import TABLE, TENSORS, send

INPUT, WEIGHT, GRADIENT = TENSORS
SPIKE_AT, NAN_AT, INF_AT = 701, 333, 500


def step_of(step: int) -> dict[str, Any]:
    """A step with one spike, one NaN and one Inf in the run, a gap in the weight's amax, and a histogram."""
    odd: dict[int, float | str] = {SPIKE_AT: 1e6, NAN_AT: "NaN", INF_AT: "Infinity"}
    amax = odd.get(step, 2.0)
    tensors: dict[str, dict[str, Any]] = {name: {"amax": amax, "scale": 64.0} for name in TENSORS}
    if step % 10:
        del tensors[WEIGHT]
    if step % 100 == 50:
        tensors[INPUT]["hist_log2"] = [step] + [0] * 63
    return {"step": step, "loss": amax, "tensors": tensors}


@pytest.fixture
def long_run(serve: Any, settings: Settings) -> Iterator[tuple[Client, Database]]:
    """A run of 1,000 steps of which 768 are in chunks, and the database behind its server."""
    client: Client = serve(changes={"diagnose": False})
    client.open_run("r", tensors=TABLE)
    send(client, "r", [step_of(step) for step in range(1000)], size=64)
    database = Database(settings.database)
    rewriter = Rewriter(
        database=database, tensor_tables=TensorTables(), worker="test", limits=Limits(rows=256)
    )
    with database.read() as c:
        run = runs.get(c, "r").id
    assert rewriter.rewrite(run, 0) == 3
    yield client, database
    database.close()


def frame(client: Client, query: str = "") -> Any:
    return client.get(f"/api/v1/runs/r/frame{query}").json


def test_the_last_frame_and_the_frame_at_a_step(long_run: tuple[Client, Database]) -> None:
    client, _database = long_run
    last = frame(client)
    assert (last["step"], last["segment"], last["rank"], last["tensors"]) == (999, 0, 0, sorted(TENSORS))
    weight = last["tensors"].index(WEIGHT)
    values = last["stats"]["amax"]["values"]
    assert values[weight] is None
    assert values.count(2.0) == 2
    assert last["stats"]["sat"]["values"][last["tensors"].index(INPUT)] == pytest.approx(2 * 64 / 448)
    at = frame(client, f"?step={NAN_AT}")
    assert (at["step"], at["stats"]["amax"]["values"]) == (NAN_AT, ["NaN", "NaN", None])
    assert frame(client, f"?step={INF_AT}")["stats"]["amax"]["values"] == ["Infinity"] * 3
    assert frame(client, "?step=5000")["step"] == 999
    assert frame(client, "?step=5000&segment=3") == {
        **{"run_id": "r", "rank": 0, "segment": None, "step": None},
        **{"tensors": [], "stats": {}},
    }
    only = frame(client, f"?step=10&tensor={WEIGHT.replace('/', '%2F')}")
    assert (only["tensors"], only["stats"]["scale"]) == ([WEIGHT], {"step": 10, "values": [64.0]})
    assert client.get("/api/v1/runs/r/frame?step=-1").status == 422
    assert client.get("/api/v1/runs/nothing/frame").status == 404


def test_the_nearest_histograms_before_a_step(long_run: tuple[Client, Database]) -> None:
    for step, expected in ((999, 950), (949, 850), (700, 650), (49, None)):
        found = frame(long_run[0], f"?step={step}&histograms=true")["hist_log2"]
        assert found["step"] == expected
        assert (found["counts"].get(INPUT) or [None])[0] == expected


def test_tensors_have_ranks_and_last_values(long_run: tuple[Client, Database]) -> None:
    client, _database = long_run
    row = step_of(1000) | {"rank": 3}
    client.put("r", 0, {"steps": [row]}, rank=3)
    items = {item["name"]: item for item in client.get("/api/v1/runs/r/tensors").json["items"]}
    assert list(items) == list(TENSORS)
    assert items[INPUT]["ranks"] == [0, 3]
    assert items[WEIGHT]["stats"] == ["amax", "headroom_log2", "sat", "scale"]
    assert items[INPUT]["last"]["amax"] == 2.0
    assert items[WEIGHT]["last"]["amax"] == 2.0  # of the rank that has one


def test_of_very_many_ranks_some_from_the_first_to_the_last_are_looked_at(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MOST_RANKS", 3)
    client.open_run("r", tensors=TABLE)
    for rank in range(7):
        client.put("r", 0, {"steps": [step_of(0) | {"rank": rank}]}, rank=rank)
        said = client.get("/api/v1/runs/r/tensors").json
        assert said.get("ranks_left_out", 0) == max(0, rank - 2)
    assert [item["ranks"] for item in said["items"]] == [[0, 3, 6]] * len(TENSORS)


def test_a_spike_a_nan_and_an_inf_of_one_step_are_seen_at_every_zoom(
    long_run: tuple[Client, Database],
) -> None:
    client, _database = long_run
    tensor = INPUT.replace("/", "%2F")
    for points in (1, 2, 3, 10, 100, 500, 1000):
        series = client.get(f"/api/v1/runs/r/series?tensor={tensor}&stat=amax&points={points}").json
        scalars = client.get(f"/api/v1/runs/r/scalars?names=loss&points={points}").json["series"]["loss"]
        for found in (series, scalars):
            assert (max(v for v in found["max"] if v is not None), sum(found["count"])) == (1e6, 1000)
            assert (sum(found["nan"]), sum(found["inf"])) == (1, 1)
            assert len(found["step"]) <= points
        heat = client.get(f"/api/v1/runs/r/heatmap?stat=amax&columns={min(points, 500)}").json
        assert (heat["hi"], len(heat["nan"]), len(heat["inf"])) == (1e6, 2, 3)
        assert math.isfinite(heat["lo"])


def spoil(database: Database, table: Table, column: str, value: object, **where: object) -> None:
    with database.write() as c:
        query = update(table).values({column: value})
        for name, wanted in where.items():
            query = query.where(table.c[name] == wanted)
        assert c.execute(query).rowcount > 0


@pytest.mark.parametrize("rubbish", [b"", b"\x05", b"\x01\x01\x00\x02\x00" + b"\xff" * 40])
def test_damaged_numbers_spoil_only_what_is_made_of_them(
    long_run: tuple[Client, Database], rubbish: bytes
) -> None:
    client, database = long_run
    series = f"/api/v1/runs/r/series?tensor={INPUT.replace('/', '%2F')}&stat="
    spoil(database, tables.tile, "data", rubbish, kind=kinds.STAT, name="amax")
    spoil(database, tables.level, "data", rubbish, kind=kinds.STAT, name="amax")
    answer = client.get(series + "amax&points=1000")
    assert (answer.status, answer.json["title"]) == (502, "Stored data is damaged")
    assert "amax of rank 0" in answer.json["damaged"]
    assert client.get(series + "amax&points=4").status == 502
    assert client.get("/api/v1/runs/r/heatmap?stat=amax&columns=4").status == 502
    assert client.get("/api/v1/runs/r/frame?step=100").status == 502
    assert client.get(series + "scale&points=1000").status == 200
    spoil(database, tables.block, "data", rubbish, kind=kinds.SCALARS)
    assert client.get("/api/v1/runs/r/scalars").status == 502
    spoil(database, tables.frame, "data", rubbish)
    assert client.get("/api/v1/runs/r/frame").status == 502


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (tables.run, "recipe_json"),
        (tables.run, "last_loss_json"),
        (tables.run, "info_json"),
        (tables.chunk, "widths_json"),
        (tables.block, "data"),
        (tables.batch, "glance_json"),
    ],
)
def test_the_overview_shows_the_other_runs_and_marks_the_damaged_one(
    long_run: tuple[Client, Database], table: Table, column: str
) -> None:
    client, database = long_run
    client.open_run("other", name="another run")
    with database.read() as c:
        run = runs.get(c, "r").id
    spoil(
        database,
        table,
        column,
        b"\x05" if column == "data" else "{",
        **{"id" if table is tables.run else "run": run},
    )
    listed = client.get("/api/v1/runs").json["items"]
    assert {item["run_id"] for item in listed} == {"r", "other"}
    page = client.get("/")
    assert page.status == 200
    assert "another run" in page.text
    if column not in ("info_json", "glance_json"):  # the overview reads neither
        assert "is damaged" in page.text
    assert client.get("/api/v1/runs/other").status == 200
    for path in ("", "/verdict", "/scalars", "/tensors", "/frame", "/heatmap?stat=amax"):
        answer = client.get(f"/api/v1/runs/r{path}")
        assert answer.status in (200, 502), path
    assert client.get("/runs/r").status in (200, 502)


def test_a_damaged_page_of_the_database_is_told_as_what_it_is(long_run: tuple[Client, Database]) -> None:
    client, database = long_run
    path = database.engine.url.database
    assert path is not None
    with closing(sqlite3.connect(path)) as c:
        (page_bytes,) = c.execute("pragma page_size").fetchone()
        (root,) = c.execute("select rootpage from sqlite_master where name = 'level'").fetchone()
        c.execute("pragma wal_checkpoint(truncate)")
    with open(path, "r+b") as file:
        file.seek((root - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)
    answer = client.get("/api/v1/runs/r/heatmap?stat=amax&columns=4")
    assert (answer.status, answer.json["damaged"]) == (502, "a page of the database")
    assert client.get("/api/v1/runs").status == 200
    assert client.get("/").status == 200

"""``GET /api/v1/compare``: the document of the command line, series to draw, what is refused, and how long
it takes.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.compare.cli import main
from floatscope_diagnostics.compare.judge import Comparison, compare
from floatscope_server import comparing
from floatscope_server.app import create_app
from floatscope_server.comparing import Asked
from floatscope_server.database import Database
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import runs
from tests.diagnostics.compare.logs import Rows, pair_of
from tests.server.live import TOKEN, Client
from tests.server.stored_runs import Store, named

STEPS = 400


def send(client: Client, run_id: str, rows: Rows, **info: object) -> None:
    assert client.open_run(run_id, name=run_id, **info).status == 201
    for seq, start in enumerate(range(0, len(rows), 100)):
        assert client.put(run_id, seq, {"steps": rows[start : start + 100]}).status == 200


def with_tensors(rows: Rows, *, broken_from: int | None = None) -> Rows:
    """Each row with two tensors; fc2's amax is eight times as large from a step on."""
    out = []
    for row in rows:
        times = 8.0 if broken_from is not None and row["step"] >= broken_from else 1.0
        stats = {"amax": 2.0, "rms": 0.5}
        out.append({**row, "tensors": {"a.fc1/input": stats, "a.fc2/input": {**stats, "amax": 2.0 * times}}})
    return out


@pytest.fixture
def pair(client: Client) -> Client:
    """A run whose loss is 0.06 above its baseline's from step 200 on, and whose tensor a.fc2/input broke."""
    run, base = pair_of(np.where(np.arange(STEPS) >= 200, 0.06, 0.0))
    send(client, "fp8", with_tensors(run, broken_from=180), project="p")
    send(client, "bf16", with_tensors(base), project="p")
    return client


def test_it_is_the_document_of_the_command_line(
    pair: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATSCOPE_URL", f"http://127.0.0.1:{pair.port}")
    monkeypatch.setenv("FLOATSCOPE_TOKEN", TOKEN)
    assert main(["fp8", "bf16", "--json", "--margin", "0.03", "--from", "20"]) == 1
    asked = json.loads(capsys.readouterr().out)
    found = pair.get("/api/v1/compare?run=fp8&baseline=bf16&margin=0.03&from=20").json
    assert {name: found[name] for name in asked} == asked
    assert found["decision"] == "worse"
    assert found["tensors"]["first"][0]["tensor"] == "a.fc2/input"
    assert found["tensor_rows"] == {"read": [380, 380], "logged": [380, 380]}


def test_the_series_are_exact_and_share_their_bins(pair: Client) -> None:
    found = pair.get("/api/v1/compare?run=fp8&baseline=bf16&points=60&tensors=false").json
    series = found["series"]
    assert series["bin_steps"] == 8
    assert series["difference"]["step"] == series["run"]["step"] == series["baseline"]["step"]
    assert sum(series["difference"]["count"]) == STEPS
    run = np.array([row["loss"] for row in pair.steps("fp8")])
    base = np.array([row["loss"] for row in pair.steps("bf16")])
    gap = (run - base).reshape(-1, 8)
    assert series["difference"]["min"] == gap.min(axis=1).tolist()
    assert series["difference"]["max"] == gap.max(axis=1).tolist()
    assert np.allclose(series["run"]["mean"], run.reshape(-1, 8).mean(axis=1), rtol=1e-12)
    band = series["band"]
    late = [k for k, step in enumerate(band["step"]) if step > 220]
    assert sum(band["low"][k] < 0.06 < band["high"][k] for k in late) > 0.7 * len(late) > 3
    ends = zip(band["low"], band["mean"], band["high"], strict=True)
    assert all(low <= mean <= high for low, mean, high in ends)
    assert found["tensors"]["why_not"] == "not looked at yet"
    assert found["tensor_rows"] is None


def test_a_part_is_drawn_without_changing_what_is_compared(pair: Client) -> None:
    whole = pair.get("/api/v1/compare?run=fp8&baseline=bf16").json
    part = pair.get("/api/v1/compare?run=fp8&baseline=bf16&shown_from=100&shown_to=139").json
    assert part["difference"] == whole["difference"]
    assert part["series"]["bin_steps"] == 1
    assert part["series"]["run"]["step"] == list(range(100, 140))


def test_it_is_remembered_until_a_run_grows(pair: Client) -> None:
    address = "/api/v1/compare?run=fp8&baseline=bf16"
    first = pair.get(address)
    etag = first.headers["etag"]
    assert pair.call("GET", address, headers={"If-None-Match": etag}).status == 304
    assert pair.put("bf16", 4, {"steps": [{"step": STEPS, "loss": 2.0}]}).status == 200
    again = pair.call("GET", address, headers={"If-None-Match": etag})
    assert again.status == 200
    assert again.json["baseline"]["last_step"] == STEPS
    assert again.json["pairing"]["only_in_baseline"] == 1


def test_two_who_ask_at_once_wait_for_one_comparison(pair: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def slowly(*args: Any, **more: Any) -> Comparison:
        judged.append("once")
        time.sleep(0.3)
        return compare(*args, **more)

    monkeypatch.setattr(comparing, "compare", slowly)
    address = "/api/v1/compare?run=fp8&baseline=bf16&margin=0.5"
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(pair.get, [address] * 3))
    assert [answer.status for answer in answers] == [200] * 3
    assert judged == ["once"]


REFUSED = (
    ("run=fp8&baseline=gone", 404, "there is no run 'gone'"),
    ("run=fp8", 422, "baseline"),
    ("run=fp8&baseline=empty", 422, "run 'empty' logs no loss"),
    ("run=fp8&baseline=far", 422, "they share no stretch of steps"),
    ("run=fp8&baseline=bf16&margin=-1", 422, "margin"),
    ("run=fp8&baseline=bf16&margin=NaN", 422, "a number from 0 to 1000000"),
    ("run=fp8&baseline=bf16&from=9&to=3", 422, "a step not above to=3"),
    ("run=fp8&baseline=bf16&from=5000", 422, "logs no loss between these steps"),
    ("run=fp8&baseline=bf16&points=0", 422, "points"),
)


def test_what_cannot_be_compared_is_said(pair: Client) -> None:
    assert pair.open_run("empty").status == 201
    assert pair.open_run("far").status == 201
    rows = [{"step": 9_000 + k, "loss": 2.0} for k in range(8)]
    assert pair.put("far", 0, {"steps": rows}).status == 200
    for query, status, said in REFUSED:
        answer = pair.get(f"/api/v1/compare?{query}")
        assert (query, answer.status) == (query, status)
        assert said in answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_what_speaks_against_it_is_told(client: Client) -> None:
    run, base = pair_of(np.zeros(60))
    send(client, "one", run, project="p", vocab_size=100, config={"batch_size": 8})
    send(client, "two", base, project="q", vocab_size=200, config={"batch_size": 16})
    found = client.get("/api/v1/compare?run=one&baseline=two").json
    assert [note["code"] for note in found["notes"]] == ["other_vocabulary", "other_batch", "other_project"]
    twice = client.get("/api/v1/compare?run=one&baseline=one").json
    assert [note["code"] for note in twice["notes"]] == ["same_run"]
    for refused in (found, twice):
        assert (refused["decision"], refused["go"]["decidable"]) == ("undecided", False)
        assert refused["summary"] == refused["go"]["sentence"]
    short = client.get("/api/v1/compare?run=one&baseline=two&to=0").json
    assert short["decision"] == "undecided"
    assert short["difference"]["whole"]["low"] == "-Infinity"
    assert short["series"]["band"]["step"] == []


def test_losses_that_are_not_finite_are_counted_and_never_drawn(client: Client) -> None:
    run, base = pair_of(np.zeros(64))
    broken = [{**row, "loss": "NaN" if row["step"] >= 40 else row["loss"]} for row in run]
    send(client, "nan", broken)
    send(client, "well", base)
    found = client.get("/api/v1/compare?run=nan&baseline=well&points=8").json
    assert found["decision"] == "worse"
    assert found["nonfinite"] == {"side": "run", "step": 40, "steps": 24, "lasting": True}
    assert found["series"]["run"]["nan"] == [0, 0, 0, 0, 0, 8, 8, 8]
    assert found["series"]["run"]["mean"][5:] == [None, None, None]
    assert found["series"]["baseline"]["nan"] == [0] * 8


def long_run(database: Database, run_id: str, *, steps: int, seed: int) -> None:
    store = Store(database, run_id, named(6))
    rng = np.random.default_rng(seed)
    batch = np.random.default_rng(1).normal(0.0, 0.2, steps)  # the same data in both runs
    names = tuple(sorted(named(6)))
    for first in range(0, steps, 2000):
        step = np.arange(first, min(first + 2000, steps))
        loss = 2.0 + batch[step] + rng.normal(0.0, 0.02, len(step))
        rows = np.arange(0, len(step), 4)
        amax = np.abs(rng.normal(2.0, 0.1, (len(rows), len(names)))).astype(np.float32)
        store.add(
            Batch(
                step=step,
                time=step.astype(float),
                scalar_names=("loss",),
                scalars=loss[:, None],
                scalars_present=np.ones((len(step), 1), bool),
                tensor_names=names,
                stat_row=rows,
                stats={"amax": amax},
                stats_present={"amax": np.ones(amax.shape, bool)},
            )
        )
    store.rewrite()


def test_a_hundred_thousand_steps_take_two_seconds(sqlite_database: Database, settings: Settings) -> None:
    for number, name in enumerate(("long", "base")):
        long_run(sqlite_database, name, steps=100_000, seed=number)
    services: Services = create_app(settings, database=sqlite_database).state.services
    with sqlite_database.read() as c:
        pair = runs.get(c, "long"), runs.get(c, "base")
        began = time.thread_time()
        found = comparing.compared(c, services, *pair, Asked())
        series = found.series(points=900)
        took = time.thread_time() - began
    assert found.found.decision == "same"
    assert len(found.found.pairs.step) == 100_000
    assert len(series["difference"]["step"]) <= 900
    assert took < 4.0, f"{took:.1f} s"  # 1.2 s on a quiet machine


def test_of_more_statistics_than_are_read_it_says_how_many_were(
    sqlite_database: Database, settings: Settings
) -> None:
    for number, name in enumerate(("long", "base")):
        long_run(sqlite_database, name, steps=20_000, seed=number)
    services: Services = create_app(settings, database=sqlite_database).state.services
    with sqlite_database.read() as c:
        pair = runs.get(c, "long"), runs.get(c, "base")
        found = comparing.compared(c, services, *pair, Asked(values=9_000))
    assert found.rows is not None
    assert found.rows.logged == (5_000, 5_000)
    assert 0 < found.rows.read[0] < 5_000
    assert not found.rows.complete
    assert found.found.tensors.rows == found.rows.read[0]

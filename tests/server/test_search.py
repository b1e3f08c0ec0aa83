"""Search: which runs and tensors are found, in which order, and how much is looked at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import pytest

from floatscope.protocol.runinfo import RunInfo
from floatscope_server.database import Database
from floatscope_server.store import runs, searching
from floatscope_server.store.searching import FoundRun, FoundTensor
from floatscope_server.store.tensor_tables import TensorTables
from tests.server.live import Client
from tests.server.samples import TABLE, body, rows


def search(client: Client, q: str, **query: object) -> Any:
    answer = client.get("/api/v1/search?" + urlencode({"q": q, **query}))
    assert answer.status == 200, answer.text
    return answer.json


def ids(found: Any) -> list[str]:
    return [run["run_id"] for run in found["runs"]]


def test_runs_are_found_by_name_id_and_project_and_every_word_counts(client: Client) -> None:
    client.open_run("a1", name="Llama-7B fp8", project="pretrain")
    client.open_run("b2", name="mini llama", project="ablation")
    client.open_run("c3", name="other", project="pretrain")
    assert ids(search(client, "")) == ["c3", "b2", "a1"]
    assert ids(search(client, "LLAMA")) == ["a1", "b2"]  # begins with it, then has it
    assert ids(search(client, "llama pretrain")) == ["a1"]
    assert ids(search(client, "b2")) == ["b2"]
    assert ids(search(client, "pretr")) == ["c3", "a1"]
    assert ids(search(client, "nothing such")) == []


@pytest.mark.parametrize("q", ["%", "_", "\\", "'", '"', "/", "a\x00%", "%' OR 1=1 --", "\ud7ff\U0010ffff"])
def test_signs_stand_for_themselves(client: Client, q: str) -> None:
    client.open_run("plain", name="plain name")
    assert ids(search(client, q)) == []


def test_names_with_signs_of_patterns_are_found(client: Client) -> None:
    client.open_run("r", name="100%_done <b>x</b>")
    client.open_run("s", name="100 done")
    assert ids(search(client, "100%_d")) == ["r"]
    assert search(client, "<b>")["runs"][0]["name"] == "100%_done <b>x</b>"


def test_live_runs_come_before_those_that_ended(client: Client) -> None:
    for run_id in ("old", "new"):
        client.open_run(run_id, name=f"llama {run_id}")
    client.call("POST", "/api/v1/runs/new/finish", {"status": "finished"})
    assert ids(search(client, "llama")) == ["old", "new"]
    assert search(client, "llama", limit=1)["more_runs"] is True
    assert search(client, "llama")["more_runs"] is False


def test_tensors_of_the_run_that_is_looked_at_or_of_the_newest_live_ones(client: Client) -> None:
    for run_id in ("one", "two"):
        client.open_run(run_id, tensors=TABLE)
        client.put(run_id, 0, body(rows(0, 4)))
    here = search(client, "qkv grad", run="one")["tensors"]
    assert [(item["run_id"], item["name"]) for item in here] == [("one", "blocks.0.attn.qkv/grad_output")]
    assert {item["run_id"] for item in search(client, "qkv weight")["tensors"]} == {"one", "two"}
    assert {item["run_id"] for item in search(client, "weight", run="gone")["tensors"]} == {"one", "two"}
    assert search(client, "", run="one")["tensors"] == []


def test_a_token_that_may_only_send_finds_nothing(client: Client) -> None:
    made = client.call("POST", "/api/v1/tokens", {"name": "trainer", "scopes": ["ingest"]})
    assert Client(client.port, token=made.json["token"]).get("/api/v1/search?q=a").status == 403


def stored(database: Database, names: Sequence[str]) -> FoundRun:
    with database.write() as c:
        runs.create(c, "large", RunInfo(name="large"), summary="", now=0.0)
        run = runs.get(c, "large")
        TensorTables().add(c, run.id, {name: {} for name in names})
        (found,) = searching.one_run(c, "large")
    return found


def test_a_hundred_thousand_tensors_are_searched_quickly(database: Database) -> None:
    parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    names = [f"layers.{i // 4}.{parts[i % 4]}.expert{i}/input" for i in range(100_000)]
    run = stored(database, names)
    known = TensorTables()
    with database.read() as c:
        found, more = searching.find_tensors(c, known, [run], ("expert77777",), limit=10)
        assert found == [FoundTensor(run, "layers.19444.attn.proj.expert77777/input")]
        assert more is False
        start = time.thread_time()
        found, more = searching.find_tensors(c, known, [run], ("FC2", "19"), limit=10)
        took_s = time.thread_time() - start
    assert len(found) == 10
    assert more is True
    assert found[0].name == "layers.19.mlp.fc2.expert79/input"
    assert took_s < 1.0


def test_more_names_than_the_bound_are_not_looked_at(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MOST_NAMES", 3)
    run = stored(database, ["a/input", "b/input", "c/input", "d/input"])
    with database.read() as c:
        found, more = searching.find_tensors(c, TensorTables(), [run], ("input",), limit=10)
    assert [item.name for item in found] == ["a/input", "b/input", "c/input"]
    assert more is True

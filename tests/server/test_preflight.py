"""A run's preflight on the server: taken or refused, shown, exported, and held against the baseline's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tests.diagnostics.compare.logs import pair_of
from tests.server.live import Client
from tests.server.test_compare_rest import send

FOUND: dict[str, Any] = {
    "schema": "floatscope.preflight/1",
    "decision": "warn",
    "counts": {"warn": 1},
    "checks": [
        {"name": "software.nccl", "area": "software", "status": "warn", "read": "NCCL 2.20 <i>", "do": "x"}
    ],
    "versions": {"torch": "2.13.0", "cuda": "12.9"},
    "casts": {"saturating_cast": True},
}


def test_it_is_stored_shown_exported_and_replaced(client: Client) -> None:
    run, _ = pair_of(np.zeros(20))
    send(client, "one", run, preflight=FOUND)
    assert client.get("/api/v1/runs/one").json["info"]["preflight"] == FOUND
    first = client.get("/api/v1/runs/one/steps").text.splitlines()[0]
    assert json.loads(first)["run"]["preflight"] == FOUND
    page = client.get("/runs/one").text
    assert "NCCL 2.20 &lt;i&gt;" in page
    assert client.open_run("one", preflight=FOUND | {"decision": "fail"}).status == 200
    assert client.get("/api/v1/runs/one").json["info"]["preflight"]["decision"] == "fail"
    send(client, "none", run)
    assert "preflight" not in client.get("/api/v1/runs/none").json["info"]
    assert 'id="preflight"' not in client.get("/runs/none").text


def test_what_is_none_is_refused_and_named(client: Client) -> None:
    for found, field in (
        ({"schema": "x"}, "run.preflight.schema"),
        (FOUND | {"checks": 3}, "run.preflight.checks"),
        (FOUND | {"note": "x" * 300_000}, "run.preflight"),
        (FOUND | {"decision": "odd"}, "run.preflight.decision"),
    ):
        answer = client.open_run("bad", preflight=found)
        assert (answer.status, answer.json["field"]) == (422, field)


def test_other_versions_and_casts_speak_against_a_comparison(client: Client) -> None:
    run, base = pair_of(np.zeros(60))
    other = FOUND | {"versions": {"torch": "2.11.0"}, "casts": {"saturating_cast": False}}
    send(client, "fp8", run, preflight=FOUND)
    send(client, "bf16", base, preflight=other)
    send(client, "untold", base)
    notes = client.get("/api/v1/compare?run=fp8&baseline=bf16").json["notes"]
    assert [note["code"] for note in notes] == ["other_versions", "other_casts"]
    assert (notes[0]["setting"], notes[0]["run"], notes[0]["baseline"]) == ("torch", "2.13.0", "2.11.0")
    assert client.get("/api/v1/compare?run=fp8&baseline=untold").json["notes"] == []
    page = client.get("/compare?run=fp8&baseline=bf16").text
    assert "Software differs, torch: 2.13.0 and 2.11.0" in page
    assert "Casts to FP8 differ between the machines (saturating_cast)" in page

"""A database that fails in mid-batch: nothing half-done, a clear answer, and the batch is taken later."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from floatscope_server.store import blocks, outbox, rule_settings, runs
from tests.server.live import Client
from tests.server.samples import as_stored, body, faulty_run, lines

AT = (3, 7)


class FailingAt:
    """Lets a function through except on some of its calls, where the disk is full."""

    def __init__(self, real: Any, calls: tuple[int, ...], *, after: bool) -> None:
        self.real, self.calls, self.after, self.count = real, calls, after, 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.count += 1
        fails = self.count in self.calls
        if fails and not self.after:
            raise OperationalError("insert", {}, sqlite3.OperationalError("database or disk is full"))
        result = self.real(*args, **named)
        if fails:
            raise OperationalError("insert", {}, sqlite3.OperationalError("database or disk is full"))
        return result


@pytest.mark.parametrize(
    ("module", "name", "after"),
    [
        *((blocks, "write", False), (blocks, "write", True), (runs, "place", True), (outbox, "add", True)),
        (rule_settings, "of_project", False),  # while the batch is judged: no fault of the diagnosis
    ],
)
def test_a_full_disk_in_the_middle_of_a_batch(
    serve: Any, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, after: bool
) -> None:
    with_slack = {"kind": "slack", "name": "s", "url": "http://127.0.0.1:65530/x"}
    client: Client = serve()
    assert client.call("POST", "/api/v1/channels", with_slack).status == 201
    described, steps = faulty_run(88, fault_at=64)
    client.open_run("r", **described)
    monkeypatch.setattr(
        module, name, FailingAt(getattr(module, name), (1,) if name == "add" else AT, after=after)
    )
    refused = 0
    for seq in range(11):
        content = body(steps[seq * 8 : seq * 8 + 8])
        answer = client.put("r", seq, content)
        if answer.status != 200:
            refused += 1
            assert answer.status == 503, answer.text
            assert answer.headers["retry-after"] == "5"
            assert "nothing was changed" in answer.json["detail"]
            shown = client.get("/api/v1/runs/r").json
            assert shown["ranks"][0]["expected_seq"] == seq if shown["ranks"] else seq == 0
            assert client.put("r", seq, content).status == 200
    assert refused >= 1
    assert lines(client.steps("r")) == as_stored(steps)
    engine = Engine(RunInfo.from_json(described), run_key="r")
    engine.feed(batch_from_rows(steps))
    found = client.get("/api/v1/runs/r/verdict").json["findings"]
    assert found == engine.verdict(live=True).to_json()["findings"]
    for alert in client.get("/api/v1/alerts").json["items"]:
        assert [event["event"] for event in alert["history"]].count("raised") == 1
        assert [d["event"] for d in alert["deliveries"]].count("raised") == 1

"""kill -9 in mid-run: every step once and bit-equal, the verdict of a clean replay, no alert twice."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from tests.server.live import Answer, Client, Process, in_own_process, wait_for
from tests.server.samples import as_stored, body, faulty_run, lines
from tests.server.slack import slack

STEADY, SHAKY, SIZE = 576, 96, 4  # more steady steps than one snapshot, then small batches under fire
KILLS = 2


class StubbornAgent:
    """Sends as the agent does: the same bytes under the same seq until the server says it has them."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.client = process.start()
        self.restarts = 0

    def put(self, seq: int, content: bytes) -> Answer:
        for _ in range(10):
            try:
                return self.client.put("r", seq, content)
            except OSError:  # killed under our hands
                self.process.kill()
                self.client = self.process.start()
                self.restarts += 1
        raise AssertionError("the server does not come back")


def alerts_of(client: Client) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get("/api/v1/alerts?run=r").json["items"]
    return items


@pytest.mark.timeout(120)
def test_kill_9_loses_and_doubles_nothing(tmp_path: Path) -> None:
    described, steps = faulty_run(STEADY + SHAKY, fault_at=STEADY + 20)
    rng = random.Random(5)
    with (
        slack() as receiver,
        in_own_process(
            tmp_path / "data",
            FLOATSCOPE_SLACK_WEBHOOK_URL=receiver.url,
            FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS="1",
        ) as process,
    ):
        agent = StubbornAgent(process)
        assert agent.client.open_run("r", **described).status == 201
        for seq in range(STEADY // 64):
            assert agent.put(seq, body(steps[seq * 64 : seq * 64 + 64])).status == 200
        seq = STEADY // 64
        batches = [steps[at : at + SIZE] for at in range(STEADY, STEADY + SHAKY, SIZE)]
        doomed = set(rng.sample(range(len(batches)), KILLS))
        for index, part in enumerate(batches):
            content = body(part)
            if index in doomed:
                threading.Timer(rng.random() * 0.02, process.kill).start()
            assert agent.put(seq, content).status == 200
            if rng.random() < 0.3:
                assert agent.put(seq, content).json["expected_seq"] == seq + 1
            seq += 1
        assert agent.restarts >= 1
        client = agent.client
        assert lines(client.steps("r")) == as_stored(steps)

        engine = Engine(RunInfo.from_json(described), run_key="r")
        engine.feed(batch_from_rows(steps))
        clean = engine.verdict(live=True).to_json()
        found = client.get("/api/v1/runs/r/verdict").json
        assert found["findings"] == clean["findings"]
        assert (found["status"], found["summary"]) == (clean["status"], clean["summary"])

        alerting = [f["id"] for f in clean["findings"] if f["severity"] in ("warning", "critical")]
        assert alerting, "the faulty run must raise something"
        alerts = alerts_of(client)
        assert sorted(alert["id"] for alert in alerts) == sorted(alerting)
        for alert in alerts:
            assert [event["event"] for event in alert["history"]].count("raised") == 1
        wait_for(
            lambda: all(d["state"] == "sent" for alert in alerts_of(client) for d in alert["deliveries"]),
            seconds=20,
        )
        raised = sum(d["event"] == "raised" for alert in alerts_of(client) for d in alert["deliveries"])
        assert raised == len(alerting)
        assert len(receiver.got) >= raised
        assert process.stop() == 0

"""Delivery: a Slack that fails, is down or asks to wait loses nothing; order is kept; secrets stay so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from floatscope_server import tables
from floatscope_server.database import Database
from tests.server.live import Client, free_port, in_own_process, wait_for
from tests.server.outage import Outage, takes
from tests.server.samples import Scripted, body, faulty_run, finding, rows, send
from tests.server.slack import slack


def one_finding(last: int | None) -> list[dict[str, Any]]:
    """Raised at step 4, worse at 8, recovered at 12."""
    if last is None or last < 4:
        return []
    state = "recovered" if last >= 12 else "worsened" if last >= 8 else "raised"
    return [finding(state=state, resolved_step=12 if last >= 12 else None)]


def deliveries(client: Client) -> list[dict[str, Any]]:
    (alert,) = client.get("/api/v1/alerts?run=r").json["items"]
    found: list[dict[str, Any]] = alert["deliveries"]
    return found


def all_sent(client: Client) -> bool:
    return all(delivery["state"] == "sent" for delivery in deliveries(client))


def test_two_failures_then_all_in_order(serve: Any) -> None:
    with slack((503, {}), (500, {})) as receiver:
        client = serve({"slack_webhook_url": SecretStr(receiver.url)}, engines=Scripted(one_finding))
        client.open_run("r")
        send(client, "r", rows(0, 16), size=4)
        wait_for(lambda: all_sent(client), seconds=15)
    assert [delivery["event"] for delivery in deliveries(client)] == ["raised", "worsened", "recovered"]
    assert [delivery["attempts"] for delivery in deliveries(client)] == [3, 1, 1]
    words = [text["text"].split("*")[1] for text in receiver.got]
    assert words == ["Critical:", "Worse, critical:", "Recovered:"]
    pauses = [later - earlier for earlier, later in zip(receiver.tried, receiver.tried[1:], strict=False)]
    assert pauses[0] >= 1.0
    assert pauses[1] >= 2.0


def test_retry_after_is_honoured(serve: Any) -> None:
    with slack((429, {"Retry-After": "2"})) as receiver:
        client = serve({"slack_webhook_url": SecretStr(receiver.url)}, engines=Scripted(one_finding))
        client.open_run("r")
        send(client, "r", rows(0, 6), size=6)
        wait_for(lambda: all_sent(client), seconds=15)
    assert receiver.tried[1] - receiver.tried[0] >= 2.0


@pytest.mark.timeout(90)
def test_slack_is_down_the_server_is_killed_and_later_both_are_back(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/services/T0/B0/secret"
    described, steps = faulty_run(96, fault_at=64)
    environment = {"FLOATSCOPE_SLACK_WEBHOOK_URL": url, "FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS": "1"}
    with in_own_process(tmp_path / "data", **environment) as process:
        client = process.start()
        client.open_run("r", **described)
        send(client, "r", steps, size=16)
        items = client.get("/api/v1/alerts?run=r").json["items"]
        assert items
        assert all(delivery["state"] == "pending" for alert in items for delivery in alert["deliveries"])
        process.kill()
        with slack(port=port) as receiver:
            client = process.start()

            def arrived() -> bool:
                found = client.get("/api/v1/alerts?run=r").json["items"]
                return all(delivery["state"] == "sent" for alert in found for delivery in alert["deliveries"])

            wait_for(arrived, seconds=40)
            assert len(receiver.got) == sum(len(alert["deliveries"]) for alert in items)
        assert "secret" not in process.log.read_text()
        assert b"secret" not in (tmp_path / "data" / "floatscope.db").read_bytes()


@pytest.mark.parametrize(
    ("minimum", "projects", "expected"),
    [("warning", [], 1), ("critical", [], 0), ("warning", ["other"], 0), ("info", ["mine"], 1)],
)
def test_a_channel_hears_only_what_it_wants(
    serve: Any, minimum: str, projects: list[str], expected: int
) -> None:
    def script(last: int | None) -> list[dict[str, Any]]:
        return [] if last is None else [finding(severity="warning")]

    with slack() as receiver:
        client = serve({"alert_group_s": 0.0}, engines=Scripted(script))
        channel = {"kind": "slack", "name": "team", "url": receiver.url, "min_severity": minimum}
        assert client.call("POST", "/api/v1/channels", {**channel, "projects": projects}).status == 201
        client.open_run("r", project="mine")
        client.put("r", 0, body(rows(0, 1)))
        wait_for(lambda: len(deliveries(client)) == expected)
        wait_for(lambda: len(receiver.got) == expected)


def test_a_damaged_message_holds_up_no_other(sqlite_database: Database) -> None:
    outage = Outage(sqlite_database)
    outage.answers["ch"] = takes
    broken = outage.queue("r1", "raised")
    outage.queue("s1", "raised")
    with sqlite_database.write() as c:
        c.execute(tables.outbox.update().where(tables.outbox.c.id == broken).values(body_json="{"))
    outage.pass_time(7200)
    assert outage.states("r1", "s1") == ["dead", "sent"]

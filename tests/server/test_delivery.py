"""Delivery: a Slack that fails, is down or asks to wait loses nothing; order is kept; secrets stay so."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from floatscope.protocol.runinfo import RunInfo
from floatscope_server.database import Database
from floatscope_server.notify import sender as sending
from floatscope_server.notify.sender import Sender
from floatscope_server.notify.webhook import WebhookFailed
from floatscope_server.store import alerts, channels, outbox, runs
from floatscope_server.store.channels import ChannelRecord
from tests.server.live import Client, free_port, in_own_process, wait_for
from tests.server.samples import Scripted, body, faulty_run, finding, rows, send
from tests.server.slack import slack

NEVER = 1e18


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
    assert words == ["Critical:", "Worse:", "Recovered:"]
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


class Outage:
    """A clock and a receiver under control: every post fails until ``works``."""

    def __init__(self, database: Database) -> None:
        self.now = 0.0
        self.works = False
        self.posts: list[float] = []
        self.database = database
        with database.write() as c:
            runs.create(c, "r", RunInfo(), summary="", now=0.0)
            run = runs.get(c, "r").id
            channels.put(c, ChannelRecord("ch", "slack", "ch", "http://x/", "info", (), True, 0.0))
            for alert in ("a", "b"):
                alerts.create(c, run, "r", finding(id=alert), state="firing", now=0.0)
                for event in ("raised", "recovered"):
                    outbox.add(
                        c,
                        channel="ch",
                        alert=alert,
                        event=event,
                        body={"alert": alert, "event": event},
                        now=0.0,
                    )
        self.sender = Sender(database=database, post=self.post, env_url=None, clock=lambda: self.now)

    def post(self, _url: str, body: Mapping[str, Any]) -> int:
        if body["alert"] == "a":
            self.posts.append(self.now)
        if not self.works:
            raise WebhookFailed("down")
        return 200

    def run_until(self, end: float) -> None:
        while self.now < end:
            wait = self.sender._round()
            self.now += wait


def test_the_schedule_is_1_2_5_15_30_s_then_every_5_min_and_ends(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sending.GIVE_UP_S == 86_400
    monkeypatch.setattr(sending, "GIVE_UP_S", 1400.0)
    outage = Outage(sqlite_database)
    outage.run_until(1400 + 200)
    pauses = [round(b - a) for a, b in zip(outage.posts, outage.posts[1:], strict=False)]
    assert pauses[:10] == [1, 2, 5, 15, 30, 300, 300, 300, 300, 300]
    with sqlite_database.read() as c:
        found = outbox.deliveries(c, ["a"])["a"]
    assert (found[0].state, found[0].error) == ("dead", "down")


def test_messages_of_one_alert_never_overtake_each_other(sqlite_database: Database) -> None:
    outage = Outage(sqlite_database)
    outage.run_until(20)
    outage.works = True
    outage.run_until(100)
    with sqlite_database.read() as c:
        for found in outbox.deliveries(c, ["a", "b"]).values():
            assert [d.state for d in found] == ["sent", "sent"]
            assert (found[0].finished or NEVER) <= (found[1].finished or 0.0)


def test_a_database_that_is_away_does_not_end_the_sender(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "RETRY_S", (0.01,))
    outage = Outage(sqlite_database)
    outage.works = True
    healthy = outbox.due
    failures = iter([True, True])

    def due(*args: Any, **named: Any) -> Any:
        if next(failures, False):
            raise OSError("the disk is away")
        return healthy(*args, **named)

    monkeypatch.setattr(outbox, "due", due)
    outage.sender.start()
    with caplog.at_level(logging.ERROR):
        wait_for(lambda: len(outage.posts) == 2)
    assert outage.sender.alive()
    outage.sender.stop()
    assert "the outbox could not be read" in caplog.text


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
        client = serve(engines=Scripted(script))
        channel = {"kind": "slack", "name": "team", "url": receiver.url, "min_severity": minimum}
        assert client.call("POST", "/api/v1/channels", {**channel, "projects": projects}).status == 201
        client.open_run("r", project="mine")
        client.put("r", 0, body(rows(0, 1)))
        assert len(deliveries(client)) == expected
        wait_for(lambda: len(receiver.got) == expected)


def test_channels_are_listed_without_their_address_tested_and_switched_off(serve: Any) -> None:
    with slack((403, {})) as receiver:
        client = serve()
        made = client.call("POST", "/api/v1/channels", {"kind": "slack", "name": "team", "url": receiver.url})
        assert (made.status, made.json["host"], made.json["enabled"]) == (201, "127.0.0.1", True)
        listed = client.get("/api/v1/channels")
        assert [channel["name"] for channel in listed.json["items"]] == ["team"]
        assert "secret" not in listed.text + made.text
        path = f"/api/v1/channels/{made.json['id']}"
        refused = client.call("POST", f"{path}/test").json
        assert refused["delivered"] is False
        assert "403" in refused["error"]
        assert client.call("POST", f"{path}/test").json == {"delivered": True, "status": 200, "error": None}
        assert "*Test:*" in receiver.got[0]["text"]
        assert client.call("DELETE", path).json["enabled"] is False
    assert client.call("POST", f"{path}/test").json["delivered"] is False
    assert client.call("POST", "/api/v1/channels/none/test").status == 404

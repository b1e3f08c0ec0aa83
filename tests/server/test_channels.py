"""Channels over HTTP: added, changed, tested, removed; their secrets go in and never come out."""

from __future__ import annotations

import json
import logging
import re
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from floatscope_server.database import Database
from floatscope_server.notify.posting import Letter
from floatscope_server.store import channels
from floatscope_server.store.channels import ChannelRecord
from tests.repo.repository import ROOT
from tests.server.live import TOKEN, Client, free_port, wait_for
from tests.server.samples import Scripted, body, finding, rows
from tests.server.slack import slack

SECRETS = ("B0/secret", "sesame-sesame-sesame", "fsk_")


def add(client: Client, **fields: Any) -> dict[str, Any]:
    answer = client.call("POST", "/api/v1/channels", {"kind": "slack", "name": "team", **fields})
    assert answer.status == 201, answer.text
    made: dict[str, Any] = answer.json
    return made


def documented() -> Any:
    """The function by which docs/notifications.md tells receivers to check a message."""
    text = (ROOT / "docs" / "notifications.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["is_genuine"]


def verified(content: bytes, headers: Any, secret: str) -> bool:
    genuine: bool = documented()(headers, content, secret)
    return genuine


def test_a_channel_is_added_shown_changed_tested_and_removed(serve: Any) -> None:
    with slack((403, {})) as receiver:
        client = serve()
        made = add(client, url=receiver.url, repeat_s=3600, quiet={"from": "22:00", "to": "07:00"})
        path = f"/api/v1/channels/{made['id']}"
        assert (made["host"], made["enabled"], made["signed"]) == ("127.0.0.1", True, False)
        assert (made["repeat_s"], made["escalate_s"]) == (3600.0, None)
        assert made["quiet"]["zone"] == "UTC"
        assert client.get(path).json == made
        assert client.get("/api/v1/channels").json["items"] == [made]
        refused = client.call("POST", f"{path}/test").json
        assert (refused["delivered"], refused["status"]) == (False, 403)
        assert "403" in refused["error"]
        told = client.call("POST", f"{path}/test").json
        assert (told["delivered"], told["status"], told["error"]) == (True, 200, None)
        assert told["took_s"] >= 0
        assert "*Test:*" in receiver.got[0]["text"]
        change = {
            "name": "night",
            "min_severity": "critical",
            "repeat_s": None,
            "quiet": None,
            "enabled": False,
        }
        changed = client.call("PATCH", path, {**change, "projects": ["p"], "escalate_s": 600}).json
        kept = {name: changed[name] for name in ("updated", "updated_by")}
        assert changed == {**made, **change, **kept, "projects": ["p"], "escalate_s": 600.0}
    unreachable = client.call("POST", f"{path}/test").json
    assert (unreachable["delivered"], unreachable["status"]) == (False, None)
    assert client.call("DELETE", path).json["id"] == made["id"]
    assert client.get("/api/v1/channels").json["items"] == []
    for method, rest in (
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/test"),
        ("GET", "/deliveries"),
    ):
        assert client.call(method, path + rest, {} if method == "PATCH" else None).status == 404
    acts = [item["action"] for item in client.get("/api/v1/audit?action=channel").json["items"]]
    assert acts[0] == "channel.remove"
    assert set(acts) == {"channel.add", "channel.change", "channel.test", "channel.remove"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": "email"}, "kind"),
        ({"url": "ftp://x.example/"}, "url"),
        ({"url": 5}, "url"),
        ({"url": "https://no-such-host.invalid/B0/secret"}, "url"),
        ({"kind": "apprise", "url": "dbus://"}, "url"),
        ({"kind": "apprise", "url": "discord://sesame-sesame-sesame"}, "url"),
        ({"secret": "sesame-sesame-sesame"}, "secret"),
        ({"kind": "webhook", "secret": "short"}, "secret"),
        ({"kind": "webhook", "secret": "sesame-sesame-sesame\n"}, "secret"),
        ({"min_severity": "loud"}, "min_severity"),
        ({"projects": ["a\x00"]}, "projects.0"),
        ({"repeat_s": 1}, "repeat_s"),
        ({"repeat_s": "NaN"}, "repeat_s"),
        ({"escalate_s": 1e12}, "escalate_s"),
        ({"quiet": {"from": "25:00", "to": "07:00"}}, "quiet.from"),
        ({"webhook": "http://127.0.0.1/B0/secret"}, "webhook"),
        ({"name": None}, "name"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is_repeated(
    client: Client, fields: dict[str, Any], field: str
) -> None:
    whole = {"kind": "slack", "name": "team", "url": "https://127.0.0.1:9/B0/secret", **fields}
    for content in (whole, {k: v for k, v in whole.items() if k != "name"} | {"name": None, **fields}):
        answer = client.call("POST", "/api/v1/channels", content)
        assert answer.status == 422
        assert not any(secret in answer.text for secret in SECRETS)
    assert client.call("POST", "/api/v1/channels", whole).json["field"] == field


def test_private_addresses_are_refused_where_they_are_not_allowed(client: Client) -> None:
    for kind in ("slack", "webhook"):
        answer = client.call(
            "POST", "/api/v1/channels", {"kind": kind, "name": "x", "url": "http://127.0.0.1:9000/B0/secret"}
        )
        assert answer.status == 422
        assert "FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS" in answer.json["hint"]
        assert "secret" not in answer.text


def test_a_webhook_is_signed_and_its_secret_is_shown_once(serve: Any) -> None:
    with slack() as receiver:
        client = serve(engines=Scripted(lambda last: [] if last is None else [finding()]))
        made = add(client, kind="webhook", url=receiver.url)
        secret = made.pop("secret")
        path = f"/api/v1/channels/{made['id']}"
        assert (made["signed"], client.get(path).json) == (True, made)
        client.open_run("r")
        client.put("r", 0, body(rows(0, 1)))
        wait_for(lambda: len(receiver.raw) == 1)
        content, headers = receiver.raw[0]
        assert verified(content, headers, secret)
        assert not verified(content + b" ", headers, secret)
        old = {**headers, "X-Floatscope-Timestamp": "1700000000"}
        assert not verified(content, old, secret)
        (item,) = client.get(f"{path}/deliveries").json["items"]
        assert headers["X-Floatscope-Delivery"] == str(item["number"])
        told = json.loads(content)
        (alert,) = client.get("/api/v1/alerts").json["items"]
        assert told["event"] == "raised"
        for name in ("id", "run_id", "project", "state", "severity", "cause", "summary", "evidence"):
            assert told["alert"][name] == alert[name]
        own = client.call("PATCH", path, {"secret": "sesame-sesame-sesame"})
        assert "secret" not in own.json
        assert client.call("POST", f"{path}/test").json["delivered"] is True
        assert verified(*receiver.raw[1], "sesame-sesame-sesame")
        assert receiver.raw[1][1]["X-Floatscope-Delivery"].startswith("test-")
        other = client.call("PATCH", path, {"new_secret": True}).json["secret"]
        assert other != secret
        client.call("POST", f"{path}/test")
        assert verified(*receiver.raw[2], other)


def test_dead_letters_are_shown_and_sent_again(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatscope_server.notify.retry.REFUSED_RETRY_S", ())
    findings = [finding(id=f"f{n}") for n in range(3)]
    with slack((404, {}), (404, {}), (404, {}), says=b"no_service") as receiver:
        client = serve(engines=Scripted(lambda last: findings[: (last or 0) + 1]))
        path = f"/api/v1/channels/{add(client, url=receiver.url)['id']}/deliveries"
        client.open_run("r")
        for seq in range(3):
            client.put("r", seq, body(rows(seq, 1)))
        wait_for(lambda: len(client.get(f"{path}?state=dead").json["items"]) == 3)
        first = client.get(f"{path}?state=dead,pending&limit=2").json
        rest = client.get(f"{path}?limit=2&cursor={first['next_cursor']}").json
        found = [*first["items"], *rest["items"]]
        assert [item["alert"] for item in found] == ["f2", "f1", "f0"]
        assert rest["next_cursor"] is None
        assert found[0]["error"] == "127.0.0.1 answered 404: no_service"
        assert (found[0]["due"], found[0]["attempts"]) == (None, 1)
        again = f"{path}/{found[1]['number']}/retry"
        assert client.call("POST", again).json["state"] == "pending"
        wait_for(lambda: len(client.get(f"{path}?state=sent").json["items"]) == 1)
        assert client.call("POST", again).status == 409
        assert client.call("POST", f"{path}/999/retry").status == 404
        assert client.get(f"{path}?state=lost").status == 422


def test_the_channel_of_the_settings_can_be_tuned_and_not_removed(serve: Any) -> None:
    with slack() as receiver:
        parts = {"slack_webhook_url": SecretStr(receiver.url)}
        path = "/api/v1/channels/slack-environment"
        client = serve(parts)
        assert client.call("PATCH", path, {"min_severity": "critical"}).json["min_severity"] == "critical"
        assert client.call("PATCH", path, {"url": receiver.url}).status == 422
        assert client.call("DELETE", path).status == 409
        assert client.call("POST", f"{path}/test").json["delivered"] is True
        client = serve(parts)  # the next start keeps what was chosen
        assert client.get(path).json["min_severity"] == "critical"


def test_no_secret_in_logs_records_or_documents(
    serve: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    with slack((500, {}), (404, {}), says=b"/services/T0/B0/secret is not here") as receiver:
        client = serve({"log_level": "debug"}, engines=Scripted(lambda last: [finding()]))
        made = add(client, kind="webhook", url=receiver.url, secret="sesame-sesame-sesame")
        path = f"/api/v1/channels/{made['id']}"
        client.open_run("r")
        client.put("r", 0, body(rows(0, 1)))
        wait_for(lambda: bool(client.get(f"{path}/deliveries").json["items"][0]["error"]))
        client.call("POST", f"{path}/test")
        client.call("PATCH", path, {"url": receiver.url, "secret": "sesame-sesame-sesame"})
    down = client.call("POST", f"{path}/test").json
    assert down["delivered"] is False
    shown = [client.get(where).text for where in (path, "/api/v1/channels", f"{path}/deliveries")]
    shown += [client.get(where).text for where in ("/api/v1/audit", "/api/v1/alerts", "/openapi.json")]
    shown += [down["error"], caplog.text]
    for text in shown:
        assert "B0/secret" not in text
        assert "sesame" not in text
        assert TOKEN not in text


def test_records_and_letters_do_not_show_their_secrets(database: Database) -> None:
    record = ChannelRecord("c", "webhook", "c", "https://x/B0/secret", "info", (), True, 0.0, b"sesame")
    letter = Letter("webhook", "https://x/B0/secret", b"sesame", {"a": "sesame"}, "1")
    assert "secret" not in f"{record!r} {record} {letter!r} {letter}"
    assert "sesame" not in f"{record!r} {record} {letter!r} {letter}"
    with database.write() as c:
        channels.put(c, record)
        assert channels.get(c, "c") == record
    with pytest.raises(ValueError, match="cannot be stored") as failed, database.write() as c:
        channels.put(c, replace(record, id="d", name=None))  # type: ignore[arg-type]
    whole = "".join(traceback.format_exception(failed.value))
    assert "secret" not in whole.replace("test_records_and_letters_do_not_show_their_secrets", "")
    assert "sesame" not in whole


def test_two_changes_at_once_lose_nothing(database: Database) -> None:
    record = ChannelRecord("c", "slack", "c", "https://old/x", "info", (), True, 0.0)
    with database.write() as c:
        channels.put(c, record)
    has_read = threading.Event()

    def rename() -> None:
        with database.write() as c:
            found = channels.get(c, "c", lock=True)
            has_read.set()
            channels.put(c, replace(found, name="new"))

    other = threading.Thread(target=rename)
    with database.write() as c:
        channels.put(c, replace(channels.get(c, "c", lock=True), url="https://new/x"))
        other.start()
        assert not has_read.wait(0.3), "it must wait for the change that is under way"
    other.join(20)
    with database.read() as c:
        assert channels.get(c, "c") == replace(record, name="new", url="https://new/x")


def test_who_changes_what_somebody_changed_meanwhile_is_told(serve: Any) -> None:
    client: Client = serve()
    made = add(client, url="https://127.0.0.1:1024/B0/secret")
    path = f"/api/v1/channels/{made['id']}"
    assert (made["updated"], made["updated_by"]) == (None, None)
    first = client.call("PATCH", path, {"name": "first", "as_of": None}).json
    assert (first["name"], first["updated_by"]) == ("first", "environment")
    for old in (None, made["created"]):
        late = client.call("PATCH", path, {"name": "late", "as_of": old})
        assert (late.status, late.json["field"]) == (409, "as_of")
        assert late.json["detail"] == f"environment changed the channel at {first['updated']}"
    assert client.get(path).json == first
    assert client.call("PATCH", path, {"name": "second", "as_of": first["updated"]}).json["name"] == "second"
    assert client.call("PATCH", path, {"name": "whatever it is"}).status == 200


def test_only_a_few_tests_are_under_way_at_once(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatscope_server.notify.sender.TESTS", 1)
    began, free = threading.Event(), threading.Event()

    def hang(_letter: Letter) -> int:
        began.set()
        free.wait(20)
        return 200

    client = serve(post=hang)
    path = f"/api/v1/channels/{add(client, url='http://127.0.0.1:9000/')['id']}/test"
    first: list[bool] = []
    thread = threading.Thread(target=lambda: first.append(client.call("POST", path).json["delivered"]))
    thread.start()
    assert began.wait(10)
    busy = client.call("POST", path)
    free.set()
    thread.join(20)
    assert (busy.status, busy.headers["retry-after"], first) == (429, "10", [True])
    assert client.call("POST", path).json["delivered"] is True


def test_what_waits_when_a_channel_is_switched_off_is_not_told_later(serve: Any) -> None:
    with slack((503, {}), (503, {}), (503, {})) as receiver:
        client = serve(engines=Scripted(lambda last: [finding()]))
        path = f"/api/v1/channels/{add(client, url=receiver.url)['id']}"
        client.open_run("r")
        client.put("r", 0, body(rows(0, 1)))
        wait_for(lambda: client.get(f"{path}/deliveries").json["items"][0]["attempts"] > 0)
        client.call("PATCH", path, {"enabled": False})
        (item,) = client.get(f"{path}/deliveries").json["items"]
        assert (item["state"], item["error"]) == ("dead", "the channel was switched off")


def test_a_message_that_waits_arrives_at_the_address_it_is_changed_to(serve: Any) -> None:
    client = serve(engines=Scripted(lambda last: [finding()]))
    made = add(client, url=f"http://127.0.0.1:{free_port()}/x")
    client.open_run("r")
    client.put("r", 0, body(rows(0, 1)))
    path = f"/api/v1/channels/{made['id']}"
    wait_for(lambda: client.get(f"{path}/deliveries").json["items"][0]["attempts"] > 0)
    with slack() as receiver:
        client.call("PATCH", path, {"url": receiver.url})
        wait_for(lambda: len(receiver.got) == 1)

"""The audit log: who did what, when, from where; written with the act; bounded; without secrets."""

from __future__ import annotations

from typing import Any

import pytest

from floatscope_server.callers import COMMAND_LINE, SERVER, Caller
from floatscope_server.database import Database
from floatscope_server.doorkeeper import NOTES_PER_HOUR
from floatscope_server.keeper import Keeper
from floatscope_server.store import audit
from tests.server.conftest import Serve
from tests.server.live import TOKEN, Client, wait_for
from tests.server.test_tokens import doorkeeper

AUDIT = "/api/v1/audit"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def acts(client: Client, query: str = "") -> list[dict[str, Any]]:
    answer = client.get(f"{AUDIT}{query}")
    assert answer.status == 200, answer.text
    items: list[dict[str, Any]] = answer.json["items"]
    return items


def test_tokens_sign_ins_and_deletes_are_recorded_with_who_and_from_where(serve: Serve) -> None:
    server = serve({"trusted_proxies": "127.0.0.1"})
    said = server.call("POST", "/api/v1/tokens", {"name": "ada", "scopes": ["admin"]}).json
    ada = Client(server.port, said["token"])
    ada.open_run("r", name="first", project="p")
    ada.call("PATCH", "/api/v1/runs/r", {"name": "second"})
    here = {"X-Forwarded-For": "203.0.113.7"}
    ada.call("DELETE", "/api/v1/runs/r", headers=here)
    signed_in = Client(server.port, None).call(
        "POST", "/login", f"token={said['token']}".encode(), headers=FORM
    )
    session = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0], "Sec-Fetch-Site": "same-origin"}
    Client(server.port, None).call("POST", "/logout", b"", headers=session)
    server.call("DELETE", f"/api/v1/tokens/{said['id']}")
    found = [(act["action"], act["who"], act["token"], act["target"], act["address"]) for act in acts(server)]
    own = said["id"]
    assert found == [
        ("token.revoke", "environment", None, own, "127.0.0.1"),
        ("logout", "ada", own, None, "127.0.0.1"),
        ("login.ok", "ada", own, None, "127.0.0.1"),
        ("run.delete", "ada", own, "r", "203.0.113.7"),
        ("run.change", "ada", own, "r", "127.0.0.1"),
        ("token.add", "environment", None, own, "127.0.0.1"),
    ]
    details = {act["action"]: act["detail"] for act in acts(server)}
    assert details["run.delete"] == {"name": "second", "project": "p"}
    assert details["token.add"] == {"name": "ada", "scopes": ["admin"], "expires": None}
    text = server.get(AUDIT).text
    assert said["token"] not in text
    assert TOKEN not in text


def test_a_refused_act_leaves_nothing(client: Client) -> None:
    before = len(acts(client, "?limit=500"))
    assert client.call("DELETE", "/api/v1/runs/none").status == 404
    assert client.call("DELETE", "/api/v1/tokens/0123456789ab").status == 404
    assert client.call("POST", "/api/v1/tokens", {"name": "x"}).status == 422
    assert len(acts(client, "?limit=500")) == before


def test_filters_and_cursor(client: Client) -> None:
    for name in ("a", "b", "c"):
        client.call("POST", "/api/v1/tokens", {"name": name, "scopes": ["read"]})
    page = client.get(f"{AUDIT}?action=token.add&limit=2").json
    assert [item["detail"]["name"] for item in page["items"]] == ["c", "b"]
    rest = client.get(f"{AUDIT}?action=token.add&limit=1&cursor={page['next_cursor']}").json["items"]
    assert [item["detail"]["name"] for item in rest] == ["a"]
    assert {item["action"] for item in acts(client, "?action=token")} <= {"token.add", "token.revoke"}
    assert acts(client, "?who=nobody-of-this-name") == []
    assert acts(client, "?since=9999-01-01T00:00:00Z") == []
    assert len(acts(client, "?action=token.add&who=environment&since=2001-01-01&limit=3")) == 3


@pytest.mark.parametrize("query", ["?action=A'--", "?since=soon", "?cursor=x", "?limit=0", "?who=a%00b"])
def test_odd_queries_are_refused(client: Client, query: str) -> None:
    assert client.get(f"{AUDIT}{query}").status == 422


def test_wrong_tokens_are_recorded_but_not_each_and_never_the_token(serve: Serve) -> None:
    server = serve()
    for number in range(5):
        assert Client(server.port, f"a-wrong-token-{number}").get("/api/v1/runs").status == 401
    wait_for(lambda: len(acts(server, "?action=login.failed")) == 3, seconds=15)
    found = acts(server, "?action=login.failed")
    assert [act["detail"]["tries"] for act in found] == [4, 2, 1]
    assert {act["who"] for act in found} == {"nobody"}
    assert "a-wrong-token" not in server.get(AUDIT).text


def test_a_storm_of_wrong_tokens_does_not_fill_the_log(sqlite_database: Database) -> None:
    now = 7200.0
    found = doorkeeper(sqlite_database, lambda: now)
    for number in range(3 * NOTES_PER_HOUR):
        found._note(f"203.0.113.{number % 250}", 1)
        assert len(found._failed) <= NOTES_PER_HOUR
    assert len(found.failed_logins()) == NOTES_PER_HOUR
    found._note("203.0.113.1", 1)
    assert found.failed_logins() == []
    now += 3600
    found._note("203.0.113.1", 1)
    assert len(found.failed_logins()) == 1


def test_texts_are_bounded_and_storable(database: Database) -> None:
    odd = Caller("n\x00\ud800" + "x" * 5000, address="::1")
    with database.write() as c:
        audit.write(c, odd, "silence.add", target="t" * 5000, detail={"a": "\x00\ud800"}, now=1.0)
        audit.write(c, SERVER, "retention.delete", detail={"a": "x" * 10_000}, now=2.0)
        audit.write(c, COMMAND_LINE, "db.backup", now=3.0)
        first, second, third = reversed(audit.listed(c, limit=10))
    assert (len(first.who), len(first.target or "")) == (audit.MAX_TEXT - 1, audit.MAX_TEXT)
    assert first.detail == {"a": "\x00?"}
    assert list(second.detail) == ["left_out"]
    assert (third.who, third.address, dict(third.detail)) == ("command line", None, {})


def test_acts_are_kept_as_long_as_the_setting_says(database: Database) -> None:
    now = 100 * 86_400.0
    with database.write() as c:
        for day in (1, 69, 71, 99):
            audit.write(c, SERVER, "run.delete", target=str(day), now=day * 86_400.0)
    Keeper(database=database, doorkeeper=doorkeeper(database), audit_days=30, clock=lambda: now).forget()
    with database.read() as c:
        assert [act.target for act in audit.listed(c, limit=10)] == ["99", "71"]

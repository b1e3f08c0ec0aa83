"""Tokens: what each scope allows; shown once, listed without secrets, ended at once, never the last one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from floatscope_server import migrate, scopes, tables
from floatscope_server.access import Access, digest_of, first_token, open_access
from floatscope_server.app import create_app
from floatscope_server.callers import ADMIN
from floatscope_server.database import Database
from floatscope_server.doorkeeper import Doorkeeper
from floatscope_server.keeper import Keeper
from floatscope_server.scopes import INGEST, OPEN, READ, SCOPES, TABLE, WRITE, needed
from floatscope_server.sessions import Sessions
from floatscope_server.settings import Settings
from floatscope_server.store import tokens
from floatscope_server.throttle import Throttle
from tests.server.conftest import Serve
from tests.server.live import Client, wait_for
from tests.server.samples import body, rows

TOKENS = "/api/v1/tokens"
BATCH = "/api/v1/runs/r/ranks/0/batches/{}"


def made(client: Client, *given: str, **more: Any) -> tuple[Client, dict[str, Any]]:
    """A client with a new token of these scopes, and what the server said about it."""
    answer = client.call("POST", TOKENS, {"name": "-".join(given), "scopes": list(given), **more})
    assert answer.status == 201, answer.text
    return Client(client.port, answer.json["token"]), answer.json


def asked(client: Client, method: str, path: str) -> int:
    """The status of a request whose body is nothing."""
    return client.call(method, path, b"" if method in ("POST", "PUT", "PATCH") else None).status


def routes_of(app: FastAPI) -> Iterator[Any]:
    """Every route, also those in included routers, which newer versions of FastAPI keep as such."""
    for route in app.router.routes:
        inner = getattr(route, "effective_route_contexts", None)
        yield from [route] if inner is None else inner()


def test_every_route_says_what_it_needs(settings: Settings) -> None:
    app = create_app(settings)
    found = set()
    for route in routes_of(app):
        for method in route.methods:
            found.add(("GET" if method == "HEAD" else method, route.path))
    app.state.services.database.close()
    undeclared = {(method, path) for method, path in found if method != "OPTIONS"} - set(TABLE) - OPEN
    assert undeclared == set()
    assert set(TABLE) - found == set()
    for method, path in TABLE:
        assert needed(method, path.replace("{", "").replace("}", "")) == TABLE[method, path]


def test_what_is_not_in_the_table_has_no_scope_of_its_own() -> None:
    assert needed("GET", "/api/v1/odd") is None
    assert needed("PUT", "/api/v1/runs") is None
    assert needed("GET", "/api/v1/runs/a/b") is None
    assert needed("HEAD", "/api/v1/runs") == READ


@pytest.mark.parametrize(
    ("given", "allowed"),
    [((INGEST,), {INGEST}), ((READ,), {READ}), ((WRITE,), {READ, WRITE}), ((ADMIN,), set(SCOPES))],
)
def test_each_scope_opens_exactly_its_routes(
    client: Client, given: tuple[str, ...], allowed: set[str]
) -> None:
    mine, _said = made(client, *given)
    for (method, path), scope in TABLE.items():
        if path.endswith("/events") or scope == scopes.ANY:
            continue
        concrete = re.sub(r"\{\w+\}", "0", path)
        answer = mine.call(method, concrete, b"" if method in ("POST", "PUT", "PATCH") else None)
        if scope in allowed:
            assert answer.status not in (401, 403, 500), (method, concrete, answer.text)
        else:
            assert answer.status == 403, (method, concrete, answer.text)
            assert answer.json["missing_scope"] == scope
            assert f'scope="{scope}"' in answer.headers["www-authenticate"]


def test_a_token_that_only_ingests_sends_a_run_and_sees_nothing(client: Client) -> None:
    agent, _said = made(client, INGEST)
    assert agent.open_run("r").status == 201
    assert agent.put("r", 0, body(rows(0, 3))).status == 200
    assert asked(agent, "GET", "/api/v1/runs/r") == 403
    assert asked(agent, "GET", "/") == 403
    assert asked(agent, "DELETE", "/api/v1/runs/r") == 403
    assert asked(agent, "GET", "/api/v1/nothing") == 404
    assert agent.get("/api/v1/me").json["scopes"] == [INGEST]
    assert client.get("/api/v1/runs/r").json["ranks"][0]["expected_seq"] == 1


def test_a_token_is_shown_once_and_stored_as_a_hash(serve: Serve, settings: Settings) -> None:
    admin = serve()
    reader, said = made(admin, READ)
    token = said["token"]
    assert (said["scopes"], said["state"], said["expires"]) == ([READ], "active", None)
    listed = admin.get(TOKENS)
    assert [item["id"] for item in listed.json["items"]] == [said["id"]]
    assert token not in listed.text
    assert "token" not in listed.json["items"][0]
    assert reader.get("/api/v1/runs").status == 200
    stored = b"".join(path.read_bytes() for path in settings.data_dir.glob("floatscope.db*"))
    assert token.encode() not in stored
    assert digest_of(token).encode() in stored


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"scopes": ["read"]}, "name"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["root"]}, "scopes.0"),
        ({"name": "x", "scopes": ["read"], "expires": "2001-01-01T00:00:00Z"}, "expires"),
        ({"name": "x", "scopes": ["read"], "expires": "9999-12-31T23:59:59-12:00"}, "expires"),
        ({"name": "x", "scopes": ["read"], "hash": "0"}, "hash"),
        ({"name": "a\x00b", "scopes": ["read"]}, "name"),
    ],
)
def test_bad_descriptions_of_a_token(client: Client, given: dict[str, Any], field: str) -> None:
    answer = client.call("POST", TOKENS, given)
    assert (answer.status, answer.json["field"]) == (422, field)
    assert answer.json["hint"]


def test_an_ended_token_ends_at_once(client: Client) -> None:
    mine, said = made(client, READ)
    assert mine.get("/api/v1/runs").status == 200
    ended = client.call("DELETE", f"{TOKENS}/{said['id']}")
    assert (ended.status, ended.json["state"]) == (200, "revoked")
    assert mine.get("/api/v1/runs").status == 401
    again = client.call("DELETE", f"{TOKENS}/{said['id']}")
    assert (again.status, again.json["revoked"]) == (200, ended.json["revoked"])
    missing = client.call("DELETE", f"{TOKENS}/0123456789ab")
    assert (missing.status, missing.json["field"]) == (404, "token_id")


def test_a_token_that_ran_out_is_not_valid(sqlite_database: Database) -> None:
    now = 1000.0
    with sqlite_database.write() as c:
        tokens.add(c, digest_of("short"), name="short", now=now, scopes=(READ,), expires=now + 10)
    access = open_access(sqlite_database, environment_token=None, clock=lambda: now)
    assert access.find("short") is not None
    now = 1010.0
    assert access.find("short") is None


def test_expires_is_given_and_shown(client: Client) -> None:
    soon = datetime.now(timezone.utc) + timedelta(days=1)
    _mine, said = made(client, READ, expires=soon.isoformat())
    assert datetime.fromisoformat(said["expires"].replace("Z", "+00:00")) == soon


def test_the_last_admin_stays_unless_the_environment_has_a_token(
    serve: Serve, settings: Settings, sqlite_database: Database
) -> None:
    first = first_token(sqlite_database, data_dir=settings.data_dir, from_environment=False, now=1.0)
    server = serve({"token": None})
    admin = Client(server.port, first.token)
    (own,) = admin.get(TOKENS).json["items"]
    refused = admin.call("DELETE", f"{TOKENS}/{own['id']}")
    assert (refused.status, refused.json["field"]) == (409, "token_id")
    in_a_day = (datetime.now(timezone.utc) + timedelta(days=1)).isoformat()
    made(admin, ADMIN, expires=in_a_day)
    made(admin, WRITE)
    assert admin.call("DELETE", f"{TOKENS}/{own['id']}").status == 409
    other, said = made(admin, ADMIN)
    assert admin.call("DELETE", f"{TOKENS}/{own['id']}").status == 200
    assert admin.get(TOKENS).status == 401
    assert other.call("DELETE", f"{TOKENS}/{said['id']}").status == 409
    rescued = serve({"token": SecretStr("from-the-environment-0123")})
    rescuer = Client(rescued.port, "from-the-environment-0123")
    assert rescuer.call("DELETE", f"{TOKENS}/{said['id']}").status == 200


def test_of_two_admins_who_end_each_other_one_stays(
    database: Database, database_url: str, serve: Serve
) -> None:
    for name in ("a", "b"):
        with database.write() as c:
            tokens.add(c, digest_of(name), name=name, now=1.0)
    server = serve({"token": None, "database_url": SecretStr(database_url)})

    def end(own: str, other: str) -> int:
        return Client(server.port, own).call("DELETE", f"{TOKENS}/{digest_of(other)[:12]}").status

    with ThreadPoolExecutor(2) as pool:
        statuses = sorted(pool.map(end, ("a", "b"), ("b", "a")))
    assert statuses[0] == 200
    assert statuses[1] in (401, 409)
    with database.read() as c:
        assert len(tokens.not_revoked(c)) == 1


def doorkeeper(database: Database, clock: Callable[[], float] = time.time) -> Doorkeeper:
    access = Access(database=database, environment_token=None, clock=clock)
    access.reload()
    sessions = Sessions(database=database, access=access, cookie="c", clock=clock)
    return Doorkeeper(access=access, sessions=sessions, throttle=Throttle(), clock=clock)


def test_the_last_use_is_written_at_most_once_a_minute(database: Database) -> None:
    now = 1000.0
    with database.write() as c:
        record = tokens.add(c, digest_of("t"), name="t", now=now)
    keeper_of = doorkeeper(database, lambda: now)
    keeper = Keeper(database=database, doorkeeper=keeper_of, audit_days=1, clock=lambda: now)

    def last_used() -> float | None:
        with database.read() as c:
            found = tokens.find(c, record.id)
        assert found is not None
        return found.last_used

    grant = keeper_of.access.find("t")
    assert grant is not None
    assert last_used() is None
    for moment, written in ((1001.0, 1001.0), (1030.0, 1001.0), (1062.0, 1062.0)):
        now = moment
        keeper_of.access.note_use(grant)
        keeper.write()
        assert last_used() == written


def test_tokens_that_ended_long_ago_leave_the_list(database: Database) -> None:
    now = 1e9
    with database.write() as c:
        for name, expires in (("kept", None), ("over", now - 91 * 86_400), ("recent", now - 86_400)):
            tokens.add(c, digest_of(name), name=name, now=1.0, expires=expires)
    keeper = Keeper(
        database=database, doorkeeper=doorkeeper(database, lambda: now), audit_days=1, clock=lambda: now
    )
    keeper.forget()
    with database.read() as c:
        assert {record.name for record in tokens.listed(c)} == {"kept", "recent"}


def test_another_worker_learns_of_tokens_made_and_ended(database_url: str, serve: Serve) -> None:
    """Two servers on one database, as two workers are."""
    url = SecretStr(database_url)
    with_database = {"database_url": url} if not database_url.startswith("sqlite") else {}
    one, two = serve(with_database), serve(with_database)
    _mine, said = made(one, READ)
    there = Client(two.port, said["token"])
    wait_for(lambda: there.get("/api/v1/runs").status == 200, seconds=5)
    assert one.call("DELETE", f"{TOKENS}/{said['id']}").status == 200
    wait_for(lambda: there.get("/api/v1/runs").status == 401, seconds=10)


def test_without_the_database_what_is_known_of_tokens_holds_only_for_a_while(
    sqlite_database: Database, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(database=sqlite_database)
    reader, _said = made(server, READ)
    assert reader.get("/api/v1/me").status == 200

    def away() -> None:
        raise OperationalError("select", None, RuntimeError("away"))

    monkeypatch.setattr(sqlite_database, "read", away)
    assert reader.get("/api/v1/me").status == 200
    monkeypatch.setattr("floatscope_server.doorkeeper.MAX_AGE_S", 0.0)
    for client in (reader, server):
        answer = client.get("/api/v1/me")
        assert (answer.status, answer.json["title"]) == (503, "Storage is not available")
        assert answer.headers["retry-after"]
    assert Client(server.port, None).get("/healthz").status == 200


def test_tokens_of_before_scopes_are_admin_tokens(database_url: str) -> None:
    database = Database(database_url)
    migrate.upgrade(database, revision="0008")
    with database.write() as c:
        c.exec_driver_sql(
            "insert into token (hash, name, created) values ('" + digest_of("old") + "', 'o', 1)"
        )
    migrate.upgrade(database)
    found = open_access(database, environment_token=None).find("old")
    assert found is not None
    assert found.scopes == frozenset(SCOPES)
    with database.write() as c:
        c.execute(update(tables.token).values(scopes_json='["read"]'))
    narrowed = open_access(database, environment_token=None).find("old")
    assert narrowed is not None
    assert narrowed.scopes == {READ}
    database.close()

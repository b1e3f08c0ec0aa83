"""Browser sessions: stored by their hash, ended by time, idleness, signing out and with their token."""

from __future__ import annotations

import asyncio
import http.client

import pytest
from pydantic import SecretStr

from floatscope_server.access import Access, digest_of
from floatscope_server.database import Database
from floatscope_server.doorkeeper import Doorkeeper
from floatscope_server.errors import Problem
from floatscope_server.keeper import Keeper
from floatscope_server.sessions import IDLE_S, LIFE_S, Sessions, cookie_name
from floatscope_server.settings import Settings
from floatscope_server.store import sessions, tokens
from floatscope_server.throttle import FREE_TRIES, Throttle
from tests.server.conftest import Serve
from tests.server.live import TOKEN, Answer, Client

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
OWN = {"Sec-Fetch-Site": "same-origin"}


def cookie_of(answer: Answer) -> dict[str, str]:
    """The header by which a browser sends the cookie back."""
    assert answer.status == 303, answer.text
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def sign_in(client: Client, token: str = TOKEN, **headers: str) -> dict[str, str]:
    sent = {**FORM, **headers}
    return cookie_of(
        Client(client.port, None).call("POST", "/login", f"token={token}".encode(), headers=sent)
    )


def status(client: Client, session: dict[str, str], path: str = "/api/v1/runs") -> int:
    return Client(client.port, None).call("GET", path, headers=session).status


def new_token(client: Client, *scopes: str) -> tuple[str, str]:
    """A token and its id."""
    said = client.call("POST", "/api/v1/tokens", {"name": "mine", "scopes": list(scopes)}).json
    return said["token"], said["id"]


def test_a_session_may_do_what_its_token_may_do(client: Client) -> None:
    token, token_id = new_token(client, "read")
    session = sign_in(client, token)
    assert status(client, session) == 200
    browser = Client(client.port, None)
    refused = browser.call("POST", "/api/v1/runs", {"run_id": "r"}, headers={**session, **OWN})
    assert (refused.status, refused.json["missing_scope"]) == (403, "ingest")
    told = browser.call("GET", "/api/v1/me", headers=session).json
    assert told == {"name": "mine", "token": token_id, "scopes": ["read"], "session": True}


def test_a_person_whose_token_may_not_see_a_page_is_told_so_in_a_page(client: Client) -> None:
    session = sign_in(client, new_token(client, "ingest")[0])
    answer = Client(client.port, None).call("GET", "/", headers={**session, "Accept": "text/html"})
    assert (answer.status, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert "a token with the scope read" in answer.text
    assert status(client, session, "/") == 403


def test_signing_out_ends_the_session_and_not_only_the_cookie(client: Client) -> None:
    session, other = sign_in(client), sign_in(client)
    assert status(client, session) == 200
    out = Client(client.port, None).call("POST", "/logout", b"", headers={**session, **OWN})
    assert out.status == 303
    assert "Max-Age=0" in out.headers["set-cookie"]
    assert status(client, session) == 401
    assert status(client, other) == 200


def test_a_session_ends_with_its_token(client: Client) -> None:
    token, token_id = new_token(client, "read")
    session = sign_in(client, token)
    assert status(client, session) == 200
    assert client.call("DELETE", f"/api/v1/tokens/{token_id}").status == 200
    assert status(client, session) == 401
    assert status(client, sign_in(client)) == 200


def test_signing_in_again_ends_the_session_before(client: Client) -> None:
    first = sign_in(client)
    second = sign_in(client, **first)
    assert first != second
    assert status(client, first) == 401
    assert status(client, second) == 200
    acts = [(act["action"], act["who"]) for act in client.get("/api/v1/audit?limit=2").json["items"]]
    assert acts == [("login.ok", "environment"), ("logout", "environment")]


def test_only_the_hash_of_a_cookie_is_stored(serve: Serve, settings: Settings) -> None:
    server = serve()
    value = sign_in(server)["Cookie"].partition("=")[2]
    stored = b"".join(path.read_bytes() for path in settings.data_dir.glob("floatscope.db*"))
    assert value.encode() not in stored
    assert digest_of(value).encode() in stored


def test_sessions_survive_a_restart_and_end_with_another_token_of_the_environment(serve: Serve) -> None:
    value = sign_in(serve())["Cookie"].partition("=")[2]
    again = serve({"port": 1})
    session = {"Cookie": f"{cookie_name(port=1, public_url='http://x')}={value}"}
    assert status(again, session) == 200
    changed = serve({"port": 1, "token": SecretStr("another-token-0123456789")})
    assert status(changed, session) == 401


def test_over_https_the_cookie_is_for_this_host_and_https_only(serve: Serve) -> None:
    server = serve({"url": "https://fs.example.org"})
    answer = Client(server.port, None).get(f"/?token={TOKEN}")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-floatscope_")
    for part in ("Secure", "HttpOnly", "SameSite=lax", "Path=/"):
        assert part in cookie
    assert "Domain" not in cookie
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
    assert status(server, cookie_of(answer)) == 200
    plain = {**cookie_of(answer), "Origin": "http://fs.example.org"}
    posted = Client(server.port, None).call("POST", "/api/v1/runs", {"run_id": "r"}, headers=plain)
    assert posted.status == 403


def test_over_http_there_is_no_hsts(client: Client) -> None:
    assert "strict-transport-security" not in client.get("/").headers


def test_a_link_on_another_site_signs_in_but_never_over_a_session(client: Client) -> None:
    token, token_id = new_token(client, "read")
    browser, foreign = Client(client.port, None), {"Sec-Fetch-Site": "cross-site"}
    mine = sign_in(client)
    kept = browser.call("GET", f"/runs/r?token={token}", headers={**mine, **foreign})
    assert (kept.status, kept.headers["location"]) == (303, "/runs/r")
    assert "set-cookie" not in kept.headers
    fresh = cookie_of(browser.call("GET", f"/?token={token}", headers=foreign))
    assert browser.call("GET", "/api/v1/me", headers=fresh).json["token"] == token_id
    typed = cookie_of(browser.call("GET", f"/?token={token}", headers={**mine, "Sec-Fetch-Site": "none"}))
    assert browser.call("GET", "/api/v1/me", headers=typed).json["token"] == token_id


def test_a_stream_of_events_ends_with_its_token(client: Client) -> None:
    token, token_id = new_token(client, "read")
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
    connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    assert answer.readline() == b"retry: 2000\n"
    assert client.call("DELETE", f"/api/v1/tokens/{token_id}").status == 200
    client.open_run("secret-run")
    assert b"secret-run" not in answer.read()
    connection.close()


class At:
    """Sessions over a database, at a time that the test sets."""

    def __init__(self, database: Database) -> None:
        self.now = 1e9
        with database.write() as c:
            tokens.add(c, digest_of("t"), name="t", now=self.now)
        self.access = Access(database=database, environment_token="env", clock=lambda: self.now)
        self.access.reload()
        self.sessions = Sessions(database=database, access=self.access, cookie="c", clock=lambda: self.now)
        self.doorkeeper = Doorkeeper(access=self.access, sessions=self.sessions, throttle=Throttle())
        self.keeper = Keeper(
            database=database, doorkeeper=self.doorkeeper, audit_days=1, clock=lambda: self.now
        )

    def start(self, token: str = "t") -> str:
        grant = self.access.find(token)
        assert grant is not None
        return self.sessions.start(grant, address="127.0.0.1")


def test_a_session_ends_after_a_month_however_busy_it_is(database: Database) -> None:
    at = At(database)
    value = at.start()
    for _day in range(29):
        at.now += 86_400
        assert at.sessions.look_up(value) is not None
        at.keeper.write()
    at.now += 86_400
    assert at.sessions.look_up(value) is None
    assert LIFE_S == 30 * 86_400


def test_a_session_nobody_uses_ends_after_a_week(database: Database) -> None:
    at = At(database)
    value = at.start("env")
    at.now += IDLE_S - 1
    assert at.sessions.look_up(value) is not None
    at.keeper.write()
    at.now += IDLE_S
    assert at.sessions.look_up(value) is None
    at.keeper.forget()
    with database.read() as c:
        assert sessions.find(c, digest_of(value)) is None


def test_cookies_cannot_be_made_up(sqlite_database: Database) -> None:
    at = At(sqlite_database)
    value = at.start()
    assert at.sessions.look_up(value) is not None
    for forged in ("", "x", value[:-1], value + "A", digest_of(value), "\u0661", "a" * 10_000, "\ud800"):
        assert at.sessions.cached(forged) is None
        assert at.sessions.look_up(forged) is None


def test_of_one_token_only_the_newest_sessions_are_kept(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_PER_TOKEN", 20)
    at = At(sqlite_database)
    other = at.start("env")
    first = at.start()
    for _ in range(sessions.MOST_PER_TOKEN):
        at.now += 0.001
        at.start()
    at.sessions.outdate()
    assert at.sessions.look_up(first) is None
    assert at.sessions.look_up(other) is not None


def test_made_up_cookies_do_not_cost_a_look_into_the_database_each(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    mine = sign_in(server)
    assert status(server, mine) == 200
    looked: list[str] = []
    look_up = Sessions.look_up

    def counted(self: Sessions, value: str) -> object:
        looked.append(value)
        return look_up(self, value)

    monkeypatch.setattr(Sessions, "look_up", counted)
    name = mine["Cookie"].partition("=")[0]
    old = {"Cookie": f"{name}=old"}
    assert [status(server, old) for _ in range(20)] == [401] * 20
    assert looked == ["old"]
    said = [status(server, {"Cookie": f"{name}=made-up-{n}"}) for n in range(40)]
    assert said == [401] * (FREE_TRIES - 1) + [429] * (41 - FREE_TRIES)
    assert len(looked) == FREE_TRIES
    waits = Client(server.port, None).call("GET", "/api/v1/runs", headers={"Cookie": f"{name}=more"})
    assert (waits.status, waits.json["field"], waits.headers["retry-after"]) == (429, "Cookie", "1")
    assert status(server, mine) == 200
    assert status(server, sign_in(server)) == 200


def test_a_session_that_was_seen_is_looked_up_again_whatever_comes_from_its_address(
    sqlite_database: Database,
) -> None:
    at = At(sqlite_database)
    value = at.start()

    async def ask() -> None:
        for number in range(FREE_TRIES):
            assert await at.doorkeeper.session(f"x{number}", address="10.0.0.1") is None
        with pytest.raises(Problem, match="cookies"):
            await at.doorkeeper.session("y", address="10.0.0.1")
        at.sessions.outdate()
        assert await at.doorkeeper.session(value, address="10.0.0.1") is not None
        assert await at.doorkeeper.session("z", address="10.0.0.2") is None

    asyncio.run(ask())

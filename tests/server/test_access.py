"""Who may come in: Bearer for programs, a cookie for browsers, and only from our own pages."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from urllib.parse import quote

import pytest

from floatscope_server.access import first_token, open_access
from floatscope_server.database import Database
from floatscope_server.origins import is_same_origin, local_path
from floatscope_server.scopes import SCOPES
from tests.server.live import TOKEN, Client

PROTECTED_API = [
    "/api/v1/runs",
    "/api/v1/alerts",
    "/api/v1/events",
    "/api/v1/nothing",
    "/openapi.json",
    "/metrics",
]
PROTECTED_PAGES = ["/", "/runs/r", "/alerts", "/docs", "/nothing"]


def sign_in(client: Client, path: str = "/") -> tuple[Client, dict[str, str]]:
    """A client without a token, and the header that carries its session."""
    answer = Client(client.port, None).get(f"{path}?token={TOKEN}")
    assert answer.status == 303
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return Client(client.port, None), {"Cookie": cookie}


@pytest.mark.parametrize("path", PROTECTED_API)
def test_the_api_without_a_token_is_401(client: Client, path: str) -> None:
    for stranger in (Client(client.port, None), Client(client.port, "wrong"), Client(client.port, "")):
        answer = stranger.get(path)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", PROTECTED_PAGES)
def test_a_page_without_a_session_leads_to_the_login(client: Client, path: str) -> None:
    answer = Client(client.port, None).get(f"{path}?at=7")
    assert (answer.status, answer.headers["location"]) == (
        303,
        f"/login?next={quote(path, safe='')}%3Fat%3D7",
    )


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/login", "/static/app.css"])
def test_what_is_open(client: Client, path: str) -> None:
    assert Client(client.port, None).get(path).status == 200


def test_the_address_with_a_token_sets_the_cookie_and_hides_the_token(client: Client) -> None:
    answer = Client(client.port, None).get(f"/runs/r?at=5&token={TOKEN}")
    assert (answer.status, answer.headers["location"]) == (303, "/runs/r?at=5")
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=lax", "Path=/"):
        assert part in cookie
    assert TOKEN not in cookie
    away = Client(client.port, None).get(f"//evil.example/?token={TOKEN}")
    assert (away.status, away.headers["location"]) == (303, "/")
    wrong = Client(client.port, None).get("/?token=wrong")
    assert (wrong.status, wrong.headers["location"]) == (303, "/login?next=%2F&failed=1")


def test_a_session_reads_pages_and_api(client: Client) -> None:
    browser, session = sign_in(client)
    assert browser.call("GET", "/", headers=session).status == 200
    assert browser.call("GET", "/api/v1/runs", headers=session).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 201),
        ({"Origin": "OWN"}, 201),
        ({"Origin": "OWN", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_a_session_changes_things_only_from_our_own_pages(
    client: Client, headers: dict[str, str], status: int
) -> None:
    browser, session = sign_in(client)
    own = {k: f"http://127.0.0.1:{client.port}" if v == "OWN" else v for k, v in headers.items()}
    answer = browser.call("POST", "/api/v1/runs", {"run_id": "r"}, headers={**session, **own})
    assert answer.status == status


def test_a_wrong_bearer_is_refused_even_beside_a_good_session(client: Client) -> None:
    browser, session = sign_in(client)
    answer = browser.call("GET", "/api/v1/runs", headers={**session, "Authorization": "Bearer wrong"})
    assert answer.status == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:1", "", "[::", "a b", "x" * 300])
def test_the_host_header_is_in_no_link(client: Client, host: str) -> None:
    forged = {"Host": host, "X-Forwarded-Host": host, "Forwarded": f"host={host}"}
    opened = client.call("POST", "/api/v1/runs", {"run_id": "r"}, headers=forged)
    assert opened.status in (200, 201)
    assert opened.json["url"] == "http://127.0.0.1:8321/runs/r"
    page = client.call("GET", "/runs/r", headers=forged)
    away = Client(client.port, None).call("GET", "/runs/r", headers=forged)
    assert (page.status, away.headers["location"]) == (200, "/login?next=%2Fruns%2Fr")
    for answer in (opened, page, away):
        assert "evil" not in answer.text + str(dict(answer.headers))


def test_login_form(client: Client) -> None:
    browser = Client(client.port, None)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    page = browser.get("/login?next=/runs/r")
    assert 'value="/runs/r"' in page.text
    good = browser.call("POST", "/login", f"token={TOKEN}&next=/runs/r".encode(), headers=form)
    assert (good.status, good.headers["location"]) == (303, "/runs/r")
    assert "set-cookie" in good.headers
    bad = browser.call("POST", "/login", b"token=wrong&next=/", headers=form)
    assert bad.status == 401
    assert "not valid" in bad.text
    foreign = browser.call("POST", "/login", b"token=x", headers={**form, "Origin": "https://evil.example"})
    assert foreign.status == 403
    away = browser.call("POST", "/login", f"token={TOKEN}&next=https://evil.example".encode(), headers=form)
    assert away.headers["location"] == "/"
    assert browser.call("POST", "/login", b"x" * 20_000, headers=form).status == 413


def test_logout_forgets_the_cookie(client: Client) -> None:
    browser, session = sign_in(client)
    headers = {**session, "Sec-Fetch-Site": "same-origin"}
    answer = browser.call("POST", "/logout", b"", headers=headers)
    assert answer.status == 303
    assert "Max-Age=0" in answer.headers["set-cookie"]


def test_pages_carry_the_headers_that_keep_browsers_careful(client: Client) -> None:
    for path in ("/", "/login", "/docs", "/api/v1/runs", "/healthz", "/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-eval" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/runs/a?at=1", "/runs/a?at=1"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: x", "/"),
        ("", "/"),
    ],
)
def test_after_login_only_our_own_pages(path: str, expected: str) -> None:
    assert local_path(path) == expected


def test_same_origin() -> None:
    def asked(origin: str | None, site: str | None = None) -> bool:
        return is_same_origin(
            origin=origin, fetch_site=site, host="in:8321", public_url="https://out.example"
        )

    assert asked("https://in:8321")
    assert not asked("http://in:8321")
    assert asked("https://out.example")
    assert not asked("https://out.example.evil")
    assert not asked("null")
    assert not asked("http://[")
    assert not asked(None)
    assert asked(None, "same-origin")
    assert not asked("http://in:8321", "cross-site")
    assert not asked("http://out.example")
    assert is_same_origin(origin="http://in", fetch_site=None, host="in", public_url="http://out")


def test_the_first_token_is_made_once_kept_private_and_only_its_hash_is_stored(
    sqlite_database: Database, tmp_path: Path
) -> None:
    made = first_token(sqlite_database, data_dir=tmp_path, from_environment=False, now=1.0)
    assert made.token is not None
    assert made.path.read_text().strip() == made.token
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert made.token.encode() not in (tmp_path / "floatscope.db").read_bytes()
    again = first_token(sqlite_database, data_dir=tmp_path, from_environment=False, now=2.0)
    assert again.token is None
    assert re.fullmatch("fs_[0-9a-f]{48}", made.token)
    access = open_access(sqlite_database, environment_token="from the environment")
    for token, name in ((made.token, "first token"), ("from the environment", "environment")):
        found = access.find(token)
        assert found is not None
        assert (found.name, found.scopes) == (name, frozenset(SCOPES))
    assert access.find("") is None
    later = open_access(sqlite_database, environment_token=None)
    assert later.find("from the environment") is None


def test_a_token_from_the_environment_is_not_stored(sqlite_database: Database, tmp_path: Path) -> None:
    made = first_token(sqlite_database, data_dir=tmp_path, from_environment=True, now=1.0)
    assert made.token is None
    assert not made.path.exists()

"""Guessing tokens: slower and slower, in bounded memory, and nobody else is locked out by it."""

from __future__ import annotations

import http.client
import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_server import throttle
from floatscope_server.origins import client_address, guesser, networks
from floatscope_server.settings import Settings, SettingsError, load
from floatscope_server.throttle import FREE_TRIES, LONGEST_WAIT_S, TOTAL_TRIES, Throttle
from tests.server.conftest import Serve
from tests.server.live import TOKEN, Client

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def guess(client: Client, count: int, *, start: int = 0, address: str | None = None) -> int:
    """The status after so many different wrong tokens."""
    headers = {} if address is None else {"X-Forwarded-For": address}
    status = 0
    for number in range(start, start + count):
        wrong = Client(client.port, f"wrong-{number}")
        status = wrong.call("GET", "/api/v1/runs", headers=headers).status
    return status


def test_after_a_few_wrong_tokens_an_address_waits(serve: Serve) -> None:
    server = serve()
    assert guess(server, FREE_TRIES) == 401
    refused = Client(server.port, "wrong-again").get("/api/v1/runs")
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert "try again in" in refused.json["hint"]
    form = Client(server.port, None).call("POST", "/login", b"token=wrong-too", headers=FORM)
    assert (form.status, "Too many wrong tokens" in form.text) == (429, True)
    assert int(form.headers["retry-after"]) >= 1
    link = Client(server.port, None).get("/?token=wrong-too")
    assert link.headers["location"] == "/login?next=%2F&failed=2"
    assert "Too many wrong tokens" in Client(server.port, None).get(link.headers["location"]).text


def test_the_right_token_of_the_environment_waits_too_where_it_was_guessed(serve: Serve) -> None:
    server = serve()
    guess(server, FREE_TRIES + 1)
    assert server.get("/api/v1/runs").status == 429


def test_who_came_in_before_is_not_locked_out_by_others_at_the_same_address(serve: Serve) -> None:
    server = serve()
    assert server.get("/api/v1/runs").status == 200
    assert guess(server, FREE_TRIES + 1) == 429
    assert server.get("/api/v1/runs").status == 200


def test_a_stored_token_is_never_locked_out(serve: Serve) -> None:
    server = serve()
    made = server.call("POST", "/api/v1/tokens", {"name": "n", "scopes": ["read"]}).json["token"]
    again = serve({"token": None})
    assert guess(again, FREE_TRIES + 1) == 429
    assert Client(again.port, made).get("/api/v1/runs").status == 200


def test_the_same_wrong_token_again_and_again_is_one_guess(serve: Serve) -> None:
    server = serve()
    for _ in range(3 * FREE_TRIES):
        assert Client(server.port, "wrong").get("/api/v1/runs").status == 401
    assert guess(server, 1, start=100) == 401


def test_others_come_in_while_one_address_guesses(serve: Serve) -> None:
    server = serve({"trusted_proxies": "127.0.0.1"})
    assert guess(server, FREE_TRIES + 1, address="203.0.113.7") == 429
    other = server.call("GET", "/api/v1/runs", headers={"X-Forwarded-For": "203.0.113.8"})
    assert other.status == 200


def test_x_forwarded_for_is_believed_only_of_a_trusted_proxy(serve: Serve) -> None:
    server = serve()
    for number in range(FREE_TRIES):
        assert guess(server, 1, start=number, address=f"203.0.113.{number}") == 401
    assert guess(server, 1, start=100, address="203.0.113.100") == 429


def test_a_line_that_the_client_adds_does_not_hide_it_behind_a_proxy(serve: Serve) -> None:
    server = serve({"trusted_proxies": "127.0.0.1"})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    for number in range(FREE_TRIES + 1):
        connection.putrequest("GET", "/api/v1/runs")
        connection.putheader("X-Forwarded-For", f"198.51.100.{number}")
        connection.putheader("X-Forwarded-For", "203.0.113.7")
        connection.putheader("Authorization", f"Bearer wrong-{number}")
        connection.endheaders()
        answer = connection.getresponse()
        answer.read()
    connection.close()
    assert answer.status == 429


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("198.51.100.1", "203.0.113.7", "198.51.100.1"),
        ("127.0.0.1", None, "127.0.0.1"),
        ("127.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("127.0.0.1", "1.1.1.1, 203.0.113.7", "203.0.113.7"),
        ("127.0.0.1", "1.1.1.1, 203.0.113.7, 10.0.0.9", "203.0.113.7"),
        ("127.0.0.1", "203.0.113.7, odd", "127.0.0.1"),
        ("::ffff:127.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("127.0.0.1", "10.0.0.1, 10.0.0.2", "10.0.0.1"),
        ("", "203.0.113.7", ""),
    ],
)
def test_the_address_behind_proxies(peer: str, forwarded: str | None, expected: str) -> None:
    assert client_address(peer, forwarded, networks("127.0.0.1, 10.0.0.0/8")) == expected


@given(st.text("0123456789abcdef.:, %x/", max_size=60))
@settings(max_examples=100, deadline=None)
def test_what_a_client_forwards_never_raises(text: str) -> None:
    found = client_address("10.0.0.1", text, networks("10.0.0.0/8"))
    ipaddress.ip_address(found)


def test_ipv6_is_counted_by_network() -> None:
    assert guesser("2001:db8:1:2:3::9") == guesser("2001:db8:1:2:ffff::1") != guesser("2001:db8:1:3::1")
    assert guesser("203.0.113.7") == "203.0.113.7"


def test_a_proxy_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATSCOPE_TRUSTED_PROXIES", "127.0.0.1, proxy.example")
    with pytest.raises(SettingsError, match=r"trusted_proxies.*proxy\.example"):
        load({}, config=None)
    monkeypatch.setenv("FLOATSCOPE_TRUSTED_PROXIES", "127.0.0.1,10.0.0.0/8")
    assert isinstance(load({}, config=None), Settings)


class At:
    """A throttle at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.throttle = Throttle(clock=lambda: self.now)
        self.number = 0

    def fail(self, address: str) -> None:
        self.number += 1
        self.throttle.failed(address, str(self.number))


def test_the_wait_grows_ends_and_is_forgotten() -> None:
    at = At()
    waits = []
    for _ in range(FREE_TRIES + 9):
        at.now += at.throttle.wait_s("a")
        at.fail("a")
        waits.append(at.throttle.wait_s("a"))
    assert waits[: FREE_TRIES - 1] == [0.0] * (FREE_TRIES - 1)
    grown = waits[FREE_TRIES - 1 :]
    assert grown == sorted(grown)
    assert (grown[0], grown[1], grown[-1]) == (1.0, 2.0, LONGEST_WAIT_S)
    at.now += throttle.FORGET_S + 1
    assert at.throttle.wait_s("a") == 0.0


def test_in_a_storm_each_address_has_one_try_and_the_first_is_looked_at() -> None:
    at = At()
    for number in range(TOTAL_TRIES):
        at.fail(f"bot-{number}")
    assert at.throttle.wait_s("bot-0") > 0
    assert at.throttle.wait_s("somebody") == 0.0
    at.now += throttle.TOTAL_WINDOW_S
    assert at.throttle.wait_s("bot-0") == 0.0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MOST_ADDRESSES", 50)
    at = At()
    for number in range(500):
        at.fail(f"a{number}")
        at.throttle.trust(f"t{number}")
        at.fail("busy")
    assert len(at.throttle._tries) <= 50
    assert len(at.throttle._trusted) <= 50
    assert len(at.throttle._tries["busy"].wrong) == throttle.MOST_REMEMBERED
    assert at.throttle.knows_wrong("busy", str(at.number))
    assert not at.throttle.knows_wrong("busy", "1")
    assert TOKEN not in repr(at.throttle.__dict__)

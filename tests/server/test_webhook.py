"""Webhooks cannot be led astray: private addresses, redirects, strange URLs, names that change."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope_server.notify import targets, webhook
from floatscope_server.notify.environment import check_environment_url
from floatscope_server.notify.targets import Target, WebhookRefused
from floatscope_server.notify.webhook import DeliveryFailed
from tests.server.live import free_port
from tests.server.slack import dripping, endless, garbage, odd_receiver, silent, slack

PRIVATE = [
    "http://127.0.0.1/x",
    "http://127.9.9.9/x",
    "http://localhost/x",
    "http://0.0.0.0/x",
    "http://10.1.2.3/x",
    "http://172.16.0.1/x",
    "http://192.168.1.1/x",
    "http://169.254.169.254/latest/meta-data",
    "http://100.64.0.1/x",
    "http://[::1]/x",
    "http://[fe80::1]/x",
    "http://[fd00::1]/x",
    "http://[::ffff:127.0.0.1]/x",
    "http://224.0.0.1/x",
    "http://[fec0::1]/x",
    "http://[64:ff9b::a9fe:a9fe]/x",
    "http://[64:ff9b:1::7f00:1]/x",
    "http://[2002:7f00:1::]/x",
    "http://[::127.0.0.1]/x",
    "http://[::ffff:0:127.0.0.1]/x",
    "http://0x7f000001/x",
    "http://2130706433/x",
    "http://127.1/x",
    "http://0/x",
    "http://0177.0.0.1/x",
    "http://[::]/x",
    "http://[3fff::1]/x",
    "http://[ff0e::1]/x",
    "http://192.0.0.192/x",
    "http://198.18.0.1/x",
    "http://255.255.255.255/x",
    "http://168.63.129.16/x",
]
WRONG = [
    "",
    "slack",
    "ftp://example.org/x",
    "file:///etc/passwd",
    "http://",
    "http:///x",
    "https://user:password@example.org/x",
    "https://example.org:0/x",
    "https://example.org:99999/x",
    "https://exa mple.org/",
    "https://example.org/\r\nHost: evil",
    "https://ex\u00e4mple.org/",
    "https://example.org\\@127.0.0.1/",
    "https://127.0.0.1\\.example.org/",
    "https://%31%32%37.0.0.1/",
    "https://exa$mple.org/",
    "https://[::1/x",
    "http://[fe80::1%25lo]/x",
    "https://example.org:22/x",
    "https://example.org:25/x",
    "https://a..b/x",
    "https://" + "a" * 64 + ".example/x",
    "https://example.org/" + "x" * 3000,
]


@pytest.mark.parametrize("url", PRIVATE)
def test_private_addresses_are_refused_unless_allowed(url: str) -> None:
    with pytest.raises(WebhookRefused, match=r"loopback or private.*FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS"):
        targets.check(url, allow_private=False)
    targets.check(url, allow_private=True)


@pytest.mark.parametrize("url", WRONG)
def test_what_is_no_webhook_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(WebhookRefused) as refused:
        targets.check(url, allow_private=True)
    assert "password" not in str(refused.value).replace("user name or password", "")
    assert len(str(refused.value)) < 200


@given(st.text(max_size=60) | st.text("htps:/@[]%.\\?#:0x1", max_size=40).map("http://".__add__))
def test_any_text_is_a_webhook_or_refused(text: str) -> None:
    try:
        parts = targets.parse(text)
    except WebhookRefused:
        return
    assert parts.scheme in ("http", "https")
    assert parts.username is None
    assert re.fullmatch(r"[a-z0-9._:-]+", parts.hostname or "")


@given(
    st.integers(0, 2**32 - 1), st.sampled_from(["0.0.0.0/8", "10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16"])
)
def test_a_private_address_is_private_in_every_form(bits: int, network: str) -> None:
    inside = ipaddress.ip_network(network)
    v4 = ipaddress.IPv4Address(int(inside.network_address) | (bits & int(inside.hostmask)))
    whole = int(v4)
    forms = [0xFFFF << 32 | whole, whole, 0x64FF9B << 96 | whole, 0x2002 << 112 | whole << 80]
    for address in (str(v4), *(str(ipaddress.IPv6Address(form)) for form in forms)):
        assert not targets.is_public(address)


def resolver(*addresses: str) -> Any:
    def getaddrinfo(_host: str, port: int, **_named: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return getaddrinfo


def test_one_private_address_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver("93.184.216.34", "10.0.0.1"))
    with pytest.raises(WebhookRefused):
        targets.check("https://hooks.example.org/x", allow_private=False)


def test_the_address_that_was_checked_is_the_one_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with slack() as receiver:
        port = receiver.server.server_port
        target = Target("http", "hooks.example.org", port, "/x?y=1", ("127.0.0.1",))
        monkeypatch.setattr(socket, "getaddrinfo", fail_on("hooks.example.org", socket.getaddrinfo))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
        assert webhook.post(target, b'{"text": "\xe2\x96\xb2"}') == 200
        assert receiver.got == [{"text": "\u25b2"}]


def test_the_next_address_of_a_name_is_tried() -> None:
    with slack() as receiver:
        target = Target("http", "x.example", receiver.server.server_port, "/", ("127.0.0.9", "127.0.0.1"))
        assert webhook.post(target, b"{}") == 200


@pytest.mark.parametrize("behave", [silent, dripping, endless, garbage])
def test_a_receiver_that_behaves_oddly_ends_in_a_bounded_time(behave: Any) -> None:
    with odd_receiver(behave) as url:
        target = targets.check(url, allow_private=True)
        with pytest.raises(DeliveryFailed, match=r"127\.0\.0\.1 does not answer") as failed:
            webhook.post(target, b"{}", timeout=0.4)
    assert "secret" not in str(failed.value)
    assert failed.value.refused is False


@pytest.mark.parametrize(
    ("says", "shown"),
    [
        (b"no_service", "no_service"),
        (b"invalid_payload\n", "invalid_payload"),
        (b"The requested URL /services/T0/B0/secret was not found", ""),
        (b"secret", ""),
        (b"root:x:0:0", ""),
        (b"\xff\x00", ""),
    ],
)
def test_of_an_answer_only_a_short_word_is_shown(says: bytes, shown: str) -> None:
    with slack((404, {}), says=says) as receiver, pytest.raises(DeliveryFailed) as failed:
        webhook.post(targets.check(receiver.url, allow_private=True), b"{}")
    assert str(failed.value) == "127.0.0.1 answered 404" + (f": {shown}" if shown else "")
    assert (failed.value.status, failed.value.refused) == (404, True)


@pytest.mark.parametrize(("status", "refused"), [(400, True), (410, True), (429, False), (503, False)])
def test_what_passes_and_what_does_not(status: int, refused: bool) -> None:
    with slack((status, {})) as receiver, pytest.raises(DeliveryFailed) as failed:
        webhook.post(targets.check(receiver.url, allow_private=True), b"{}")
    assert failed.value.refused is refused


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Sun, 09 Sep 2001 01:47:40 GMT", 60.0),
        ("Sun, 09 Sep 2001 01:46:00 GMT", 0.0),
        ("Sun, 09 Sep 2099 01:46:00 GMT", 3600.0),
        ("Sun, 99 Sep 2001", None),
    ],
)
def test_retry_after_may_be_a_date(header: str, expected: float | None) -> None:
    assert webhook.seconds_to_wait(header, now=1_000_000_000.0) == expected


def fail_on(name: str, real: Any) -> Any:
    def getaddrinfo(host: str, *args: Any, **named: Any) -> Any:
        assert host != name, "the name was resolved a second time"
        return real(host, *args, **named)

    return getaddrinfo


def test_redirects_are_not_followed() -> None:
    with slack() as inside, slack((302, {"Location": inside.url})) as receiver:
        target = targets.check(receiver.url, allow_private=True)
        with pytest.raises(DeliveryFailed, match="redirect, which is not followed"):
            webhook.post(target, b"{}")
        assert inside.tried == []


def test_nobody_there_and_a_name_that_does_not_resolve() -> None:
    target = targets.check(f"http://127.0.0.1:{free_port()}/secret", allow_private=True)
    with pytest.raises(DeliveryFailed, match=r"127\.0\.0\.1 does not answer") as failed:
        webhook.post(target, b"{}")
    assert "secret" not in str(failed.value)
    with pytest.raises(OSError, match=r"."):
        targets.check("https://no-such-host.invalid/x", allow_private=False)
    check_environment_url("https://no-such-host.invalid/x", allow_private=False)  # may resolve later


def test_the_environment_webhook_is_checked_at_start() -> None:
    with pytest.raises(WebhookRefused, match="FLOATSCOPE_SLACK_WEBHOOK_URL"):
        check_environment_url("http://127.0.0.1/x", allow_private=False)


@pytest.mark.parametrize(
    ("header", "expected"), [("7", 7.0), ("999999", 3600.0), ("soon", None), ("-1", None), (None, None)]
)
def test_retry_after_is_bounded(header: str | None, expected: float | None) -> None:
    plan = (429, {} if header is None else {"Retry-After": header})
    with slack(plan) as receiver, pytest.raises(DeliveryFailed) as failed:
        webhook.post(targets.check(receiver.url, allow_private=True), b"{}")
    assert failed.value.retry_after == expected


def test_a_target_does_not_show_its_secret() -> None:
    target = targets.check("http://127.0.0.1/services/secret", allow_private=True)
    assert "secret" not in repr(target)

"""Webhooks cannot be led astray: private addresses, redirects, strange URLs, names that change."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from floatscope_server.notify import webhook
from floatscope_server.notify.environment import check_environment_url
from floatscope_server.notify.webhook import Target, WebhookFailed, WebhookRefused
from tests.server.live import free_port
from tests.server.slack import slack

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
    "https://a..b/x",
    "https://" + "a" * 64 + ".example/x",
    "https://example.org/" + "x" * 3000,
]


@pytest.mark.parametrize("url", PRIVATE)
def test_private_addresses_are_refused_unless_allowed(url: str) -> None:
    with pytest.raises(WebhookRefused, match=r"loopback or private.*FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS"):
        webhook.check(url, allow_private=False)
    webhook.check(url, allow_private=True)


@pytest.mark.parametrize("url", WRONG)
def test_what_is_no_webhook_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(WebhookRefused) as refused:
        webhook.check(url, allow_private=True)
    assert "password" not in str(refused.value).replace("user name or password", "")
    assert len(str(refused.value)) < 200


def resolver(*addresses: str) -> Any:
    def getaddrinfo(_host: str, port: int, **_named: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return getaddrinfo


def test_one_private_address_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver("93.184.216.34", "10.0.0.1"))
    with pytest.raises(WebhookRefused):
        webhook.check("https://hooks.example.org/x", allow_private=False)


def test_the_address_that_was_checked_is_the_one_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with slack() as receiver:
        port = receiver.server.server_port
        target = Target("http", "hooks.example.org", port, "/x?y=1", "127.0.0.1")
        monkeypatch.setattr(socket, "getaddrinfo", fail_on("hooks.example.org", socket.getaddrinfo))
        assert webhook.post(target, {"text": "\u25b2"}) == 200
        assert receiver.got == [{"text": "\u25b2"}]


def fail_on(name: str, real: Any) -> Any:
    def getaddrinfo(host: str, *args: Any, **named: Any) -> Any:
        assert host != name, "the name was resolved a second time"
        return real(host, *args, **named)

    return getaddrinfo


def test_redirects_are_not_followed() -> None:
    with slack() as inside, slack((302, {"Location": inside.url})) as receiver:
        target = webhook.check(receiver.url, allow_private=True)
        with pytest.raises(WebhookFailed, match="redirect, which is not followed"):
            webhook.post(target, {})
        assert inside.tried == []


def test_nobody_there_and_a_name_that_does_not_resolve() -> None:
    target = webhook.check(f"http://127.0.0.1:{free_port()}/secret", allow_private=True)
    with pytest.raises(WebhookFailed, match=r"127\.0\.0\.1 does not answer") as failed:
        webhook.post(target, {})
    assert "secret" not in str(failed.value)
    with pytest.raises(OSError, match=r"."):
        webhook.check("https://no-such-host.invalid/x", allow_private=False)
    check_environment_url("https://no-such-host.invalid/x", allow_private=False)  # may resolve later


def test_the_environment_webhook_is_checked_at_start() -> None:
    with pytest.raises(WebhookRefused, match="FLOATSCOPE_SLACK_WEBHOOK_URL"):
        check_environment_url("http://127.0.0.1/x", allow_private=False)


@pytest.mark.parametrize(
    ("header", "expected"), [("7", 7.0), ("999999", 3600.0), ("soon", None), ("-1", None), (None, None)]
)
def test_retry_after_is_bounded(header: str | None, expected: float | None) -> None:
    plan = (429, {} if header is None else {"Retry-After": header})
    with slack(plan) as receiver, pytest.raises(WebhookFailed) as failed:
        webhook.post(webhook.check(receiver.url, allow_private=True), {})
    assert failed.value.retry_after == expected


def test_a_target_does_not_show_its_secret() -> None:
    target = webhook.check("http://127.0.0.1/services/secret", allow_private=True)
    assert "secret" not in repr(target)

"""Posts to a webhook without being led astray: the address is resolved and checked, and exactly that
address is called.

Checking a name and then letting a library resolve it again would leave a gap in which the name can point
somewhere else, so the connection goes to the address that was checked. Redirects are answers, never
followed. The webhook's address is a secret: no message made here contains more of it than the host.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 2048
MAX_URL_CHARS = 2048
MAX_RETRY_AFTER_S = 3600.0
OK_STATUS = range(200, 300)
TRANSLATED = tuple(
    ipaddress.IPv6Network(network)
    for network in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)
"""IPv6 ranges in which an IPv4 address hides, maybe private (RFC 4291, 2765, 6052, 8215, 3056, 4380)."""


class WebhookRefused(ValueError):
    """The address may not be called; the message says why and never holds the address."""


class WebhookFailed(Exception):
    """The post did not arrive. retry_after: seconds the receiver asks to wait."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, repr=False)
class Target:
    """A checked webhook: where to connect, and as what. Its parts never show in ``repr``."""

    scheme: str
    host: str
    port: int
    path: str
    address: str


def check(url: str, *, allow_private: bool) -> Target:
    """The target of a webhook URL after resolving it.

    Raises WebhookRefused, or OSError if the name does not resolve now.
    """
    parts = _parts(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or longer than 63 characters
        raise WebhookRefused("the webhook's host is not a name that can be looked up") from error
    addresses = [str(item[4][0]) for item in found]
    if not allow_private:
        for address in addresses:
            if not _is_public(address):
                raise WebhookRefused(
                    f"the webhook's host {host} is {address}, a loopback or private address; set "
                    "FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS=1 if that is meant"
                )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, path, addresses[0])


def host_of(url: str) -> str:
    """The host of a webhook, all of its address that may be shown."""
    return urlsplit(url).hostname or ""


def post(target: Target, body: Mapping[str, Any], *, timeout: float = TIMEOUT_S) -> int:
    """Posts JSON and returns the status (2xx). Raises WebhookFailed for anything else."""
    connection = _connection(target, timeout)
    try:
        payload = json.dumps(body, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "floatscope"}
        connection.request("POST", target.path, body=payload, headers=headers)
        with connection.getresponse() as answer:
            text = answer.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
            status, retry_after = answer.status, answer.getheader("Retry-After")
    except (OSError, http.client.HTTPException) as error:
        raise WebhookFailed(f"{target.host} does not answer: {type(error).__name__}: {error}") from error
    finally:
        connection.close()
    if status in OK_STATUS:
        return status
    what = "answered with a redirect, which is not followed" if 300 <= status < 400 else f"answered {status}"
    detail = f"{target.host} {what}: {text[:200]}" if text else f"{target.host} {what}"
    raise WebhookFailed(detail, retry_after=_seconds(retry_after))


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port_is_sane = parts.port is None or parts.port > 0
    except ValueError as error:
        raise WebhookRefused("the webhook's address is not a URL") from error
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL_CHARS
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_sane or not plain:
        raise WebhookRefused("the webhook's address must be http:// or https:// with a host, in plain ASCII")
    if parts.username is not None or parts.password is not None:
        raise WebhookRefused("the webhook's address must not hold a user name or password")
    return parts


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.is_site_local or any(ip in network for network in TRANSLATED):
            return False
        ip = ip.ipv4_mapped or ip
    return ip.is_global and not ip.is_multicast


def _connection(target: Target, timeout: float) -> http.client.HTTPConnection:
    if target.scheme == "https":
        context = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            target.host, target.port, timeout=timeout, context=context
        )
    else:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=timeout)
    # the one place where http.client resolves a name
    connection._create_connection = (  # type: ignore[attr-defined]
        lambda _address, timeout, source_address=None: socket.create_connection(
            (target.address, target.port), timeout, source_address
        )
    )
    return connection


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds, bounded; a date or nonsense counts as not given."""
    if header is None or not header.strip().isdigit():
        return None
    return min(float(header.strip()), MAX_RETRY_AFTER_S)

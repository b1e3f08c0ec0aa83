"""Where a message may go: an address is looked up and checked, and exactly what was checked is called.

Checking a name and then letting a library look it up again would leave a gap in which the name can point
somewhere else, so the connection goes to the addresses that were checked. The address of a channel is a
secret: no message made here contains more of it than the host.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

MAX_URL_CHARS = 2048
MAX_ADDRESSES = 4  # of one name that are tried, one after the other
WEB_PORTS = (80, 443)
FIRST_FREE_PORT = 1024  # below it, except for the web, live mail, shells and name servers
ALLOW_SETTING = "FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS=1"
TRANSLATED = tuple(
    ipaddress.IPv6Network(network)
    for network in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)
"""IPv6 ranges in which an IPv4 address hides, maybe private (RFC 4291, 2765, 6052, 8215, 3056, 4380)."""
NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24"),
        *("100::/64", "3fff::/20", "5f00::/16"),
    )
)
"""Not to be called although some releases of Python say that they are public: the machine below a cloud's
virtual machine, and ranges set aside for protocols and documents (RFC 6890, 7526, 9637, 9602)."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")


class WebhookRefused(ValueError):
    """The address may not be called; the message says why and never holds the address."""


@dataclass(frozen=True, repr=False)
class Target:
    """A checked webhook: where to connect, and as what. Its parts never show in ``repr``."""

    scheme: str
    host: str
    port: int
    path: str
    addresses: tuple[str, ...]


def check(url: str, *, allow_private: bool) -> Target:
    """The target of a webhook URL after looking it up.

    Raises WebhookRefused, or OSError if the name does not resolve now.
    """
    parts = parse(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or longer than 63 characters
        raise WebhookRefused("the webhook's host is not a name that can be looked up") from error
    addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
    if not allow_private:
        for address in addresses:  # all of them: which one is called must not matter
            if not is_public(address):
                raise WebhookRefused(
                    f"the webhook's host {host} is {address}, a loopback or private address; set "
                    f"{ALLOW_SETTING} if that is meant"
                )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, path, tuple(addresses[:MAX_ADDRESSES]))


def parse(url: str) -> SplitResult:
    """The parts of a webhook URL that is one; nothing is looked up. Raises WebhookRefused."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WebhookRefused("the webhook's address is not a URL") from error
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL_CHARS
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or port == 0 or not plain:
        raise WebhookRefused(
            "the webhook's address must be http:// or https:// with a host, in plain ASCII "
            "(a name with other letters in its xn-- form)"
        )
    if parts.username is not None or parts.password is not None:
        raise WebhookRefused("the webhook's address must not hold a user name or password")
    if not _HOST.fullmatch(host):
        raise WebhookRefused("the webhook's host must be a name or an address")
    if port is not None and port < FIRST_FREE_PORT and port not in WEB_PORTS:
        raise WebhookRefused(
            f"the webhook's port {port} belongs to another service; expected 80, 443 or one from "
            f"{FIRST_FREE_PORT} up"
        )
    return parts


def host_of(url: str) -> str:
    """The host of a webhook, all of its address that may be shown."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_public(address: str) -> bool:
    """Whether a numeric address is one that anybody on the internet could call as well."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.is_site_local or any(ip in network for network in TRANSLATED):
            return False
        ip = ip.ipv4_mapped or ip
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in NOT_PUBLIC)

"""Where a request comes from: a page of this server or another site, and from which address."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MOST_HOPS = 20
IPV6_PREFIX = 64  # one subscriber has at least this many addresses to choose from


def is_same_origin(*, origin: str | None, fetch_site: str | None, host: str, public_url: str) -> bool:
    """Whether a browser says that a request comes from a page of this server.

    ``Sec-Fetch-Site`` decides where a browser sends it, ``Origin`` where it does not; with neither, no. Where
    the server's address is https, an origin over http is another one, unless it is this machine.
    """
    if fetch_site is not None and fetch_site not in ("same-origin", "none"):
        return False
    if origin is None:
        return fetch_site is not None
    try:
        parts, public = urlsplit(origin), urlsplit(public_url)
        name = parts.hostname
    except ValueError:  # no browser sends this
        return False
    if parts.netloc == "" or parts.netloc not in (host, public.netloc):
        return False
    return public.scheme != "https" or parts.scheme == "https" or name in ("localhost", "127.0.0.1", "::1")


def local_path(path: str) -> str:
    """A path on this server to go to after signing in; anything that leads elsewhere becomes ``/``."""
    odd = (
        not path.startswith("/")
        or path.startswith(("//", "/\\"))
        or any(c <= " " or c == "\x7f" for c in path)
    )
    return "/" if odd or "\\" in path else path


def networks(text: str) -> tuple[Network, ...]:
    """Networks from ``10.0.0.0/8, 127.0.0.1``. Raises ValueError naming what is none."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(ipaddress.ip_network(part, strict=False) for part in parts if part)


def client_address(peer: str, forwarded: str | None, trusted: Iterable[Network]) -> str:
    """The address of the client: the other end of the connection, or, if that is a trusted proxy, the last
    address in ``X-Forwarded-For`` that is not one. What is left of that may be made up by the client.
    """
    known = tuple(trusted)
    found = _address(peer)
    if found is None or not _within(found, known):
        return peer if found is None else str(found)
    for part in reversed((forwarded or "").split(",")[-MOST_HOPS:]):
        hop = _address(part.strip())
        if hop is None:
            break
        found = hop
        if not _within(hop, known):
            break
    return str(found)


def guesser(address: str) -> str:
    """Whom a wrong token is counted against: an IPv4 address, or an IPv6 network of one subscriber."""
    found = _address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))
    return address


def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _within(address: Address, known: tuple[Network, ...]) -> bool:
    return any(address.version == network.version and address in network for network in known)

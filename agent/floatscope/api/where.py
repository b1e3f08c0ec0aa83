"""Which server, and with which token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8321"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class BadAddress(ValueError):
    """The address of a server, or a token, that cannot be one; the message says what was expected."""


@dataclass(frozen=True)
class Server:
    """A server. token: sent as Bearer; None sends none. Raises BadAddress."""

    url: str
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadAddress(f"{self.url!r} is no address such as {DEFAULT_URL}")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise BadAddress("the token holds characters that no token has")


def server_of(environment: Mapping[str, str], *, url: str | None = None, token: str | None = None) -> Server:
    """The server as given, else of FLOATSCOPE_URL, else one on this machine; its token as given, else of
    FLOATSCOPE_TOKEN, else the one that a server on this machine keeps in its data directory, which goes to no
    other machine. Raises BadAddress.
    """
    address = (url or environment.get("FLOATSCOPE_URL") or DEFAULT_URL).rstrip("/")
    known = (token or environment.get("FLOATSCOPE_TOKEN") or "").strip() or None
    try:
        host = urlsplit(address).hostname
    except ValueError as error:
        raise BadAddress(f"{address!r} is no address such as {DEFAULT_URL}") from error
    if known is None and host in LOOPBACK:
        known = kept_token(Path(environment.get("FLOATSCOPE_DATA_DIR") or "floatscope-data"))
    return Server(address, known)


def kept_token(folder: Path) -> str | None:
    """The token that a server keeps in its data directory, if it can be read."""
    kept = folder / "token"
    if not (kept.is_file() and os.access(kept, os.R_OK)):
        return None
    return kept.read_text(encoding="utf-8", errors="replace").strip() or None

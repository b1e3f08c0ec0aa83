"""Who may come in: tokens, browser sessions, and the gate in front of every route."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from floatscope_server.database import Database
from floatscope_server.store import tokens

TOKEN_BYTES = 24
SESSION_S = 30 * 86_400
SESSION_SECRET = "session"  # noqa: S105  # the name under which the key is kept, not the key
FIRST_TOKEN = "first token"  # noqa: S105  # a display name


@dataclass(frozen=True)
class FirstToken:
    """What happened to the token at start. ``token`` is set only on the start that made it."""

    token: str | None
    path: Path
    from_environment: bool


class Access:
    """Checks tokens and sessions.

    A token is kept only as its SHA-256; comparisons take the same time wherever they differ.
    """

    def __init__(
        self, *, digests: tuple[str, ...], key: bytes, cookie: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._digests = digests
        self._key = key
        self._clock = clock
        self.cookie = cookie

    def knows(self, token: str) -> bool:
        """Whether this token is valid."""
        return self._digest_of(token) is not None

    def session(self, token: str) -> str | None:
        """The value of a session cookie for a valid token, else None."""
        digest = self._digest_of(token)
        if digest is None:
            return None
        expires = int(self._clock()) + SESSION_S
        return f"{expires}.{self._seal(digest, expires)}"

    def has_session(self, value: str) -> bool:
        """Whether this cookie was given out here, has not expired, and its token is still valid."""
        expires_text, _, seal = value.partition(".")
        if not (
            expires_text.isascii() and expires_text.isdigit() and len(expires_text) <= 12 and seal.isascii()
        ):
            return False
        expires = int(expires_text)
        good = False
        for digest in self._digests:
            good |= hmac.compare_digest(seal, self._seal(digest, expires))
        return good and expires > self._clock()

    def _digest_of(self, token: str) -> str | None:
        asked = digest_of(token)
        found = None
        for digest in self._digests:
            if hmac.compare_digest(asked, digest):
                found = digest
        return found

    def _seal(self, digest: str, expires: int) -> str:
        mac = hmac.new(self._key, f"{digest}.{expires}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def digest_of(token: str) -> str:
    """SHA-256 (hex) of a token; tokens are random, so no salt is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def first_token(database: Database, *, data_dir: Path, from_environment: bool, now: float) -> FirstToken:
    """Makes the first token unless there is one or the environment gives one. Only its owner can read it."""
    path = data_dir / "token"
    with database.write() as c:
        if from_environment or tokens.digests(c):
            return FirstToken(None, path, from_environment)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        tokens.add(c, digest_of(token), name=FIRST_TOKEN, now=now)
        _write_private(path, token + "\n")
    return FirstToken(token, path, from_environment=False)


def open_access(database: Database, *, environment_token: str | None, port: int) -> Access:
    """The checker for what the database and the environment hold."""
    with database.write() as c:
        digests = tokens.digests(c)
        key = tokens.secret(c, SESSION_SECRET)
    if environment_token is not None:
        digests = (digest_of(environment_token), *digests)
    # Browsers send a host's cookies to all of its ports; the name keeps two servers on one machine apart.
    return Access(digests=digests, key=key, cookie=f"floatscope_session_{port}")


def is_same_origin(*, origin: str | None, fetch_site: str | None, host: str, public_url: str) -> bool:
    """Whether a browser says that a request comes from a page of this server."""
    if origin is not None:
        try:
            parts = urlsplit(origin)
        except ValueError:  # no browser sends this
            return False
        return parts.netloc != "" and parts.netloc in (host, urlsplit(public_url).netloc)
    return fetch_site in ("same-origin", "none")


def local_path(path: str) -> str:
    """A path on this server to go to after signing in; anything that leads elsewhere becomes ``/``."""
    odd = (
        not path.startswith("/")
        or path.startswith(("//", "/\\"))
        or any(c <= " " or c == "\x7f" for c in path)
    )
    return "/" if odd or "\\" in path else path


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)

"""Tokens: how they are made, the first one, and which are valid now.

A token is ``fs_`` and 48 hexadecimal digits from the system's random source, so that scanners for leaked
secrets can find it. Only its SHA-256 is kept; tokens are random, so no salt is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from floatscope_server.callers import ADMIN, ENVIRONMENT, Caller
from floatscope_server.database import Database
from floatscope_server.scopes import with_included
from floatscope_server.store import tokens
from floatscope_server.store.tokens import TokenRecord

PREFIX = "fs_"
TOKEN_BYTES = 24
FIRST_TOKEN = "first token"  # noqa: S105  # a display name
MAX_AGE_S = 30.0  # what is known of tokens may be this old; then it is read again before anybody is let in
LOOK_AGAIN_S = 1.0  # a token that is not known may have been made on another worker; so many seconds apart
NOTE_USE_S = 60.0  # the time a token was last used is written at most this often


@dataclass(frozen=True)
class Grant:
    """What a valid token allows. id: None for the token of the environment. expires: Unix seconds or None."""

    digest: str
    id: str | None
    name: str
    scopes: frozenset[str]
    expires: float | None = None

    def caller(self, address: str, *, session: bool = False) -> Caller:
        return Caller(self.name, self.id, self.scopes, address, session)


@dataclass(frozen=True)
class FirstToken:
    """What happened to the token at start. ``token`` is set only on the start that made it."""

    token: str | None
    path: Path
    from_environment: bool


class Access:
    """Which tokens are valid, from memory: a guess costs no look into the database.

    What is in memory is read again by ``reload``, every few seconds and after every change made here.
    A token is found by its hash, whose bits a caller cannot choose, and then compared in constant time.
    """

    def __init__(
        self,
        *,
        database: Database,
        environment_token: str | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._clock = clock
        self._reading = threading.Lock()
        self._stored: dict[str, Grant] = {}
        self._loaded = -math.inf
        self._changes = 0
        self._used: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._environment = None
        if environment_token is not None:
            digest = digest_of(environment_token)
            self._environment = Grant(digest, None, ENVIRONMENT, with_included((ADMIN,)))

    @property
    def has_environment_token(self) -> bool:
        return self._environment is not None

    def reload(self, *, older_than_s: float = 0.0) -> None:
        """Reads the valid tokens, unless that was done meanwhile. Raises what the database raises."""
        with self._reading:
            if self.age_s() < older_than_s:
                return
            begun, changes = time.monotonic(), self._changes
            with self._database.read() as c:
                found = tokens.not_revoked(c)
            self._stored = {record.digest: _grant(record) for record in found}
            if changes == self._changes:  # else what was read may be from before the change
                self._loaded = begun

    def outdate(self) -> None:
        """What is known may be wrong: it is read again before anybody is let in."""
        self._changes += 1
        self._loaded = -math.inf

    def age_s(self) -> float:
        """How old what is known of stored tokens is."""
        return time.monotonic() - self._loaded

    def of_digest(self, digest: str) -> Grant | None:
        """The valid token with this hash."""
        environment = self._environment
        if environment is not None and hmac.compare_digest(digest, environment.digest):
            return environment
        found = self._stored.get(digest)
        if found is None or not hmac.compare_digest(digest, found.digest):
            return None
        return found if found.expires is None or found.expires > self._clock() else None

    def find(self, token: str) -> Grant | None:
        """The valid token that this is."""
        return self.of_digest(digest_of(token))

    def note_use(self, grant: Grant) -> None:
        """Remembers that a token was used; ``uses`` hands it on to be written."""
        if grant.id is not None:
            self._used[grant.digest] = self._clock()

    def uses(self) -> dict[str, float]:
        """When tokens were last used, of those whose time was not handed out within the last minute."""
        due = {
            digest: moment
            for digest, moment in list(self._used.items())
            if moment - self._written.get(digest, -NOTE_USE_S) >= NOTE_USE_S
        }
        for digest, moment in due.items():
            self._written[digest] = moment
            if self._used.get(digest) == moment:
                del self._used[digest]
        return due


def digest_of(token: str) -> str:
    """SHA-256 (hex) of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token() -> str:
    """A token nobody can guess: 192 random bits."""
    return PREFIX + secrets.token_hex(TOKEN_BYTES)


def first_token(database: Database, *, data_dir: Path, from_environment: bool, now: float) -> FirstToken:
    """Makes the first token unless there is one or the environment gives one. Only its owner can read it."""
    path = data_dir / "token"
    with database.write() as c:
        if from_environment or tokens.any_stored(c):
            return FirstToken(None, path, from_environment)
        token = new_token()
        tokens.add(c, digest_of(token), name=FIRST_TOKEN, now=now)
        _write_private(path, token + "\n")
    return FirstToken(token, path, from_environment=False)


def open_access(
    database: Database, *, environment_token: str | None, clock: Callable[[], float] = time.time
) -> Access:
    """The checker for what the database and the environment hold."""
    access = Access(database=database, environment_token=environment_token, clock=clock)
    access.reload()
    return access


def _grant(record: TokenRecord) -> Grant:
    return Grant(record.digest, record.id, record.name, with_included(record.scopes), record.expires)


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)

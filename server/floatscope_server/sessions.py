"""Browser sessions: a cookie of random bits, stored by its hash, that may do what its token may do.

A session ends when its time is up, when nobody used it for a week, by signing out, and with its token.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from floatscope_server.access import Access, Grant, digest_of
from floatscope_server.callers import Caller
from floatscope_server.database import Database
from floatscope_server.store import audit, sessions
from floatscope_server.store.sessions import SessionRecord

LIFE_S = 30 * 86_400
IDLE_S = 7 * 86_400
COOKIE_BYTES = 32
MOST_COOKIE_CHARS = 128
MAX_AGE_S = 2.0  # a session that another worker ended is let in this long at most
MOST_CACHED = 4096
MOST_KNOWN = 65_536
NOTE_USE_S = 60.0


@dataclass(frozen=True)
class _Cached:
    record: SessionRecord
    read: float


class Sessions:
    """Starts, finds and ends sessions. Methods that say so look into the database."""

    def __init__(
        self, *, database: Database, access: Access, cookie: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.cookie = cookie
        self._database = database
        self._access = access
        self._clock = clock
        self._lock = threading.Lock()
        self._changes = 0
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._seen: dict[str, float] = {}
        self._known: OrderedDict[str, None] = OrderedDict()

    def start(self, grant: Grant, *, address: str) -> str:
        """The value of the cookie of a new session; writes to the database."""
        value = secrets.token_urlsafe(COOKIE_BYTES)
        now = self._clock()
        environment = grant.digest if grant.id is None else None
        token = None if grant.id is None else grant.digest
        record = SessionRecord(digest_of(value), token, environment, now, now + LIFE_S, now)
        with self._database.write() as c:
            sessions.add(c, record)
            audit.write(c, grant.caller(address, session=True), "login.ok", now=now)
        self._keep(record)
        return value

    def cached(self, value: str, *, max_age_s: float = MAX_AGE_S) -> Grant | None:
        """The session's token, if the session was looked up a moment ago; else it must be looked up."""
        digest = digest_of(value)
        with self._lock:
            found = self._cache.get(digest)
            if found is None or time.monotonic() - found.read > max_age_s:
                return None
        return self._grant(found.record)

    def is_known(self, value: str) -> bool:
        """Whether the database had this session when it was asked last; not whether it is valid now."""
        with self._lock:
            return digest_of(value) in self._known

    def look_up(self, value: str) -> Grant | None:
        """The token of a valid session, else None; reads the database."""
        if not value or len(value) > MOST_COOKIE_CHARS or not value.isascii():
            return None
        digest = digest_of(value)
        changes = self._changes
        with self._database.read() as c:
            record = sessions.find(c, digest)
        if record is None:
            self._drop(digest)
            return None
        self._recall(digest)
        if changes == self._changes:  # else it may have been read before it was ended
            self._keep(record)
        return self._grant(record)

    def end(self, value: str, by: Caller) -> None:
        """Ends a session; writes to the database."""
        digest = digest_of(value)
        with self._database.write() as c:
            sessions.remove(c, digest)
            audit.write(c, by, "logout", now=self._clock())
        self._drop(digest)

    def outdate(self) -> None:
        """Sessions may have ended on another worker: each is looked up again."""
        with self._lock:
            self._changes += 1
            self._cache.clear()

    def uses(self) -> dict[str, float]:
        """When sessions were last used, of those whose stored time is more than a minute old."""
        with self._lock:
            due, self._seen = self._seen, {}
        return due

    def _grant(self, record: SessionRecord) -> Grant | None:
        now = self._clock()
        with self._lock:
            seen = max(record.seen, self._seen.get(record.digest, 0.0))
        if record.expires <= now or seen + IDLE_S <= now:
            return None
        grant = self._access.of_digest(record.token or record.environment or "")
        if grant is None or (grant.id is None) != (record.token is None):
            return None
        if now - seen >= NOTE_USE_S:
            with self._lock:
                self._seen[record.digest] = now
        return grant

    def _recall(self, digest: str) -> None:
        with self._lock:
            self._known[digest] = None
            self._known.move_to_end(digest)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def _keep(self, record: SessionRecord) -> None:
        self._recall(record.digest)
        with self._lock:
            self._cache[record.digest] = _Cached(record, time.monotonic())
            self._cache.move_to_end(record.digest)
            while len(self._cache) > MOST_CACHED:
                self._cache.popitem(last=False)

    def _drop(self, digest: str) -> None:
        with self._lock:
            self._changes += 1
            self._cache.pop(digest, None)
            self._seen.pop(digest, None)
            self._known.pop(digest, None)


def cookie_name(*, port: int, public_url: str) -> str:
    """The cookie's name. Browsers send a host's cookies to all of its ports; the port keeps two servers on
    one machine apart. Under https ``__Host-`` makes browsers refuse the cookie from any other host.
    """
    return f"__Host-floatscope_{port}" if public_url.startswith("https://") else f"floatscope_session_{port}"

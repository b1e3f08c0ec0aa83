"""Judges what a request brings along: a token, a session, or neither. One place for the gate and the form."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio.to_thread

from floatscope_server.access import LOOK_AGAIN_S, MAX_AGE_S, Access, Grant, digest_of
from floatscope_server.errors import Problem
from floatscope_server.origins import Network, client_address, guesser
from floatscope_server.sessions import Sessions
from floatscope_server.throttle import Throttle

STREAM_AGE_S = 10.0  # how often a stream that stays open looks whether its session goes on
MOST_NOTES = 100  # failed sign-ins that wait to be written; more are only counted
NOTES_PER_HOUR = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FailedLogin:
    """A wrong token from an address; ``tries`` of them by now."""

    time: float
    address: str
    tries: int


class Doorkeeper:
    """Lets tokens and sessions in.

    A stored token is random and cannot be guessed, so it is let in whatever others at its address did. The
    token of the environment was chosen by a person: from an address that guesses it must wait, unless it came
    in from there before.
    """

    def __init__(
        self,
        *,
        access: Access,
        sessions: Sessions,
        throttle: Throttle,
        trusted_proxies: tuple[Network, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.access = access
        self.sessions = sessions
        self._throttle = throttle
        self._cookies = Throttle()  # apart from tokens: old cookies must not keep anybody from signing in
        self._trusted = trusted_proxies
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: deque[FailedLogin] = deque(maxlen=MOST_NOTES)
        self._hour = 0
        self._noted = 0

    def address(self, peer: str, forwarded: str | None) -> str:
        """The client's address, through trusted proxies."""
        return client_address(peer, forwarded, self._trusted)

    async def token(self, token: str, *, address: str) -> Grant:
        """What a token allows. Raises Problem 401 for a wrong one and 429 if this address must wait."""
        digest, who = digest_of(token), guesser(address)
        grant = await self._granted(digest)
        wait_s = self._throttle.wait_s(who)
        if grant is not None and grant.id is None and wait_s > 0 and not self._throttle.is_trusted(who):
            raise _too_many(wait_s)
        if grant is not None:
            if grant.id is None:
                self._throttle.trust(who)
            self.access.note_use(grant)
            return grant
        if not self._throttle.knows_wrong(who, digest):
            if wait_s > 0:
                raise _too_many(wait_s)
            self._note(address, self._throttle.failed(who, digest))
        raise unauthorized("the token is not valid")

    async def session(
        self, value: str, *, address: str | None = None, max_age_s: float | None = None
    ) -> Grant | None:
        """What a session's cookie allows; None if there is no such session.

        address: from where it came, if that is not known to be let in. Cookies that nobody has seen cost a
        look into the database each, so an address that sends many of them must wait: Problem 429.
        """
        await self._freshen()
        found = (
            self.sessions.cached(value)
            if max_age_s is None
            else self.sessions.cached(value, max_age_s=max_age_s)
        )
        if found is not None:
            return found
        if address is None or self.sessions.is_known(value):
            return await anyio.to_thread.run_sync(self.sessions.look_up, value)
        digest, who = digest_of(value), guesser(address)
        if self._cookies.knows_wrong(who, digest):
            return None
        wait_s = self._cookies.wait_s(who)
        if wait_s > 0:
            raise _too_many_cookies(wait_s)
        found = await anyio.to_thread.run_sync(self.sessions.look_up, value)
        if found is None and not self.sessions.is_known(value):
            self._cookies.failed(who, digest)
        return found

    async def still(self, grant: Grant, session: str | None) -> bool:
        """Whether what let a request in is valid now; asked again and again by answers that take long."""
        if self.access.of_digest(grant.digest) is None:
            return False
        return session is None or await self.session(session, max_age_s=STREAM_AGE_S) is not None

    def outdate(self) -> None:
        """Tokens or sessions were changed, here or on another worker."""
        self.access.outdate()
        self.sessions.outdate()

    def failed_logins(self) -> list[FailedLogin]:
        """Failed sign-ins since the last call that are to be recorded: the 1st, 2nd, 4th, 8th, ... of an
        address, and no more than a hundred an hour.
        """
        with self._lock:
            found = list(self._failed)
            self._failed.clear()
        return found

    async def _granted(self, digest: str) -> Grant | None:
        await self._freshen()
        found = self.access.of_digest(digest)
        if found is None and self.access.age_s() > LOOK_AGAIN_S:
            await self._reload(LOOK_AGAIN_S)
            found = self.access.of_digest(digest)
        return found

    async def _freshen(self) -> None:
        if self.access.age_s() > MAX_AGE_S:
            await self._reload(MAX_AGE_S)

    async def _reload(self, older_than_s: float) -> None:
        await anyio.to_thread.run_sync(partial(self.access.reload, older_than_s=older_than_s))

    def _note(self, address: str, tries: int) -> None:
        if tries & (tries - 1):
            return
        now = self._clock()
        _log.warning("a wrong token from %s, number %d", address or "an unknown address", tries)
        with self._lock:
            hour = int(now // 3600)
            if hour != self._hour:
                self._hour, self._noted = hour, 0
            if self._noted < NOTES_PER_HOUR:
                self._noted += 1
                self._failed.append(FailedLogin(now, address, tries))


def unauthorized(detail: str) -> Problem:
    """401 with what to send."""
    return Problem(
        401,
        "Not signed in",
        detail,
        field="Authorization",
        expected="Bearer and a valid token",
        hint="send Authorization: Bearer TOKEN; the file 'token' in the data directory holds it",
        headers={"WWW-Authenticate": 'Bearer realm="floatscope"'},
    )


def _too_many(wait_s: float) -> Problem:
    seconds = max(1, math.ceil(wait_s))
    return Problem(
        429,
        "Too many wrong tokens",
        "too many wrong tokens came from this address",
        field="Authorization",
        expected="a valid token",
        hint=f"check the token and try again in {seconds} s",
        headers={"Retry-After": str(seconds)},
    )


def _too_many_cookies(wait_s: float) -> Problem:
    seconds = max(1, math.ceil(wait_s))
    return Problem(
        429,
        "Too many unknown sessions",
        "too many cookies of sessions that do not exist came from this address",
        field="Cookie",
        expected="the cookie of a session",
        hint=f"try again in {seconds} s, or sign in again at /login",
        headers={"Retry-After": str(seconds)},
    )

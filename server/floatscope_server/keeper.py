"""Keeps what is known of tokens fresh, writes down their use, and forgets what is over. One thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from floatscope_server.background_thread import BackgroundThread
from floatscope_server.callers import Caller
from floatscope_server.database import Database
from floatscope_server.doorkeeper import Doorkeeper
from floatscope_server.sessions import IDLE_S
from floatscope_server.store import audit, sessions, tokens

LOOK_S = 2.0  # how long a token that another worker revoked goes on at most
WRITE_EVERY_S = 10.0
FORGET_EVERY_S = 3600.0
KEEP_ENDED_S = 90 * 86_400  # revoked and expired tokens stay in the list this long
REMOVED_AT_ONCE = 5000  # rows of the audit log in one transaction
DAY_S = 86_400.0

_log = logging.getLogger(__name__)


class Keeper(BackgroundThread):
    """The thread. audit_days: how long acts stay in the audit log. alone: whether this worker is the one that
    forgets what is over; asked before each round.
    """

    def __init__(
        self,
        *,
        database: Database,
        doorkeeper: Doorkeeper,
        audit_days: int,
        alone: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="access")
        self._database = database
        self._doorkeeper = doorkeeper
        self._audit_s = audit_days * DAY_S
        self._alone = alone
        self._clock = clock

    def stop(self, *, timeout: float = 5.0) -> None:
        """Stops the thread and writes what is left."""
        super().stop(timeout=timeout)
        self._try(self.write)

    def write(self) -> None:
        """Writes when tokens and sessions were last used, and the sign-ins that failed."""
        access, found = self._doorkeeper.access, self._doorkeeper.sessions
        used, seen, failed = access.uses(), found.uses(), self._doorkeeper.failed_logins()
        if not (used or seen or failed):
            return
        with self._database.write() as c:
            tokens.used(c, used)
            sessions.seen(c, seen)
            for login in failed:
                by = Caller("nobody", address=login.address)
                audit.write(c, by, "login.failed", detail={"tries": login.tries}, now=login.time)

    def forget(self) -> None:
        """Removes sessions that are over, tokens that ended long ago and acts that are too old."""
        now = self._clock()
        with self._database.write() as c:
            sessions.remove_ended(c, expired_before=now, idle_since=now - IDLE_S)
            tokens.remove_ended_before(c, now - KEEP_ENDED_S)
        removed = REMOVED_AT_ONCE
        while removed == REMOVED_AT_ONCE and not self._stopping.is_set():
            with self._database.write() as c:
                removed = audit.remove_before(c, now - self._audit_s, limit=REMOVED_AT_ONCE)

    def _run(self) -> None:
        next_write = next_forget = time.monotonic()
        while not self._stopping.wait(LOOK_S):
            self._try(self._doorkeeper.access.reload)
            if time.monotonic() >= next_write:
                next_write = time.monotonic() + WRITE_EVERY_S
                self._try(self.write)
            if time.monotonic() >= next_forget:
                next_forget = time.monotonic() + FORGET_EVERY_S
                self._try(self._forget_alone)

    def _forget_alone(self) -> None:
        if self._alone():
            self.forget()

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except SQLAlchemyError as error:  # the database is away; tried again in a few seconds
            _log.warning("access: %s failed: %s", act.__name__, type(error).__name__)
        except Exception:  # a fault in one round must not end the thread, or revocations would come late
            _log.exception("access: %s failed", act.__name__)

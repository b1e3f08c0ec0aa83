"""The connection whose locks say what this worker may do: when it breaks, everything it held is gone."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from floatscope_server.database import Database
from floatscope_server.store import workers

AGAIN_S = 1.0  # least time between two attempts to connect

_log = logging.getLogger(__name__)


class Unreachable(Exception):
    """The database cannot be asked now."""


class LockSession:
    """One dedicated connection that holds advisory locks.

    ``held`` asks the connection's socket each time, without a query: a connection that the database or the
    network closed is found out at once, and with it every lock. All methods may be called from any thread.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._guard = threading.RLock()
        self._connection: Connection | None = None
        self._socket = -1
        self._held: set[int] = set()
        self._tried = -AGAIN_S
        self._closed = False
        self.losses = 0  # connections lost so far, with all their locks

    def held(self, key: int) -> bool:
        """Whether the lock is held, as far as this machine can know."""
        if key in self._held and _has_news(self._socket):
            self.check()
        return key in self._held

    def surely_held(self, key: int) -> bool:
        """As ``held``, but never waits: where it would have to ask the database, the answer is False."""
        return key in self._held and not _has_news(self._socket)

    def take(self, key: int) -> bool:
        """Takes the lock unless another worker has it. Raises Unreachable."""
        with self._asked() as c:
            if key not in self._held:  # the database counts: taken twice must be given back twice
                if not workers.try_lock(c, key):
                    return False
                self._held.add(key)
            return True

    def give_back(self, key: int) -> None:
        with self._guard:
            if key not in self._held:
                return
            self._held.discard(key)
            try:
                with self._asked() as c:
                    workers.unlock(c, key)
            except Unreachable:
                return  # and the lock with it

    def check(self) -> None:
        """Finds out whether the connection still stands; if not, all locks count as lost."""
        with self._guard:
            if self._connection is None:
                return
            try:
                self._connection.exec_driver_sql("select 1")
            except SQLAlchemyError as error:
                self._lost(error)

    @contextmanager
    def asked(self) -> Iterator[Connection]:
        """The connection, for a short question. Raises Unreachable, also from within."""
        with self._asked() as c:
            yield c

    def close(self) -> None:
        """Gives everything back, for good."""
        with self._guard:
            self._closed = True
            self._drop()

    @contextmanager
    def _asked(self) -> Iterator[Connection]:
        with self._guard:
            connection = self._connect()
            try:
                yield connection
            except SQLAlchemyError as error:
                self._lost(error)
                raise Unreachable(str(error)) from error

    def _connect(self) -> Connection:
        if self._connection is not None:
            return self._connection
        now = self._clock()
        if self._closed or now - self._tried < AGAIN_S:
            raise Unreachable("closed" if self._closed else "tried a moment ago")
        self._tried = now
        try:
            self._connection = self._database.dedicated()
        except SQLAlchemyError as error:
            raise Unreachable(str(error)) from error
        self._socket = self._database.socket_of(self._connection)
        return self._connection

    def _lost(self, error: SQLAlchemyError) -> None:
        self.losses += 1
        _log.warning("the connection that holds this worker's %d locks was lost: %s", len(self._held), error)
        self._drop()

    def _drop(self) -> None:
        self._held.clear()
        self._socket = -1
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except SQLAlchemyError as error:
                _log.debug("closing a lost connection: %s", error)


def _has_news(socket: int) -> bool:
    """Whether the database said something that nobody asked for: nearly always its goodbye."""
    if socket < 0:
        return True
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))

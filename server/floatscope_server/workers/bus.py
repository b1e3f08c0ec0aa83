"""News between workers by PostgreSQL's LISTEN and NOTIFY.

NOTIFY makes commits wait for each other, so nothing here is part of a batch's transaction: news go out from
a thread of their own, gathered for a moment, the newest of each key only. They are hints: whoever misses
some (a lost connection, too many at once) is told so and reads the database again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from floatscope.protocol import strict_json
from floatscope.protocol.errors import ProtocolError
from floatscope_server.database import Database
from floatscope_server.store import workers

GATHER_S = 0.05
PAYLOAD_BYTES = 7_500  # PostgreSQL takes at most 7,999
WAITING = 4096  # keys; beyond it the others are told that they missed something
LISTEN_S = 1.0  # looks this often whether to stop
SILENCE_S = 5.0  # a quiet connection is asked this often whether it still stands
RETRY_S = 1.0
GAP = "gap"

_log = logging.getLogger(__name__)
Listener = Callable[[Mapping[str, Any]], None]


class Bus:
    """Two threads with a connection each: one tells, one listens."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._waiting: dict[str, list[Any]] = {}
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._listeners: dict[str, Listener] = {}
        self._on_gap: list[Callable[[], None]] = []
        self.listening = threading.Event()
        self._threads = [
            threading.Thread(target=self._tell, name="floatscope-tell", daemon=True),
            threading.Thread(target=self._listen, name="floatscope-listen", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout: float = 5.0) -> None:
        """What waits is sent first, if the database takes it."""
        self._stopping.set()
        self._news.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout)

    def hear(self, topic: str, listener: Listener) -> None:
        self._listeners[topic] = listener

    def on_gap(self, listener: Callable[[], None]) -> None:
        """``listener`` is called when news may have been missed."""
        self._on_gap.append(listener)

    def tell(self, topic: str, body: Mapping[str, Any], key: str) -> None:
        """Sends news soon; never waits. Of several with the same key the newest goes."""
        with self._guard:
            if len(self._waiting) >= WAITING:
                self._waiting = {GAP: [GAP, {}]}
            key = f"{topic} {key}"
            self._waiting.pop(key, None)
            self._waiting[key] = [topic, body]
        self._news.set()

    def _tell(self) -> None:
        connection: Connection | None = None
        while not (self._stopping.is_set() and not self._waiting):
            self._news.wait()
            self._stopping.wait(GATHER_S)
            self._news.clear()
            with self._guard:
                waiting, self._waiting = self._waiting, {}
            payloads = packed(list(waiting.values()), sender=self._database.name)
            try:
                connection = connection or self._database.dedicated()
                workers.notify(connection, payloads)
            except SQLAlchemyError as error:
                _log.warning("other workers cannot be told of %d changes: %s", len(waiting), error)
                _close(connection)
                connection = None
                self._put_back(waiting)
                if self._stopping.wait(RETRY_S):
                    return
        _close(connection)

    def _put_back(self, waiting: dict[str, list[Any]]) -> None:
        with self._guard:
            together = {**waiting, **self._waiting}
            self._waiting = together if len(together) <= WAITING else {GAP: [GAP, {}]}
        self._news.set()

    def _listen(self) -> None:
        while not self._stopping.is_set():
            connection: Connection | None = None
            try:
                connection = self._database.dedicated()
                workers.listen(connection)
                self._missed()  # what was told before this moment
                self.listening.set()
                self._hear(connection)
            except SQLAlchemyError as error:
                _log.warning("news of other workers cannot be heard: %s", str(error).strip())
                self._stopping.wait(RETRY_S)
            finally:
                self.listening.clear()
                _close(connection)

    def _hear(self, connection: Connection) -> None:
        quiet_s = 0.0
        while not self._stopping.is_set():
            payloads = self._database.heard(connection, timeout_s=LISTEN_S)
            for payload in payloads:
                self._take(payload)
            quiet_s = 0.0 if payloads else quiet_s + LISTEN_S
            if quiet_s >= SILENCE_S:
                connection.exec_driver_sql("select 1")
                quiet_s = 0.0

    def _take(self, payload: str) -> None:
        try:
            said = strict_json.loads(payload.encode())
            items = (
                [] if said["from"] == self._database.name else [(str(t), dict(b)) for t, b in said["items"]]
            )
        except (ProtocolError, KeyError, TypeError, ValueError):
            _log.warning("news that cannot be read: %.100r", payload)
            return
        for topic, body in items:
            if topic == GAP:
                self._missed()
            elif topic in self._listeners:
                self._listeners[topic](body)

    def _missed(self) -> None:
        for listener in self._on_gap:
            listener()


def packed(items: list[list[Any]], *, sender: str) -> list[str]:
    """News in as few payloads as fit; one that is too long by itself becomes a gap."""
    payloads: list[str] = []
    gathered: list[str] = []
    size = 0
    for item in items:
        text = strict_json.dumps(item)
        if len(text.encode()) > PAYLOAD_BYTES - 100:
            text = strict_json.dumps([GAP, {}])
        if gathered and size + len(text.encode()) > PAYLOAD_BYTES - 100:
            payloads.append(_payload(gathered, sender))
            gathered, size = [], 0
        gathered.append(text)
        size += len(text.encode()) + 1
    if gathered:
        payloads.append(_payload(gathered, sender))
    return payloads


def _payload(items: list[str], sender: str) -> str:
    return f'{{"from":{strict_json.dumps(sender)},"items":[{",".join(items)}]}}'


def _close(connection: Connection | None) -> None:
    if connection is not None:
        try:
            connection.close()
        except SQLAlchemyError as error:
            _log.debug("closing a lost connection: %s", error)

"""HTTP to a floatscope server: one kept-alive connection, timeouts, bounded answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from floatscope.jsonable import one_line

MAX_ANSWER_BYTES = 2**20  # the largest honest answer is settings and a problem description, a few kB
_CHUNK_BYTES = 2**16


def address_of(url: str) -> str:
    """Scheme, host, port and path of a server's address, which may be written down: no password, no query.

    Raises ValueError for what is no address.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


class TransportError(Exception):
    """No answer: the server was not reached, hung up, took too long or sent something that is not HTTP."""


@dataclass(frozen=True)
class Answer:
    """What the server said.

    body: the JSON object of the answer, or None if it was none.  text: its beginning, for messages.
    """

    status: int
    body: Mapping[str, Any] | None = None
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """How requests get to a server; tests put a server of their own behind it."""

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Sends one request. Raises TransportError when there is no whole answer."""

    def close(self) -> None:
        """Lets the connection go."""

    def abort(self) -> None:
        """Ends a request that hangs; callable from another thread."""


class HttpTransport:
    """A kept-alive connection to ``url``, used by one thread.

    A request that fails on a connection kept from before is sent once more on a new one: the server may have
    closed the old one while it was idle, and every request of the agent may be repeated.
    """

    def __init__(self, url: str, *, token: str | None, timeout_s: float, user_agent: str) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._prefix = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"User-Agent": user_agent, "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()  # guards _connection against abort() from another thread
        self._aborted = False

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """See Transport."""
        for attempt in (1, 2):
            connection, is_reused = self._connect()
            try:
                return self._exchange(connection, method, path, body, headers)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                can_repeat = is_reused and not isinstance(error, TimeoutError) and not self._aborted
                if attempt == 2 or not can_repeat:
                    raise TransportError(_describe(error)) from error
        raise AssertionError("unreachable")

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> Answer:
        deadline = time.monotonic() + self._timeout_s
        connection.request(method, self._prefix + path, body=body, headers={**self._headers, **headers})
        response = connection.getresponse()
        try:
            data = _read(response, deadline)
        finally:
            response.close()  # else the connection counts as busy and cannot be used again
        found = {name.lower(): value for name, value in response.getheaders()}
        if response.will_close:
            self.close()
        return Answer(response.status, _json_object(data), data[:500].decode("utf-8", "replace"), found)

    def _connect(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._aborted:
                raise TransportError("the connection was closed at the end of the run")
            if self._connection is not None:
                return self._connection, True
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=self._timeout_s)
            return self._connection, False

    def close(self) -> None:
        """Closes the connection; a later request opens a new one."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        """See Transport; later requests fail at once."""
        with self._lock:
            self._aborted = True
            sock = self._connection.sock if self._connection is not None else None
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := response.read1(_CHUNK_BYTES):
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer did not end in time")
        chunks.append(chunk)
    if response.length:  # read1 returns b"" at a connection that broke off; only read() would complain
        raise http.client.IncompleteRead(b"".join(chunks), response.length)
    return b"".join(chunks)


def _json_object(data: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    most = 60 if isinstance(error, http.client.BadStatusLine) else 200  # it is of the other side's making
    text = one_line(str(error), most=most)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

"""Carries one request at a time to a server while the sender's thread goes on with its work.

A server that hangs holds up a thread of its own for as long as it likes; what the training loop hands over is
meanwhile written to disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from floatscope.client import Answer, Transport, TransportError

REST_S = 0.5  # longest wait for the thread's end; it only takes time where a request had to be broken off


@dataclass(frozen=True)
class Request:
    """One request to a server."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


Outcome = Answer | TransportError


class Courier(Protocol):
    """One request under way at most."""

    def send(self, request: Request) -> None:
        """Takes a request; the one before must be answered."""

    def outcome(self) -> Outcome | None:
        """What became of it, once; None while it is under way."""

    def rest(self) -> None:
        """Lets the connection go; a later request opens a new one."""

    def abort(self) -> None:
        """Ends a request that hangs; callable from another thread."""


class Direct:
    """A courier that waits for the answer: for a command, which has nothing else to do."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._outcome: Outcome | None = None

    def send(self, request: Request) -> None:
        """See Courier."""
        self._outcome = _carry(self._transport, request)

    def outcome(self) -> Outcome | None:
        """See Courier."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def rest(self) -> None:
        """See Courier."""
        self._transport.close()

    def abort(self) -> None:
        """See Courier."""
        self._transport.abort()


class Threaded:
    """A courier with a daemon thread, started with the first request.

    wake: called when an answer is there.
    """

    def __init__(self, transport: Transport, *, wake: Callable[[], None]) -> None:
        self._transport = transport
        self._wake = wake
        self._orders: SimpleQueue[Request | None] = SimpleQueue()
        self._outcome: Outcome | None = None
        self._thread: threading.Thread | None = None

    def send(self, request: Request) -> None:
        """See Courier. Raises RuntimeError if the process can have no more threads."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="floatscope-courier", daemon=True)
            thread.start()
            self._thread = thread
        self._orders.put(request)

    def outcome(self) -> Outcome | None:
        """See Courier."""
        outcome = self._outcome
        if outcome is not None:
            self._outcome = None
        return outcome

    def rest(self) -> None:
        """See Courier; the thread ends."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(REST_S)
            self._thread = None
        else:
            self._transport.close()

    def abort(self) -> None:
        """See Courier."""
        self._transport.abort()

    def _run(self) -> None:
        while (request := self._orders.get()) is not None:
            self._outcome = _carry(self._transport, request)
            self._wake()
        self._transport.close()


def _carry(transport: Transport, request: Request) -> Outcome:
    try:
        return transport.request(request.method, request.path, request.body, request.headers)
    except TransportError as error:
        return error
    except Exception as error:  # a fault of ours must not leave the request under way for ever
        return TransportError(f"{type(error).__name__}: {error}")

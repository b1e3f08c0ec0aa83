"""Live events for browsers: a bounded memory of what happened and any number of readers that may be slow.

Each reader holds at most one pending event per (kind, run, rank): a newer one takes the place of an older
one that was not read yet. So a slow reader costs a bounded amount of memory and sees the latest state, and
a fast run makes no storm.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from floatscope.protocol import strict_json

REMEMBERED = 4096  # events a reader may have missed and still get after it comes back
FLUSH_S = 0.25  # least time between two writes to one reader
HEARTBEAT_S = 15.0  # below the 30 to 60 s after which proxies close a silent connection


@dataclass(frozen=True)
class Event:
    """One event. ``id`` ascends, also across restarts, since it begins at the clock's microseconds."""

    id: int
    kind: str
    data: dict[str, Any]

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.kind, self.data.get("run"), self.data.get("rank"))

    def encoded(self) -> str:
        return f"id: {self.id}\nevent: {self.kind}\ndata: {strict_json.dumps(self.data)}\n\n"


class _Reader:
    def __init__(self, run: str | None) -> None:
        self.run = run
        self.pending: dict[tuple[Any, ...], Event] = {}
        self.wake = asyncio.Event()

    def offer(self, event: Event) -> None:
        if self.run is None or event.data.get("run") == self.run:
            self.pending.pop(event.key, None)
            self.pending[event.key] = event
            self.wake.set()


class Events:
    """The hub. ``publish`` may be called from any thread; readers live on the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next_id = int(time.time() * 1e6)
        self._past: deque[Event] = deque(maxlen=REMEMBERED)
        self._readers: set[_Reader] = set()
        self._closed = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Names the loop on which readers live; events published before are dropped."""
        self._loop = loop

    def publish(self, kind: str, **data: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, kind, data)

    def close(self) -> None:
        """Ends every reader, so that the server can stop. Called on the loop."""
        self._closed = True
        for reader in self._readers:
            reader.wake.set()

    async def read(self, *, run: str | None, last_id: int | None) -> AsyncIterator[str]:
        """Server-sent events as text, from the one after ``last_id``; ends when the hub closes."""
        reader = _Reader(run)
        if last_id is not None:
            for event in self._past:
                if event.id > last_id:
                    reader.offer(event)
        self._readers.add(reader)
        try:
            yield "retry: 2000\n: floatscope\n\n"
            while not self._closed:
                try:
                    await asyncio.wait_for(reader.wake.wait(), HEARTBEAT_S)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
                    yield ": still here\n\n"
                    continue
                reader.wake.clear()
                waiting = sorted(reader.pending.values(), key=lambda event: event.id)
                reader.pending.clear()
                if waiting:
                    yield "".join(event.encoded() for event in waiting)
                    await asyncio.sleep(FLUSH_S)
        finally:
            self._readers.discard(reader)

    def _deliver(self, kind: str, data: dict[str, Any]) -> None:
        event = Event(self._next_id, kind, data)
        self._next_id += 1
        self._past.append(event)
        for reader in self._readers:
            reader.offer(event)

"""Live events for browsers: a bounded memory of what happened and any number of readers that may be slow.

Each reader holds at most one pending event per (kind, run, rank): a newer one takes the place of an older
one that was not read yet. So a slow reader costs a bounded amount of memory and sees the latest state, and
a fast run makes no storm.

Where several workers share a database each tells the others what it publishes. A reader that comes back to
another worker goes on there by ``Last-Event-ID``: ids are the clock's microseconds, so they can be compared,
and what lies close before the last id is told again, since the clocks of two machines differ a little.
Whoever may have missed something gets ``reset`` and reads the page's data again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from floatscope.protocol import strict_json

REMEMBERED = 4096  # events a reader may have missed and still get after it comes back
FLUSH_S = 0.25  # least time between two writes to one reader
OVERLAP_S = 3.0  # by how much clocks of two workers may differ and news be late
RESET = "reset"
ALERT = "alert"
BEAT_S = 5.0  # so often a silent stream says that it lives; proxies close one that is silent for 30 to 60 s
BEAT = f'event: beat\ndata: {{"every_s":{BEAT_S:g}}}\n\n'
"""An event, since scripts see no comments; without an id, so a reader that comes back goes on after news."""


@dataclass(frozen=True)
class Event:
    """One event. ``id``: microseconds since 1970 by the clock of the worker that published it, ascending
    there.
    """

    id: int
    kind: str
    data: dict[str, Any]

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.kind, self.data.get("run"), self.data.get("rank"))

    def encoded(self) -> str:
        return f"id: {self.id}\nevent: {self.kind}\ndata: {strict_json.dumps(self.data)}\n\n"


class _Reader:
    def __init__(self, run: str | None, *, all_alerts: bool) -> None:
        self.run = run
        self.all_alerts = all_alerts
        self.pending: dict[tuple[Any, ...], Event] = {}
        self.wake = asyncio.Event()

    def offer(self, event: Event) -> None:
        mine = self.run is None or event.data.get("run") == self.run
        if mine or event.kind == RESET or (self.all_alerts and event.kind == ALERT):
            self.pending.pop(event.key, None)
            self.pending[event.key] = event
            self.wake.set()


class Events:
    """The hub. ``publish`` may be called from any thread; readers live on the event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock = clock
        self._guard = threading.Lock()
        self._last_id = 0
        self._past: deque[Event] = deque()
        self._complete_from = self._next_id()  # everything that was published since then is in _past
        self._overlap_us = 0
        self._relay: Callable[[Mapping[str, Any], str], None] | None = None
        self._readers: set[_Reader] = set()
        self._closed = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Names the loop on which readers live; events published before are dropped."""
        self._loop = loop

    def relay_by(self, relay: Callable[[Mapping[str, Any], str], None]) -> None:
        """Names what tells other workers: called with the event as an object, and a key; of several with
        the same key only the newest need arrive.
        """
        self._relay = relay
        self._overlap_us = int(OVERLAP_S * 1e6)

    def publish(self, kind: str, **data: Any) -> None:
        event = Event(self._next_id(), kind, data)
        self._call(self._deliver, event)
        if self._relay is not None:
            told = {"id": event.id, "kind": kind, "data": data}
            self._relay(told, " ".join(map(str, event.key)))

    def arrived(self, body: Mapping[str, Any]) -> None:
        """An event of another worker."""
        number, kind, data = body.get("id"), body.get("kind"), body.get("data")
        if isinstance(number, int) and isinstance(kind, str) and isinstance(data, dict):
            self._call(self._deliver, Event(number, kind, data))

    def missed(self) -> None:
        """Events of other workers may have been missed: every reader is told."""
        self._call(self._reset)

    def close(self) -> None:
        """Ends every reader, so that the server can stop. Called on the loop."""
        self._closed = True
        for reader in self._readers:
            reader.wake.set()

    def readers(self) -> int:
        """Who listens now."""
        return len(self._readers)

    async def read(
        self, *, run: str | None, last_id: int | None, all_alerts: bool = False
    ) -> AsyncIterator[str]:
        """Server-sent events as text, from the one after ``last_id``; ends when the hub closes. With
        ``all_alerts`` a reader of one run hears of the alerts of all.
        """
        reader = _Reader(run, all_alerts=all_alerts)
        if last_id is not None:
            known = last_id - self._overlap_us
            if known > max(self._last_id, int(self._clock() * 1e6)):  # the clock went back since: who knows
                reader.offer(Event(self._complete_from, RESET, {}))
            elif known < self._complete_from:
                reader.offer(Event(max(last_id, self._complete_from), RESET, {}))
            for event in self._past:
                if event.id > known:
                    reader.offer(event)
        self._readers.add(reader)
        try:
            yield f"retry: 2000\n{BEAT}"
            while not self._closed:
                try:
                    await asyncio.wait_for(reader.wake.wait(), BEAT_S)
                except TimeoutError:
                    yield BEAT
                    continue
                except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
                    yield BEAT
                    continue
                reader.wake.clear()
                waiting = sorted(reader.pending.values(), key=lambda event: event.id)
                reader.pending.clear()
                if waiting:
                    yield "".join(event.encoded() for event in waiting)
                    await asyncio.sleep(FLUSH_S)
        finally:
            self._readers.discard(reader)

    def _next_id(self) -> int:
        with self._guard:
            self._last_id = max(self._last_id + 1, int(self._clock() * 1e6))
            return self._last_id

    def _call(self, what: Callable[..., None], *args: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *args)

    def _deliver(self, event: Event) -> None:
        self._past.append(event)
        while len(self._past) > REMEMBERED:
            self._complete_from = max(self._complete_from, self._past.popleft().id)
        for reader in self._readers:
            reader.offer(event)

    def _reset(self) -> None:
        self._past.clear()
        self._complete_from = self._next_id()
        for reader in self._readers:
            reader.offer(Event(self._complete_from, RESET, {}))

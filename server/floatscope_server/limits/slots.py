"""So many at once, some more that wait for a while, and no more than that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


class NoSlot(Exception):
    """Too many wait already, or it waited in vain."""


@dataclass(frozen=True)
class Room:
    """at_once: under way together.  waiting: beyond those.  wait_s: for how long one waits."""

    at_once: int
    waiting: int
    wait_s: float


class Slots:
    """Places for one class of requests. Used on one event loop."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._free = asyncio.Semaphore(room.at_once)
        self.taken = 0
        self.waiting = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place while the block runs, first come first served. Raises NoSlot."""
        if self._free.locked():
            if self.waiting >= self._room.waiting:
                raise NoSlot
            self.waiting += 1
            try:
                await asyncio.wait_for(self._free.acquire(), self._room.wait_s)
            except (TimeoutError, asyncio.TimeoutError) as error:  # two classes before Python 3.11
                raise NoSlot from error
            finally:
                self.waiting -= 1
        else:
            await self._free.acquire()
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._free.release()

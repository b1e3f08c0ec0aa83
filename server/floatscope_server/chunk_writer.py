"""Writes the tiles and levels of one chunk in transactions short enough that no batch waits long for them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from urllib.parse import quote

from sqlalchemy import Connection

from floatscope_server.database import Database
from floatscope_server.levels import Level
from floatscope_server.store import chunks, claims, leftovers, tiles
from floatscope_server.store.chunks import LevelRow
from floatscope_server.store.kinds import HISTOGRAM, STAT
from floatscope_server.store.level_format import pack_level
from floatscope_server.store.tiles import Objects, Tile

SLOW_S = claims.LEASE_S / 6
"""After an object that took so long the claim is renewed, for more may follow before the next transaction."""
UNCLAIMED_S = 86_400.0
"""An object whose chunk never came to count is deleted after so long; until then it may be in the making."""


class Interrupted(Exception):
    """The work ends here: the server stops, another worker took over, or the run is being removed."""


class ChunkWriter:
    """Tiles and levels of the chunk ``number`` of a rank that ``worker`` has claimed.

    Every transaction asks first whether the claim still stands. bytes: what was written so far.
    """

    def __init__(
        self,
        database: Database,
        run: int,
        rank: int,
        number: int,
        *,
        worker: str,
        portion_bytes: int,
        objects: Objects | None,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._run, self._rank, self._number = run, rank, number
        self._worker = worker
        self._portion_bytes = portion_bytes
        self._objects = objects
        self._clock = clock
        self._tiles: list[Tile] = []
        self._levels: list[LevelRow] = []
        self._waiting = 0
        self._attempt = secrets.token_hex(4)
        self.objects: list[str] = []
        self.bytes = 0

    def tile(self, kind: int, name: str, part: int, data: bytes) -> None:
        """One tile, into the database."""
        self._tiles.append(Tile(kind, name, part, data, len(data)))
        self._count(len(data))

    def series(self, kind: int, name: str, parts: Iterable[tuple[int, bytes]]) -> None:
        """All tiles of a statistic or of histograms: one object of the store, if there is one."""
        if self._objects is None or kind not in (STAT, HISTOGRAM):
            for part, data in parts:
                self.tile(kind, name, part, data)
            return
        made = list(parts)
        if not made:
            return
        key = self._key(kind, name)
        with self._database.write() as c:
            self._check(c)
            leftovers.note_object(c, key, due=self._clock() + UNCLAIMED_S)
        began = self._clock()
        self._objects.write(key, b"".join(data for _part, data in made))
        if not 0 <= self._clock() - began < SLOW_S:
            with self._database.write() as c:
                self._check(c)
        self.objects.append(key)
        start = 0
        for part, data in made:
            self._tiles.append(Tile(kind, name, part, None, len(data), key, start))
            self.bytes += len(data)
            start += len(data)

    def level(self, kind: int, name: str, part: int, level: Level) -> None:
        data = pack_level(level)
        self._levels.append(LevelRow(kind, name, level.width, part, data))
        self._count(len(data))

    def flush(self) -> None:
        """Writes what waits. Raises Interrupted if the claim is lost."""
        if not self._tiles and not self._levels:
            return
        with self._database.write() as c:
            self._check(c)
            tiles.insert(c, self._run, self._rank, self._number, self._tiles)
            chunks.insert_levels(c, self._run, self._rank, self._number, self._levels)
        self._tiles, self._levels, self._waiting = [], [], 0

    def _count(self, size: int) -> None:
        self.bytes += size
        self._waiting += size
        if self._waiting >= self._portion_bytes:
            self.flush()

    def _check(self, c: Connection) -> None:
        if not claims.holds(c, self._run, self._rank, worker=self._worker, now=self._clock()):
            raise Interrupted

    def _key(self, kind: int, name: str) -> str:
        """Deterministic but for the attempt, so that a reader never finds the bytes of another attempt."""
        named = quote(name, safe="")[:200]
        return f"{self._run}/{self._rank}/{self._number}/{kind}/{named}/{len(self.objects)}-{self._attempt}"

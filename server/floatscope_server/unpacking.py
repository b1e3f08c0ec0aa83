"""Turns chunks back into hot blocks, so that an older version of floatscope can read the database.

The last chunk of a rank goes first, and comes to count as hot batches in one transaction; what lies in blocks
before that is a left-over like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from floatscope_server.chunk_plan import LIMITS
from floatscope_server.chunk_writer import Interrupted
from floatscope_server.database import Database
from floatscope_server.store import blocks, chunk_batches, chunks, claims, hot, tiles
from floatscope_server.store.blocks import Block
from floatscope_server.store.chunks import Chunk
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects
from floatscope_server.sweeping import sweep

WINDOW_BYTES = 16 * 1024 * 1024


class Unpacker:
    """Unpacks all chunks. No server may be running: it would make chunks again.

    worker: a name that nobody else rewrites under.
    """

    def __init__(
        self,
        *,
        database: Database,
        tensor_tables: TensorTables,
        worker: str,
        objects: Objects | None = None,
        portion_bytes: int = LIMITS.portion_bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._tensor_tables = tensor_tables
        self._worker = worker
        self._objects = objects
        self._portion_bytes = portion_bytes
        self._clock = clock

    def unpack_all(self) -> Iterator[tuple[int, int, int]]:
        """(run, rank, chunks unpacked) of every rank that had any.

        Raises Interrupted if a server works on a rank, and whatever the database or the object store raises;
        it may be called again.
        """
        with self._database.read() as c:
            found = chunks.ranks(c)
        for run, rank in found:
            yield run, rank, self._unpack(run, rank)

    def _unpack(self, run: int, rank: int) -> int:
        with self._database.write() as c:
            if not claims.take(c, run, rank, worker=self._worker, now=self._clock()):
                raise Interrupted
        self._sweep(run, rank)
        with self._database.read() as c:
            found = chunks.of_rank(c, run, rank)
        for chunk in reversed(found):
            self._open(run, chunk)
        self._sweep(run, rank)
        with self._database.write() as c:
            claims.release(c, run, rank, worker=self._worker)
        return len(found)

    def _open(self, run: int, chunk: Chunk) -> None:
        size = 0
        waiting: list[tuple[int, list[Block]]] = []
        for seq, made in self._blocks(run, chunk):
            waiting.append((seq, made))
            if sum(len(data) for _seq, rows in waiting for _k, _n, data in rows) >= self._portion_bytes:
                size += self._write(run, chunk, waiting)
                waiting = []
        size += self._write(run, chunk, waiting)
        with self._database.write() as c:
            held = claims.holds(c, run, chunk.rank, worker=self._worker, now=self._clock())
            if not held or not hot.move_back(c, run, chunk.rank, chunk, hot_bytes=size):
                raise Interrupted

    def _blocks(self, run: int, chunk: Chunk) -> Iterator[tuple[int, list[Block]]]:
        seq: int | None = chunk.first_seq
        while seq is not None:
            with self._database.read() as c:
                (found,) = tiles.rows(c, run, chunk.rank, [chunk])
                seqs = [member.seq for member in chunk_batches.members(c, run, found)]
                part = chunk_batches.cut(
                    c,
                    run,
                    chunk,
                    first_seq=seq,
                    most_bytes=WINDOW_BYTES,
                    tensor_tables=self._tensor_tables,
                    objects=self._objects,
                )
            for number, batch in part.items():
                yield number, blocks.compressed(batch)
            seq = next((number for number in seqs if number > max(part)), None)

    def _write(self, run: int, chunk: Chunk, waiting: list[tuple[int, list[Block]]]) -> int:
        with self._database.write() as c:
            if not claims.holds(c, run, chunk.rank, worker=self._worker, now=self._clock()):
                raise Interrupted
            return sum(blocks.write(c, run, chunk.rank, seq, rows) for seq, rows in waiting)

    def _sweep(self, run: int, rank: int) -> None:
        sweep(
            self._database,
            run,
            rank,
            tiles_too=True,
            worker=self._worker,
            portion_bytes=self._portion_bytes,
            go_on=lambda: None,
            clock=self._clock,
        )

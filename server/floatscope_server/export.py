"""A run's steps as log objects again, one after the other, without holding the run in memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from floatscope.protocol.json_rows import rows_from_batch
from floatscope_server.database import Database
from floatscope_server.store import batches, reads
from floatscope_server.store.reads import Rows, Span
from floatscope_server.store.sequence import BatchSequence
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects

PIECE_BYTES = 64 * 1024


class Removed(Exception):
    """The run was deleted while it was read."""


def rows(
    database: Database,
    run: int,
    ranks: Sequence[int],
    span: Span,
    *,
    tensor_tables: TensorTables,
    objects: Objects | None = None,
) -> Iterator[dict[str, Any]]:
    """Log objects of the span, steps ascending; of several ranks, those of one step follow each other.

    Raises Removed.
    """
    many = len(ranks)
    readers = [_rank_rows(database, run, rank, span, tensor_tables, objects, ranks=many) for rank in ranks]
    yield from heapq.merge(*readers, key=lambda row: (row["step"], row.get("rank", 0)))


def in_pieces(lines: Iterator[str]) -> Iterator[bytes]:
    """The lines in pieces of some size, since a network packet per line would be slow."""
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        encoded = line.encode()
        waiting.append(encoded)
        size += len(encoded)
        if size >= PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _rank_rows(
    database: Database,
    run: int,
    rank: int,
    span: Span,
    tensor_tables: TensorTables,
    objects: Objects | None,
    *,
    ranks: int,
) -> Iterator[dict[str, Any]]:
    """Each batch is read in a transaction of its own, so that a slow reader holds no lock and no old
    snapshot.
    """
    with database.read() as c:
        found = reads.rows(c, run, rank, span)
    sequence = BatchSequence(run, tensor_tables=tensor_tables, objects=objects, ranks=ranks)
    for r, first, last in _stretches(found):
        with database.read() as c:
            if not batches.exists(c, run, r.key):
                raise Removed
            batch = sequence.load(c, r.key)
        yield from rows_from_batch(batch.rows(first, last), rank=rank, segment=r.key.segment)


def _stretches(found: Sequence[Rows]) -> Iterator[tuple[Rows, int, int]]:
    """(batch, first row, row after the last) of stretches that belong together, in ascending order of their
    steps.

    Where a newer segment covers some steps of an older one, the older batch comes in several stretches.
    """
    if not found:
        return
    step = np.concatenate([r.step[r.shown] for r in found])
    source = np.concatenate([np.full(int(r.shown.sum()), i) for i, r in enumerate(found)])
    row = np.concatenate([np.flatnonzero(r.shown) for r in found])
    order = np.argsort(step, kind="stable")
    source, row = source[order], row[order]
    if not len(source):
        return
    breaks = np.flatnonzero((np.diff(source) != 0) | (np.diff(row) != 1)) + 1
    for part in np.split(np.arange(len(source)), breaks):
        yield found[int(source[part[0]])], int(row[part[0]]), int(row[part[-1]]) + 1

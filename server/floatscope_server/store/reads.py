"""Which batches a reader of whole steps gets, and which rows of them: for every step its newest segment, or
one segment as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.batch import Bool, Int64
from floatscope_server.store import batches, raw, stretches
from floatscope_server.store.batches import BatchKey
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Piece, Span
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects

__all__ = ("Rows", "Span", "rows")


@dataclass(frozen=True)
class Rows:
    """The rows of one batch that a reader gets to see. step: int64 [T]. shown: bool [T]."""

    key: BatchKey
    step: Int64
    shown: Bool


def rows(c: Connection, run: int, rank: int, span: Span, *, objects: Objects | None = None) -> list[Rows]:
    """Batches that touch the span, in the order in which they were sent, with the rows of them that count."""
    source = Source(c, run, rank, TensorTables(), objects)
    pieces = stretches.pieces(source.c, source.run, source.rank, span)
    inside: dict[int, list[stretches.Stretch]] = {}
    for part in stretches.of_pieces(pieces, span, steps=lambda some: raw.steps(source, some)):
        inside.setdefault(part.piece.number, []).append(part)
    keys = [
        key
        for key in batches.keys(
            source.c, source.run, rank=source.rank, first_step=span.first, last_step=span.last
        )
        if not key.lost and span.segment in (None, key.segment)
    ]
    keys.sort(key=lambda key: key.seq)
    out: list[Rows] = []
    for key, piece, step in _with_steps(source, keys, pieces):
        here = inside.get(piece.number)
        shown = np.zeros(len(step), bool) if here is None else stretches.which(step, step, here)[1]
        out.append(Rows(key, step, shown))
    return out


def _with_steps(
    source: Source, keys: Sequence[BatchKey], pieces: Sequence[Piece]
) -> Iterator[tuple[BatchKey, Piece, Int64]]:
    """The steps of each batch: those of its piece from its first to its last, since a piece's ascend."""
    found = sorted(raw.steps(source, pieces), key=lambda pair: pair[0].number)
    at = 0
    for key in keys:
        while at < len(found) and found[at][0].number < key.seq:
            at += 1
        if at == len(found):
            return
        piece, step = found[at]
        first, last = np.searchsorted(step, (key.first_step, key.last_step + 1))
        yield key, piece, step[first:last]

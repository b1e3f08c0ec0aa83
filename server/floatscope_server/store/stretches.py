"""Which stored rows count: for every step that of its newest segment, or one segment as it was.

What is stored together, a chunk or a batch that is in no chunk yet, is a piece. A reader gets stretches of
pieces, so that it need not look at rows where nothing was trained twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from sqlalchemy import Connection, select

from floatscope.protocol.batch import Bool, Int64
from floatscope_server import tables
from floatscope_server.store import chunks, damage
from floatscope_server.store.chunks import Chunk

_batch, _rank = tables.batch, tables.rank
Interval = tuple[int, int]  # first and last step, both included


@dataclass(frozen=True)
class Span:
    """Steps ``first`` to ``last``, both included; of the newest segment of each step, or of one segment."""

    first: int
    last: int
    segment: int | None = None


@dataclass(frozen=True)
class Piece:
    """A chunk, or a batch that is in none. ``number``: seq of its last batch; ``rows``: steps it holds."""

    number: int
    segment: int
    rows: int
    first_step: int
    last_step: int
    tensor_table: int | None
    chunk: Chunk | None = None

    @property
    def is_dense(self) -> bool:
        """Whether it holds every step from its first to its last."""
        return self.rows == self.last_step - self.first_step + 1


@dataclass(frozen=True)
class Stretch:
    """All rows of the piece from step ``low`` to ``high`` count, and no rows of another piece there."""

    piece: Piece
    low: int
    high: int


def pieces(c: Connection, run: int, rank: int, span: Span) -> list[Piece]:
    """The pieces that touch the span, in the order in which they were sent. Holes of lost steps are none."""
    with damage.reading(f"list of chunks of rank {rank}"):
        cold = chunks.of_rank(c, run, rank, first_step=span.first, last_step=span.last)
    found = [
        Piece(
            chunk.number,
            chunk.segment,
            chunk.rows,
            chunk.first_step,
            chunk.last_step,
            chunk.tensor_table,
            chunk,
        )
        for chunk in cold
    ]
    done = select(_rank.c.chunked_seq).where(_rank.c.run == run, _rank.c.rank == rank)
    hot = (
        select(
            _batch.c.seq,
            _batch.c.segment,
            _batch.c.rows,
            _batch.c.first_step,
            _batch.c.last_step,
            _batch.c.tensor_table,
        )
        .where(_batch.c.run == run, _batch.c.rank == rank, _batch.c.seq >= (c.execute(done).scalar() or 0))
        .where(_batch.c.last_step >= span.first, _batch.c.first_step <= span.last, _batch.c.rows > 0)
        .order_by(_batch.c.seq)
    )
    found += [Piece(*row) for row in c.execute(hot)]
    return [piece for piece in found if span.segment in (None, piece.segment)]


def of_pieces(
    found: Sequence[Piece], span: Span, *, steps: Callable[[Sequence[Piece]], Iterable[tuple[Piece, Int64]]]
) -> list[Stretch]:
    """The stretches of the span, steps ascending. ``steps`` is asked for the steps of a few pieces at most:
    those of which the first and the last step do not tell which rows count.
    """
    covered: list[Interval] = []  # by newer segments, every step
    parts: list[Stretch] = []
    newest_first = sorted(found, key=lambda piece: (-piece.segment, piece.first_step))
    for _segment, group in groupby(newest_first, key=lambda piece: piece.segment):
        inside = [(p, (max(p.first_step, span.first), min(p.last_step, span.last))) for p in group]
        for piece, whole in inside:
            parts += [Stretch(piece, *left) for left in _without(whole, covered)]
        covered = _united([*covered, *(whole for piece, whole in inside if piece.is_dense)])
    out: list[Stretch] = []
    for cluster in _clusters(sorted(parts, key=lambda part: part.low)):
        out += cluster if len(cluster) == 1 else _resolved(cluster, steps)
    return out


def which(low: Int64, high: Int64, inside: Sequence[Stretch]) -> tuple[Int64, Bool]:
    """For intervals of steps: the stretch that each begins in or after, and whether it lies in it wholly."""
    lows = np.array([part.low for part in inside])
    highs = np.array([part.high for part in inside])
    at = np.searchsorted(lows, low, side="right") - 1
    return at, (at >= 0) & (high <= highs[np.maximum(at, 0)])


def extents(bins: Int64, width: int, piece: Piece) -> tuple[Int64, Int64]:
    """The first and the last step of each bin, where the piece has any."""
    low = np.maximum(bins * width, piece.first_step)
    return low, np.minimum((bins + 1) * width - 1, piece.last_step)


def is_whole(piece: Piece, inside: Sequence[Stretch]) -> bool:
    """Whether every row of the piece counts, without rows of others among them."""
    return inside[0].low <= piece.first_step and inside[0].high >= piece.last_step


def _without(whole: Interval, covered: Sequence[Interval]) -> Iterator[Interval]:
    """What is left of an interval; ``covered`` ascends and its intervals do not touch each other."""
    low, high = whole
    for first, last in covered:
        if last < low:
            continue
        if first > high:
            break
        if first > low:
            yield low, first - 1
        low = last + 1
    if low <= high:
        yield low, high


def _united(intervals: Sequence[Interval]) -> list[Interval]:
    out: list[Interval] = []
    for low, high in sorted(intervals):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def _clusters(parts: Sequence[Stretch]) -> Iterator[list[Stretch]]:
    """Runs of stretches that overlap; those of one segment never do."""
    cluster: list[Stretch] = []
    high = -1
    for part in parts:
        if cluster and part.low > high:
            yield cluster
            cluster = []
        cluster.append(part)
        high = max(high, part.high)
    if cluster:
        yield cluster


def _resolved(
    cluster: Sequence[Stretch], steps: Callable[[Sequence[Piece]], Iterable[tuple[Piece, Int64]]]
) -> list[Stretch]:
    """The same rows as stretches that do not overlap, from a look at every step of the pieces."""
    owners = list({part.piece.number: part.piece for part in cluster}.values())
    place = {piece.number: i for i, piece in enumerate(owners)}
    step_of: dict[int, Int64] = {piece.number: found for piece, found in steps(owners)}
    rows: list[tuple[Int64, Int64]] = []
    for part in cluster:
        step = step_of[part.piece.number]
        first, last = np.searchsorted(step, (part.low, part.high + 1))
        rows.append((np.full(last - first, place[part.piece.number]), np.arange(first, last)))
    owner, row = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    del rows
    step = np.concatenate([step_of[piece.number] for piece in owners])
    offset = np.concatenate([[0], np.cumsum([len(step_of[piece.number]) for piece in owners])[:-1]])
    step = step[offset[owner] + row]
    segment = np.array([piece.segment for piece in owners])[owner]
    order = np.lexsort((segment, step))
    order = order[np.append(step[order][1:] != step[order][:-1], True)]
    step, owner, row = step[order], owner[order], row[order]
    breaks = np.flatnonzero((np.diff(owner) != 0) | (np.diff(row) != 1)) + 1
    firsts, lasts = np.append(0, breaks), np.append(breaks, len(step)) - 1
    if not len(step):
        return []
    return [
        Stretch(owners[who], low, high)
        for who, low, high in zip(
            owner[firsts].tolist(), step[firsts].tolist(), step[lasts].tolist(), strict=True
        )
    ]

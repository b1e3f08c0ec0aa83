"""Histograms of one tensor over time: counts by exponent at the steps at which they were sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Bool, Float32, Int64
from floatscope.protocol.names import HIST_BINS
from floatscope_server.codec import unpack
from floatscope_server.store import blocks, damage, kinds, raw, stretches, tiles
from floatscope_server.store.raw import Source
from floatscope_server.store.series_reads import View
from floatscope_server.store.stretches import Piece

MOST_LOOKED_AT = 4_000
"""Sampled steps whose counts are read: where only suspects were sampled, most have none of this tensor."""


@dataclass(frozen=True, eq=False)
class TensorHistograms:
    """Histograms of one tensor at ``step`` [N], ascending.

    counts: uint32 [N, 64], finite values that are not 0, by exponent from -40, before any scale. scale, amax:
    of the same steps [N], NaN where ``has_scale`` or ``has_amax`` is False. sampled: steps of the span at
    which some tensor was sampled; looked_at: those of them that were read, spread evenly over it.
    """

    step: Int64
    counts: NDArray[np.uint32]
    scale: Float32
    has_scale: Bool
    amax: Float32
    has_amax: Bool
    sampled: int
    looked_at: int


def of_tensor(seen: View, tensor: str, columns: int, *, stored: Sequence[str]) -> TensorHistograms:
    """The tensor's histograms of the view, at most ``columns`` of them, spread evenly over those there are.

    stored: every statistic the run has.
    """
    source = seen.source
    where = sorted(_sampled(seen), key=lambda found: found[2])
    chosen = [where[i] for i in _spread(len(where), MOST_LOOKED_AT)]
    found = [each for piece, rows in _by_piece(chosen) for each in _counts(source, piece, rows, tensor)]
    step = np.array([at for at, _counts_there in found], np.int64)
    order = np.argsort(step, kind="stable")
    order = order[_spread(len(order), columns)]
    step = step[order]
    kept = {number for _piece, number in _pieces_at(seen, step)}
    pieces = [piece for piece in seen.pieces if piece.number in kept]
    return TensorHistograms(
        step,
        np.array([counts for _at, counts in found], np.uint32).reshape(-1, HIST_BINS)[order],
        *_stat_at(seen, pieces, step, "scale", tensor, stored),
        *_stat_at(seen, pieces, step, "amax", tensor, stored),
        len(where),
        len(chosen),
    )


def _spread(count: int, most: int) -> list[int]:
    """At most so many places of so many, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count - 1]
    return [place * (count - 1) // (most - 1) for place in range(most)]


def _sampled(seen: View) -> Iterator[tuple[Piece, int, int]]:
    """Piece, row among its histograms and step of every row of histograms that counts."""
    source, of_piece = seen.source, seen.of_piece()
    inside = [piece for piece in seen.pieces if piece.number in of_piece]
    for piece, step, hist_row in _hist_steps(source, inside):
        at = step[hist_row]
        for row in np.flatnonzero(stretches.which(at, at, of_piece[piece.number])[1]).tolist():
            yield piece, row, int(at[row])


def _hist_steps(source: Source, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Int64, Int64]]:
    of_number = {piece.number: piece for piece in pieces}
    cold = [piece.chunk for piece in pieces if piece.chunk is not None and piece.chunk.hist_rows]
    with damage.reading(f"steps of rank {source.rank}"):
        for at in range(0, len(cold), raw.AT_ONCE):
            some = cold[at : at + raw.AT_ONCE]
            for found in tiles.rows(source.c, source.run, source.rank, some, objects=source.objects):
                yield of_number[found.chunk.number], found.step, found.hist_row
        hot = [piece.number for piece in pieces if piece.chunk is None]
        if not hot:
            return
        key = (source.c, source.run, source.rank)
        for seq, data in blocks.each(*key, kinds.ROWS, first_seq=min(hot), last_seq=max(hot)):
            if seq in of_number:
                step, _time, _stat_row, hist_row = unpack(data)
                if len(hist_row):
                    yield of_number[seq], step, hist_row


def _by_piece(chosen: Sequence[tuple[Piece, int, int]]) -> Iterator[tuple[Piece, list[tuple[int, int]]]]:
    """Rows and steps that are wanted of each piece."""
    in_order = sorted(chosen, key=lambda found: found[0].number)
    for _number, group in groupby(in_order, key=lambda found: found[0].number):
        found = list(group)
        yield found[0][0], [(row, step) for _piece, row, step in found]


def _counts(
    source: Source, piece: Piece, rows: Sequence[tuple[int, int]], tensor: str
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Steps and counts [64] of those rows that have any of the tensor."""
    column = raw.column(source.tensor_names(piece), tensor)
    if column is None:
        return
    counts = None
    with damage.reading(f"histograms of rank {source.rank} in batch {piece.number}"):
        if piece.chunk is None:
            key = (source.c, source.run, source.rank, kinds.HISTOGRAM)
            for _seq, data in blocks.each(*key, first_seq=piece.number, last_seq=piece.number):
                counts = unpack(data)[0][:, column]
        else:
            part, within = tiles.place(column)
            wanted = {piece.number: {part}}
            for tile in tiles.histograms(
                *(source.c, source.run, source.rank, [piece.chunk]), parts=wanted, objects=source.objects
            ):
                counts = tile.counts[within]
    if counts is not None:
        for row, step in rows:
            if counts[row].any():
                yield step, counts[row]


def _pieces_at(seen: View, step: Int64) -> Iterator[tuple[Piece, int]]:
    """The pieces in which some of the steps count."""
    for part in seen.stretches:
        if np.searchsorted(step, part.low) < np.searchsorted(step, part.high, side="right"):
            yield part.piece, part.piece.number


def _stat_at(
    seen: View, pieces: Sequence[Piece], step: Int64, stat: str, tensor: str, stored: Sequence[str]
) -> tuple[Float32, Bool]:
    """The statistic at each step, NaN and False where there is none."""
    values, has = np.full(len(step), np.nan, np.float32), np.zeros(len(step), bool)
    if stat not in stored:
        return values, has
    of_piece = seen.of_piece()
    for found in raw.stats(seen.source, stat, (stat,), pieces, tensor=tensor, tensors={}):
        inside = of_piece[found.piece.number]
        good = np.isin(found.step, step) & stretches.which(found.step, found.step, inside)[1]
        if found.present is not None:
            good &= found.present[:, 0]
        at = np.searchsorted(step, found.step[good])
        values[at], has[at] = found.values[good, 0], True
    return values, has

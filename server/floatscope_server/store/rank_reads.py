"""A scalar of every rank in few columns: the worst value of each rank in each bin of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from floatscope.protocol.batch import Float64, Int64
from floatscope_server.reduce import bin_width
from floatscope_server.store import series_reads
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span

MOST_RANKS = 1_024
"""Ranks of one answer: each takes a few queries. Of more, some evenly between the first and the last."""
MOST_ROWS = 250


@dataclass(frozen=True, eq=False)
class RankMap:
    """rows: the ranks of each row, more than one where there are too many.  start: first step of each column.

    width: steps of a column.  worst, nan, inf: [rows, columns]; worst is NaN where there is no finite value.
    """

    rows: tuple[tuple[int, ...], ...]
    first: int
    last: int
    width: int
    start: Int64
    worst: Float64
    nan: Int64
    inf: Int64


def spread(ranks: Sequence[int], most: int) -> list[int]:
    """At most so many of them, from the first to the last."""
    if len(ranks) <= most:
        return list(ranks)
    return [ranks[at * (len(ranks) - 1) // (most - 1)] for at in range(most)]


def rank_map(
    sources: Sequence[Source], name: str, span: Span, *, columns: int, low: bool, most_rows: int = MOST_ROWS
) -> RankMap:
    """The map of these ranks. low: whether the lowest value of a cell is the worst."""
    width = bin_width(span.first, span.last, columns)
    begin = span.first // width
    count = span.last // width - begin + 1
    per_row = max(1, -(-len(sources) // most_rows))
    height = -(-len(sources) // per_row)
    worst = np.full((height, count), np.nan)
    nan, inf = np.zeros((height, count), np.int64), np.zeros((height, count), np.int64)
    worse = np.fmin if low else np.fmax
    for at, source in enumerate(sources):
        seen = series_reads.view(source, span)
        level = series_reads.scalars(seen, [name], columns)[name]
        if not len(level.bins):
            continue
        row = at // per_row
        column = level.bins * level.width // width - begin
        some = level.count[0] > level.nan[0] + level.inf[0]
        found = np.where(some, (level.minimum if low else level.maximum)[0].astype(np.float64), np.nan)
        worse.at(worst[row], column, found)
        np.add.at(nan[row], column, level.nan[0])
        np.add.at(inf[row], column, level.inf[0])
    ranks = [source.rank for source in sources]
    rows = tuple(tuple(ranks[at : at + per_row]) for at in range(0, len(ranks), per_row))
    start = np.maximum((begin + np.arange(count)) * width, span.first)
    return RankMap(rows, span.first, span.last, width, start, worst, nan, inf)

"""Reads a series of any length in as many bins as a screen shows; every bin is exact.

Bins are of a power of two of steps and begin at a multiple of it, so those of a picture stay where they are
while a run grows. What lies wholly inside the span comes from the levels of chunks; its edges, stretches that
were trained twice and what is in no chunk yet come from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Bool, Int64
from floatscope_server.derived import DERIVED, needs
from floatscope_server.levels import FINEST, THIN_ROWS, Level, merge, summarise
from floatscope_server.reduce import bin_width
from floatscope_server.store import chunks, damage, kinds, raw, stretches
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Piece, Span, Stretch
from floatscope_server.store.warm import Warm

FEW_BREAKS = 32  # in the rows: each stretch is summarised by itself; more are put in order row by row
LEVELS_AT_ONCE = 64  # chunks whose levels a query brings


@dataclass(frozen=True)
class View:
    """The part of a rank's rows that a reader asks for: the stretches that count, steps ascending."""

    source: Source
    span: Span
    pieces: tuple[Piece, ...]
    stretches: tuple[Stretch, ...]

    @property
    def first(self) -> int:
        """The first step that may count, 0 where nothing does."""
        return self.stretches[0].low if self.stretches else 0

    def of_piece(self) -> dict[int, list[Stretch]]:
        """Number of a piece -> its stretches."""
        found: dict[int, list[Stretch]] = {}
        for stretch in self.stretches:
            found.setdefault(stretch.piece.number, []).append(stretch)
        return found


def view(source: Source, span: Span, *, with_tensors: bool = False) -> View:
    """What there is of the span. with_tensors: leaves out what carries no statistics of tensors."""
    pieces = stretches.pieces(source.c, source.run, source.rank, span)
    found = stretches.of_pieces(pieces, span, steps=lambda some: raw.steps(source, some))
    if with_tensors:
        pieces = [piece for piece in pieces if piece.tensor_table is not None]
        found = [part for part in found if part.piece.tensor_table is not None]
    return View(source, span, tuple(pieces), tuple(found))


def scalars(seen: View, names: Sequence[str], points: int) -> dict[str, Level]:
    """name -> the scalar in at most ``points`` bins, those with a value; few values are a bin each."""
    return _read(seen, names, points, kind=kinds.SCALARS, rows=_scalar_rows(seen))


def series(
    seen: View,
    stat: str,
    tensor: str,
    points: int,
    *,
    stored: Sequence[str],
    tensors: Mapping[str, Mapping[str, Any]],
) -> Level:
    """A stored or derived statistic of one tensor in at most ``points`` bins.

    stored: every statistic the run has. tensors: the run's description of its tensors, for the formats.
    """
    parts = needs(stat, stored)

    def rows(_names: Sequence[str], pieces: Sequence[Piece]) -> Iterator[_Rows]:
        for found in raw.stats(seen.source, stat, parts, pieces, tensor=tensor, tensors=tensors):
            present = None if found.present is None else found.present[:, 0]
            yield found.piece, tensor, found.step, found.values[:, 0], present

    if not parts:
        return _nothing()
    kind = kinds.DERIVED if stat in DERIVED else kinds.STAT
    return _read(seen, [tensor], points, kind=kind, stat=stat, rows=rows)[tensor]


_Rows = tuple[Piece, str, Int64, NDArray[Any], Bool | None]
_ReadRows = Callable[[Sequence[str], Sequence[Piece]], Iterator[_Rows]]
_Raw = tuple[Int64, NDArray[Any]]  # steps and values
_Keyed = tuple[Int64, Level]  # a level of one series, and for each bin a step at or before its first row


def _scalar_rows(seen: View) -> _ReadRows:
    def rows(names: Sequence[str], pieces: Sequence[Piece]) -> Iterator[_Rows]:
        step_of = {piece.number: step for piece, step in raw.steps(seen.source, pieces)}
        for piece, name, values, present in raw.scalars(seen.source, names, pieces):
            yield piece, name, step_of[piece.number], values, present

    return rows


def _read(
    seen: View, names: Sequence[str], points: int, *, kind: int, rows: _ReadRows, stat: str = ""
) -> dict[str, Level]:
    if not seen.stretches:
        return {name: _nothing() for name in names}
    width = 1
    if sum(piece.rows for piece in seen.pieces) > points:
        first, last = seen.stretches[0].low, max(part.high for part in seen.stretches)
        width = bin_width(first, last, points)
    found = _at_width(seen, names, width, kind=kind, rows=rows, stat=stat)
    few = [name for name, level in found.items() if width > 1 and level.count.sum() <= points]
    return found | (_at_width(seen, few, 1, kind=kind, rows=rows, stat=stat) if few else {})


def _at_width(
    seen: View, names: Sequence[str], width: int, *, kind: int, rows: _ReadRows, stat: str
) -> dict[str, Level]:
    of_piece = seen.of_piece()
    parts: dict[str, list[_Keyed]] = {name: [] for name in names}
    found_rows: dict[str, list[_Raw]] = {name: [] for name in names}
    done: dict[tuple[str, int], _Taken | None] = {}  # None: the chunk has no value of it
    left: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        for piece, level in _levels(seen, width, kind, stat, name):
            if level is None:
                done[name, piece.number] = None
            elif level.mean is not None:
                taken = _usable(level, piece, of_piece[piece.number])
                done[name, piece.number] = taken
                parts[name].append(taken.found)
        rest = [p.number for p in seen.pieces if _is_left(p, of_piece, done.get((name, p.number), _NOT_READ))]
        left.setdefault(tuple(rest), []).append(name)
    for numbers, some in left.items():
        wanted = set(numbers)
        for piece, name, step, values, present in rows(some, [p for p in seen.pieces if p.number in wanted]):
            taken_here = done.get((name, piece.number))
            found_rows[name].append(_counting(step, values, present, of_piece[piece.number], taken_here))
    return {name: _joined(found, found_rows[name], width) for name, found in parts.items()}


@dataclass(frozen=True, eq=False)
class _Taken:
    """Bins of a chunk's level that lie wholly inside what counts."""

    bins: Int64
    width: int
    found: _Keyed


_NOT_READ = object()


def _is_left(piece: Piece, of_piece: Mapping[int, Sequence[Stretch]], taken: object) -> bool:
    """Whether rows of the piece must be read."""
    inside = of_piece.get(piece.number, ())
    if not inside or taken is None:
        return False
    return taken is _NOT_READ or not stretches.is_whole(piece, inside)


def coarsest(widths: Sequence[int], width: int, *, finest: int = FINEST) -> int | None:
    """The widest of a chunk's levels of which bins of ``width`` are made; None if rows must be read."""
    return max((w for w in widths if finest <= w <= width), default=None)


def _levels(seen: View, width: int, kind: int, stat: str, name: str) -> Iterator[tuple[Piece, Level | None]]:
    """The coarsest level of every chunk that has one; None where the chunk has no value of the series.

    Levels of few rows a bin have no mean, so they are not asked for.
    """
    source = seen.source
    counting = {part.piece.number for part in seen.stretches}
    of_width: dict[int, list[Piece]] = {}
    for piece in seen.pieces:
        if piece.chunk is not None and piece.number in counting:
            stored = piece.chunk.widths if kind == kinds.SCALARS else piece.chunk.stat_widths
            best = coarsest(stored, width, finest=THIN_ROWS)
            if best is not None:
                of_width.setdefault(best, []).append(piece)
    for best, group in of_width.items():
        for at in range(0, len(group), LEVELS_AT_ONCE):
            yield from _levels_of(source, best, group[at : at + LEVELS_AT_ONCE], kind, stat, name)


def _levels_of(
    source: Source, width: int, group: Sequence[Piece], kind: int, stat: str, name: str
) -> Iterator[tuple[Piece, Level | None]]:
    place = {
        p.number: 0 if kind == kinds.SCALARS else raw.column(source.tensor_names(p), name) for p in group
    }
    part_of = {number: at // kinds.LEVEL_SERIES for number, at in place.items() if at is not None}
    chunk_of = {p.number: p.chunk for p in group if p.chunk is not None and p.number in part_of}
    keys = {n: ("level", source.run, c, kind, stat or name, width, part_of[n]) for n, c in chunk_of.items()}
    warm = source.warm or Warm(0)
    level_of: dict[int, Level] = {n: known for n, key in keys.items() if (known := warm.get(key)) is not None}
    missing = {number: {part_of[number]} for number in chunk_of if number not in level_of}
    found = chunks.levels(
        *(source.c, source.run, source.rank, kind, stat or name, width),
        chunks=[chunk_of[number] for number in missing],
        parts=missing,
    )
    what = f"levels of {stat or name}, rank {source.rank}, {raw.range_of(group)}"
    for number, _part, level in damage.each(found, what):
        level_of[number] = level
        warm.keep(keys[number], level, size_bytes(level))
    for piece in group:
        known, column = level_of.get(piece.number), (place[piece.number] or 0) % kinds.LEVEL_SERIES
        with damage.reading(what):
            yield piece, None if known is None else _one(known, slice(column, column + 1))


def size_bytes(level: Level) -> int:
    """Memory that a decoded level takes, about."""
    arrays = (level.minimum, level.maximum, level.mean, level.last)
    return sum(array.nbytes for array in arrays if array is not None)


def _usable(level: Level, piece: Piece, inside: Sequence[Stretch]) -> _Taken:
    """The bins of which every row counts and between whose rows no row of another piece counts."""
    low, high = stretches.extents(level.bins, level.width, piece)
    _at, good = stretches.which(low, high, inside)
    return _Taken(level.bins[good], level.width, (low[good], columns_of(level, good)))


def _counting(
    step: Int64, values: NDArray[Any], present: Bool | None, inside: Sequence[Stretch], taken: _Taken | None
) -> _Raw:
    """What counts of the rows of a piece and is not in the bins that were taken."""
    _at, good = stretches.which(step, step, inside)
    if taken is not None:
        good &= ~np.isin(step // taken.width, taken.bins)
    if present is not None:
        good &= present
    return (step, values) if good.all() else (step[good], values[good])


def _joined(taken: Sequence[_Keyed], rows: Sequence[_Raw], width: int) -> Level:
    """Bins of levels and rows, put in order and brought to one width."""
    parts = [*taken]
    if rows:
        step, values = (np.concatenate(columns) for columns in zip(*rows, strict=True))
        if (np.diff(step) < 0).any():
            order = np.argsort(step, kind="stable")
            step, values = step[order], values[order]
        parts += _summaries(step, values[:, None], parts, width)
    if not parts:
        return _nothing(width)
    key = np.concatenate([key for key, _level in parts])
    whole = Level(
        width=1,
        bins=key,
        **{name: np.concatenate([getattr(level, name) for _, level in parts], axis=1) for name in _ARRAYS},
    )
    order = np.argsort(key, kind="stable")
    whole = columns_of(whole, order[(whole.count[0] > 0)[order]])
    return merge([whole], width) if len(whole.bins) else _nothing(width)


def _summaries(step: Int64, values: NDArray[Any], taken: Sequence[_Keyed], width: int) -> Iterator[_Keyed]:
    """Levels of rows in order, broken where bins that were taken lie between them."""
    if not len(step):
        return
    keys = np.sort(np.concatenate([key for key, _level in taken])) if taken else step[:0]
    breaks = np.flatnonzero(np.diff(np.searchsorted(keys, step))) + 1
    if len(breaks) > FEW_BREAKS:
        yield step, summarise(step, values, None, 1)
        return
    for first, end in pairwise([0, *breaks.tolist(), len(step)]):
        here = step[first:end]
        number = here // width
        starts = np.append(True, number[1:] != number[:-1])
        yield here[starts], summarise(here, values[first:end], None, width)


_ARRAYS = tuple(f.name for f in fields(Level) if f.name not in ("width", "bins"))


def columns_of(level: Level, which: NDArray[Any]) -> Level:
    """Only some bins of the level."""
    found: dict[str, Any] = {name: getattr(level, name) for name in _ARRAYS}
    cut: dict[str, Any] = {name: None if array is None else array[:, which] for name, array in found.items()}
    return replace(level, bins=level.bins[which], **cut)


def _one(level: Level, row: slice) -> Level:
    found: dict[str, Any] = {name: getattr(level, name) for name in _ARRAYS}
    cut: dict[str, Any] = {name: None if array is None else array[row] for name, array in found.items()}
    return replace(level, **cut)


def _nothing(width: int = 1) -> Level:
    none, whole = np.empty((1, 0)), np.empty((1, 0), np.int64)
    return Level(width, np.empty(0, np.int64), none, none, whole, whole, whole, none, none)

"""Fills a heat map: from the levels of chunks where they lie wholly inside the span, else from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from floatscope_server.derived import DERIVED, needs
from floatscope_server.levels import Level
from floatscope_server.reduce import HeatMap
from floatscope_server.store import chunks, damage, kinds, raw, stretches
from floatscope_server.store.series_reads import LEVELS_AT_ONCE, View, coarsest, columns_of, size_bytes
from floatscope_server.store.stretches import Piece, Stretch
from floatscope_server.store.warm import Warm


def tensor_names(seen: View) -> set[str]:
    """Every tensor of which some piece of the view carries statistics."""
    one_of_each = {piece.tensor_table: piece for piece in seen.pieces}
    return {name for piece in one_of_each.values() for name in seen.source.tensor_names(piece)}


def fill(
    seen: View, heat: HeatMap, *, stored: Sequence[str], tensors: Mapping[str, Mapping[str, Any]]
) -> None:
    """Takes everything that counts of the view into the map.

    stored: every statistic the run has. tensors: the run's description of its tensors, for the formats.
    """
    parts = needs(heat.stat, stored)
    if not parts:
        return
    of_piece = seen.of_piece()
    taken: dict[int, int] = {}  # chunk -> width of the level that was taken
    of_width: dict[int, list[Piece]] = {}
    for piece in seen.pieces:
        best = None if piece.chunk is None else coarsest(piece.chunk.stat_widths, heat.width)
        if best is not None and piece.number in of_piece:
            of_width.setdefault(best, []).append(piece)
            taken[piece.number] = best
    for best, group in of_width.items():
        for at in range(0, len(group), LEVELS_AT_ONCE):
            _add_levels(seen, heat, best, group[at : at + LEVELS_AT_ONCE], of_piece)
    left = [
        piece
        for piece in seen.pieces
        if (inside := of_piece.get(piece.number))
        and not (piece.number in taken and stretches.is_whole(piece, inside))
    ]
    for found in raw.stats(seen.source, heat.stat, parts, left, tensors=tensors):
        inside = of_piece[found.piece.number]
        _at, good = stretches.which(found.step, found.step, inside)
        width = taken.get(found.piece.number)
        if width is not None:
            bounds = stretches.extents(found.step // width, width, found.piece)
            good &= ~stretches.which(*bounds, inside)[1]
        if good.all():
            heat.add(found.names, found.step, found.values, found.present)
        elif good.any():
            present = None if found.present is None else found.present[good]
            heat.add(found.names, found.step[good], found.values[good], present)


def _add_levels(
    seen: View, heat: HeatMap, width: int, group: Sequence[Piece], of_piece: Mapping[int, Sequence[Stretch]]
) -> None:
    """Takes in the levels of some chunks, of each as one level of all tensors that have a value."""
    source = seen.source
    kind = kinds.DERIVED if heat.stat in DERIVED else kinds.STAT
    warm = source.warm or Warm(0)
    keys = {p.number: ("heat", source.run, p.chunk, kind, heat.stat, width) for p in group}
    whole: dict[int, tuple[tuple[str, ...], Level]] = {
        number: known for number, key in keys.items() if (known := warm.get(key)) is not None
    }
    missing = [piece for piece in group if piece.number not in whole]
    found = chunks.levels(
        *(source.c, source.run, source.rank, kind, heat.stat, width),
        chunks=[piece.chunk for piece in missing if piece.chunk is not None],
        thin=True,
    )
    what = f"levels of {heat.stat}, rank {source.rank}, {raw.range_of(group)}"
    parts: dict[int, list[tuple[int, Level]]] = {}
    for number, part, level in damage.each(found, what):
        parts.setdefault(number, []).append((part, level))
    for piece in missing:
        if piece.number in parts:
            with damage.reading(what):
                made = _put_together(source.tensor_names(piece), parts.pop(piece.number))
            whole[piece.number] = made
            warm.keep(keys[piece.number], made, size_bytes(made[1]))
    for piece in group:
        if piece.number not in whole:
            continue
        names, level = whole[piece.number]
        inside = of_piece[piece.number]
        if not stretches.is_whole(piece, inside):
            bounds = stretches.extents(level.bins, level.width, piece)
            level = columns_of(level, stretches.which(*bounds, inside)[1])
        heat.add_level(names, level)


def _put_together(
    names: tuple[str, ...], parts: Sequence[tuple[int, Level]]
) -> tuple[tuple[str, ...], Level]:
    """One level of all tensors from those of 128 each; a part is not there if none of it has a value."""
    size = kinds.LEVEL_SERIES
    kept = tuple(name for part, _level in parts for name in names[part * size : (part + 1) * size])
    levels = [level for _part, level in parts]
    found = {
        field: np.concatenate([getattr(level, field) for level in levels])
        for field in ("minimum", "maximum", "count", "nan", "inf")
    }
    plain = {
        field: np.broadcast_to(np.zeros((), np.int64), array.shape) if not array.any() else array
        for field, array in found.items()
        if field in ("nan", "inf")
    }
    made: dict[str, Any] = {**found, **plain, "count": levels[0].count[:1]}  # no map asks for counts
    return kept, Level(width=levels[0].width, bins=levels[0].bins, **made)

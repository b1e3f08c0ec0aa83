"""The rows of pieces as they were sent, one decoded piece at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.batch import Bool, Float32, Float64, Int64
from floatscope_server.derived import DERIVED, combine, format_max
from floatscope_server.errors import Damaged
from floatscope_server.store import blocks, damage, kinds, tiles
from floatscope_server.store.stretches import Piece
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.warm import Warm

Decoded = TypeVar("Decoded", bound=tuple[Any, ...])
AT_ONCE = 16  # chunks of one series that a query brings, so that a client that fetches all stays small


@dataclass(frozen=True)
class Source:
    """Where a reader reads: one rank of a run, in one transaction."""

    c: Connection
    run: int
    rank: int
    tensor_tables: TensorTables
    objects: tiles.Objects | None = None
    warm: Warm | None = None

    def tensor_names(self, piece: Piece) -> tuple[str, ...]:
        """The columns of the piece."""
        if piece.tensor_table is None:
            return ()
        with damage.reading(f"tensor table {piece.tensor_table}"):
            return self.tensor_tables.get(self.c, piece.tensor_table).names


@dataclass(frozen=True, eq=False)
class StatRows:
    """Some tensors of a piece: steps [D], values [D, S], presence [D, S] (None: all) of ``names`` [S]."""

    piece: Piece
    names: Sequence[str]
    step: Int64
    values: Float32
    present: Bool | None


def steps(source: Source, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Int64]]:
    """The steps of every piece; of those that hold every step without a look at them."""
    for piece in pieces:
        if piece.is_dense:
            yield piece, np.arange(piece.first_step, piece.last_step + 1)
    for piece, step, _stat_row in rows(source, [piece for piece in pieces if not piece.is_dense]):
        yield piece, step


def rows(source: Source, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Int64, Int64]]:
    """Steps [T] of every piece and the rows [D] of them that carry statistics."""
    c, run, rank = source.c, source.run, source.rank
    cold = [piece for piece in pieces if piece.chunk is not None]
    for group in _groups(cold):
        of_number = {piece.number: piece for piece in group}
        wanted = [piece.chunk for piece in group if piece.chunk is not None]
        with damage.reading(f"steps of rank {rank} in {range_of(group)}"):
            found = tiles.rows(c, run, rank, wanted, objects=source.objects)
        for of_chunk in found:
            yield of_number[of_chunk.chunk.number], of_chunk.step, of_chunk.stat_row
    for piece, data in _blocks(source, kinds.ROWS, "", pieces):
        with damage.reading(f"steps of rank {rank} in batch {piece.number}"):
            step, _time, stat_row = blocks.rows_block(data)
        yield piece, step, stat_row


def scalars(
    source: Source, names: Sequence[str], pieces: Sequence[Piece]
) -> Iterator[tuple[Piece, str, Float64, Bool | None]]:
    """Values [T] and presence [T] of every scalar of ``names`` that a piece has."""
    cold = [piece for piece in pieces if piece.chunk is not None]
    for group in _groups(cold):
        of_number = {piece.number: piece for piece in group}
        wanted = [piece.chunk for piece in group if piece.chunk is not None]
        found = tiles.scalars(source.c, source.run, source.rank, names, wanted, objects=source.objects)
        for tile in damage.each(found, f"scalars of rank {source.rank} in {range_of(group)}"):
            yield of_number[tile.chunk.number], tile.name, tile.values, tile.present
    for piece, (have, values, present) in _decoded(
        source, kinds.SCALARS, "", pieces, blocks.scalar_block, what="scalars"
    ):
        for name in names:
            if name in have:
                k = have.index(name)
                yield piece, name, values[:, k], present[:, k]


def stats(
    source: Source,
    stat: str,
    parts: Sequence[str],
    pieces: Sequence[Piece],
    *,
    tensor: str | None = None,
    tensors: Mapping[str, Mapping[str, Any]],
) -> Iterator[StatRows]:
    """A stored or derived statistic of one tensor or all.

    parts: the stored statistics it is read from (``derived.needs``). tensors: the run's description of its
    tensors, for the formats. A chunk of many tensors comes in several pieces.
    """
    cold = [piece for piece in pieces if piece.chunk is not None and piece.tensor_table is not None]
    for group in _groups(cold, AT_ONCE if tensor is not None else 1):
        yield from _cold_stats(source, stat, parts, group, tensor, tensors)
    hot = [piece for piece in pieces if piece.chunk is None and piece.tensor_table is not None]
    yield from _hot_stats(source, stat, parts, hot, tensor, tensors)


def _hot_stats(
    source: Source,
    stat: str,
    parts: Sequence[str],
    hot: Sequence[Piece],
    tensor: str | None,
    tensors: Mapping[str, Mapping[str, Any]],
) -> Iterator[StatRows]:
    readers = [_decoded(source, kinds.STAT, part, hot, blocks.stat_block, what=part) for part in parts]
    ahead = [next(reader, None) for reader in readers]
    looked_up = rows(source, hot)
    limit, limit_of = None, None
    for piece in hot:
        found: dict[str, tuple[Float32, Bool]] = {}
        for i, part in enumerate(parts):
            while (at := ahead[i]) is not None and at[0].number < piece.number:
                ahead[i] = next(readers[i], None)
            if at is not None and at[0].number == piece.number:
                found[part] = at[1]
                ahead[i] = next(readers[i], None)
        if not found:
            continue
        names: Sequence[str] = source.tensor_names(piece)
        if tensor is not None:
            s = column(names, tensor)
            if s is None:
                continue
            names = (tensor,)
            found = {part: (v[:, s : s + 1], p[:, s : s + 1]) for part, (v, p) in found.items()}
        if stat in DERIVED and piece.tensor_table != limit_of:
            limit, limit_of = format_max(names, tensors), piece.tensor_table
        with damage.reading(f"{stat} of rank {source.rank} in batch {piece.number}"):
            combined = combine(stat, found, names, tensors, limit=limit)
        if combined is not None:
            step = _stat_steps(source, piece, len(combined[0]), looked_up)
            yield StatRows(piece, names, step, *combined)


def _stat_steps(
    source: Source, piece: Piece, count: int, looked_up: Iterator[tuple[Piece, Int64, Int64]]
) -> Int64:
    """The steps of a batch's statistics; looked up only where they are not simply all of its steps."""
    if piece.is_dense and count == piece.rows:
        return np.arange(piece.first_step, piece.last_step + 1)
    for at, step, stat_row in looked_up:
        if at.number == piece.number:
            return step[stat_row]
    raise Damaged(f"steps of rank {source.rank} in batch {piece.number}")


def _cold_stats(
    source: Source,
    stat: str,
    parts: Sequence[str],
    group: Sequence[Piece],
    tensor: str | None,
    tensors: Mapping[str, Mapping[str, Any]],
) -> Iterator[StatRows]:
    places: dict[int, int] = {}  # of the tensor, by chunk
    if tensor is not None:
        for piece in group:
            at = column(source.tensor_names(piece), tensor)
            if at is not None:
                places[piece.number] = at
        group = [piece for piece in group if piece.number in places]
    chunks = [piece.chunk for piece in group if piece.chunk is not None]
    wanted = None if tensor is None else {number: {tiles.place(at)[0]} for number, at in places.items()}
    step_of = {piece.number: (piece, step[stat_row]) for piece, step, stat_row in rows(source, group)}
    readers = {
        part: damage.each(
            tiles.stats(
                source.c, source.run, source.rank, [part], chunks, parts=wanted, objects=source.objects
            ),
            f"{part} of rank {source.rank} in {range_of(group)}",
        )
        for part in parts
        if chunks
    }
    ahead = {part: next(reader, None) for part, reader in readers.items()}
    while True:
        keys = [(tile.part, tile.chunk.number) for tile in ahead.values() if tile is not None]
        if not keys:
            return
        at, number = min(keys)
        piece, step = step_of[number]
        names = source.tensor_names(piece)[at * kinds.TILE_SERIES : (at + 1) * kinds.TILE_SERIES]
        row = slice(None)
        if tensor is not None:
            within = tiles.place(places[number])[1]
            names, row = (tensor,), slice(within, within + 1)
        found = {}
        masked = None
        for part, tile in ahead.items():
            if tile is not None and (tile.part, tile.chunk.number) == (at, number):
                masked = masked or tile.present is not None
                values = tile.values[row].T
                present = np.ones(values.shape, bool) if tile.present is None else tile.present[row].T
                found[part] = (values, present)
                ahead[part] = next(readers[part], None)
        with damage.reading(f"{stat} of rank {source.rank} in chunk {number}"):
            combined = combine(stat, found, names, tensors)
        if combined is not None:
            plain = stat in found and not masked
            yield StatRows(piece, names, step, combined[0], None if plain else combined[1])


def _blocks(source: Source, kind: int, name: str, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, bytes]]:
    """The blocks of the pieces that are batches, in order."""
    hot = {piece.number: piece for piece in pieces if piece.chunk is None}
    if not hot:
        return
    found = blocks.each(source.c, source.run, source.rank, kind, name, first_seq=min(hot), last_seq=max(hot))
    yield from ((hot[seq], data) for seq, data in found if seq in hot)


def _decoded(
    source: Source,
    kind: int,
    name: str,
    pieces: Sequence[Piece],
    decode: Callable[[bytes], Decoded],
    *,
    what: str,
) -> Iterator[tuple[Piece, Decoded]]:
    """The blocks of the pieces that are batches, in order, decoded or as they are remembered."""
    hot = [piece for piece in pieces if piece.chunk is None]
    keys = {piece.number: ("block", source.run, source.rank, kind, name, piece.number) for piece in hot}
    warm = source.warm or Warm(0)
    known = {piece.number: warm.get(keys[piece.number]) for piece in hot}
    missing = _blocks(source, kind, name, [piece for piece in hot if known[piece.number] is None])
    ahead = next(missing, None)
    for piece in hot:
        if known[piece.number] is not None:
            yield piece, known.pop(piece.number)
        elif ahead is not None and ahead[0].number == piece.number:
            with damage.reading(f"{what} of rank {source.rank} in batch {piece.number}"):
                found = decode(ahead[1])
            size = sum(part.nbytes for part in found if isinstance(part, np.ndarray))
            warm.keep(keys[piece.number], found, size)
            yield piece, found
            ahead = next(missing, None)


def column(names: Sequence[str], tensor: str) -> int | None:
    """Where the tensor is among sorted names; None if it is not."""
    at = bisect_left(names, tensor)
    return at if at < len(names) and names[at] == tensor else None


def range_of(group: Sequence[Piece]) -> str:
    """The chunks of a group, for a message."""
    if not group:
        return "no chunk"
    first, last = group[0].number, group[-1].number
    return f"chunk {first}" if first == last else f"chunks {first} to {last}"


def _groups(pieces: Sequence[Piece], size: int = AT_ONCE) -> Iterator[Sequence[Piece]]:
    in_order = sorted(pieces, key=lambda piece: piece.number)
    for at in range(0, len(in_order), size):
        yield in_order[at : at + size]

"""All statistics of all tensors at one step, and which statistics a tensor has at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from floatscope.protocol.batch import Bool, Int64
from floatscope_server import tables
from floatscope_server.codec import unpack
from floatscope_server.derived import DERIVED, combine, needs
from floatscope_server.store import blocks, chunks, damage, frames, kinds, raw, tiles
from floatscope_server.store.frames import StatFrame
from floatscope_server.store.raw import Source
from floatscope_server.store.series_reads import View
from floatscope_server.store.stretches import Piece

_block = tables.block


@dataclass(frozen=True, eq=False)
class Picture:
    """What the tensors looked like. step: the newest of the statistics', which may be of different steps.

    stats: name -> values and presence of ``names`` [S].
    """

    step: int
    segment: int
    names: Sequence[str]
    stats: Mapping[str, StatFrame]


@dataclass(frozen=True, eq=False)
class Histograms:
    """Counts [S, 64] of ``names`` by exponent at one step."""

    step: int
    names: Sequence[str]
    counts: NDArray[np.uint32]


def last(source: Source, *, segment: int | None, tensors: Mapping[str, Mapping[str, Any]]) -> Picture | None:
    """The rank's last frame, with derived statistics; None if it sent none, or none in that segment."""
    with damage.reading(f"last frame of rank {source.rank}"):
        found = frames.last(source.c, source.run, source.rank)
        if found is None or segment not in (None, found.segment):
            return None
        names = source.tensor_tables.get(source.c, found.tensor_table).names
        stats = dict(found.stats) | _derived(found.stats, names, tensors)
    return Picture(found.step, found.segment, names, stats)


def at_or_before(
    seen: View, *, stored: Sequence[str], tensors: Mapping[str, Mapping[str, Any]]
) -> Picture | None:
    """The newest step of the view at which statistics were taken, and all of them at that step."""
    found = _newest_row(seen)
    if found is None:
        return None
    piece, step = found
    names = seen.source.tensor_names(piece)
    stats: dict[str, StatFrame] = {}
    for stat in stored:
        values, present = np.zeros(len(names), np.float32), np.zeros(len(names), bool)
        for part in raw.stats(seen.source, stat, (stat,), [piece], tensors=tensors):
            first = raw.column(names, part.names[0]) or 0
            row = int(np.searchsorted(part.step, step))
            here = slice(first, first + len(part.names))
            values[here] = part.values[row]
            present[here] = True if part.present is None else part.present[row]
        if present.any():
            stats[stat] = StatFrame(step, values, present)
    return Picture(step, piece.segment, names, stats | _derived(stats, names, tensors))


def histograms(seen: View) -> Histograms | None:
    """The newest histograms of the view."""
    source = seen.source
    hot = _hot_histograms(source, [part.piece for part in seen.stretches if part.piece.chunk is None])
    for part in reversed(seen.stretches):
        piece, chunk = part.piece, part.piece.chunk
        if piece.number not in hot if chunk is None else not chunk.hist_rows:
            continue
        with damage.reading(f"histograms of rank {source.rank} in batch {piece.number}"):
            step, hist_row = _hist_steps(source, piece)
            rows = np.flatnonzero((step[hist_row] >= part.low) & (step[hist_row] <= part.high))
            if len(rows):
                row = int(rows[-1])
                names, counts = _counts(source, piece, row)
                return Histograms(int(step[hist_row[row]]), names, counts)
    return None


def stats_of(source: Source, pieces: Sequence[Piece], stored: Sequence[str]) -> dict[str, set[str]]:
    """Tensor -> its stored statistics, as the newest batch and the newest chunk with statistics have them."""
    out: dict[str, set[str]] = {}
    with_tensors = [piece for piece in pieces if piece.tensor_table is not None]
    cold = [piece for piece in with_tensors if piece.chunk is not None]
    hot = [piece for piece in with_tensors if piece.chunk is None]
    for piece in (*cold[-1:], *hot[-1:]):
        for stat in stored:
            for names, has in _has(source, piece, stat):
                for s in np.flatnonzero(has).tolist():
                    out.setdefault(names[s], set()).add(stat)
    return out


def _has(source: Source, piece: Piece, stat: str) -> Iterator[tuple[Sequence[str], Bool]]:
    chunk = piece.chunk
    if chunk is None or not chunk.stat_widths or stat in DERIVED:
        for part in raw.stats(source, stat, (stat,), [piece], tensors={}):
            has = np.ones(len(part.names), bool) if part.present is None else part.present.any(axis=0)
            yield part.names, np.asarray(has, bool)
        return
    found = chunks.levels(
        *(source.c, source.run, source.rank, kinds.STAT, stat, chunk.stat_widths[-1]),
        chunks=[chunk],
        thin=True,
    )
    for _number, at, level in damage.each(found, f"levels of {stat} in chunk {piece.number}"):
        names = source.tensor_names(piece)[at * kinds.LEVEL_SERIES : (at + 1) * kinds.LEVEL_SERIES]
        yield names, np.asarray(level.count.any(axis=1), bool)


def _newest_row(seen: View) -> tuple[Piece, int] | None:
    for part in reversed(seen.stretches):
        for piece, step, stat_row in raw.rows(seen.source, [part.piece]):
            inside = step[stat_row]
            inside = inside[(inside >= part.low) & (inside <= part.high)]
            if len(inside):
                return piece, int(inside[-1])
    return None


def _derived(
    stats: Mapping[str, StatFrame], names: Sequence[str], tensors: Mapping[str, Mapping[str, Any]]
) -> dict[str, StatFrame]:
    """What follows from statistics of one step; those of different steps do not belong together."""
    out: dict[str, StatFrame] = {}
    for stat in DERIVED:
        parts = needs(stat, tuple(stats))
        if not parts or stat in stats or len({stats[part].step for part in parts}) != 1:
            continue
        rows = {part: (stats[part].values[None], stats[part].present[None]) for part in parts}
        made = combine(stat, rows, names, tensors)
        if made is not None:
            out[stat] = StatFrame(stats[parts[0]].step, made[0][0], made[1][0])
    return out


def _hot_histograms(source: Source, pieces: Sequence[Piece]) -> set[int]:
    if not pieces:
        return set()
    seqs = [piece.number for piece in pieces]
    query = select(_block.c.seq).where(
        *(_block.c.run == source.run, _block.c.rank == source.rank, _block.c.kind == kinds.HISTOGRAM),
        *(_block.c.name == "", _block.c.seq.between(min(seqs), max(seqs))),
    )
    return set(source.c.execute(query).scalars())


def _hist_steps(source: Source, piece: Piece) -> tuple[Int64, Int64]:
    if piece.chunk is not None:
        (found,) = tiles.rows(source.c, source.run, source.rank, [piece.chunk], objects=source.objects)
        return found.step, found.hist_row
    ((_seq, data),) = _block_of(source, kinds.ROWS, piece)
    step, _time, _stat_row, hist_row = unpack(data)
    return step, hist_row


def _counts(source: Source, piece: Piece, row: int) -> tuple[Sequence[str], NDArray[np.uint32]]:
    names = source.tensor_names(piece)
    if piece.chunk is None:
        ((_seq, data),) = _block_of(source, kinds.HISTOGRAM, piece)
        return names, unpack(data)[0][row]
    kept: list[str] = []
    counts: list[NDArray[np.uint32]] = []
    found = tiles.histograms(source.c, source.run, source.rank, [piece.chunk], objects=source.objects)
    for tile in found:
        here = tile.present[:, row]
        of_tile = names[tile.part * kinds.TILE_SERIES :][: len(here)]
        kept += [name for name, there in zip(of_tile, here, strict=True) if there]
        counts.append(tile.counts[here, row])
    return kept, np.concatenate(counts)


def _block_of(source: Source, kind: int, piece: Piece) -> Iterator[tuple[int, bytes]]:
    return blocks.each(
        *(source.c, source.run, source.rank, kind), first_seq=piece.number, last_seq=piece.number
    )

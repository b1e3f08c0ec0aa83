"""Chosen statistics of all tensors at one step, and the histograms of some tensors at or before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from floatscope.protocol.batch import Bool, Float32, Int64
from floatscope_server.store import damage, frame_reads, kinds, raw, tiles
from floatscope_server.store.chunks import Chunk
from floatscope_server.store.raw import Source
from floatscope_server.store.series_reads import View, view
from floatscope_server.store.stretches import Piece, Stretch
from floatscope_server.store.warm import Warm

MOST_PIECES = 64
"""Chunks and batches looked at for the newest step that has a statistic."""
MOST_HISTOGRAMS = 4
"""Steps whose histograms are read: between those of all tensors there may be some of suspects alone."""
OVERHEAD_BYTES = 1_000
KEPT_BYTES = 1 << 20
"""Values of one statistic of a chunk that are remembered: with seven statistics, about 7 MB."""
BYTES_A_VALUE = 5
FARTHEST_AFTER = 4_096
"""Steps after the one asked for in which a nearer histogram is looked for."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One step: statistic -> values and presence of ``names`` [S]."""

    step: int
    names: Sequence[str]
    stats: Mapping[str, tuple[Float32, Bool]]

    def values(self, stat: str) -> Float32:
        """Of every tensor; NaN also where there is none, see ``present``."""
        found = self.stats.get(stat)
        return np.full(len(self.names), np.nan, np.float32) if found is None else found[0]

    def present(self, stat: str) -> Bool:
        """Whether each tensor has it."""
        found = self.stats.get(stat)
        return np.zeros(len(self.names), bool) if found is None else found[1]


@dataclass(frozen=True)
class Sampled:
    """The counts of a tensor by exponent, and the step they are of."""

    step: int
    counts: tuple[int, ...]


def frame(seen: View, stats: Sequence[str], *, key: str) -> Frame | None:
    """The newest step of the view at which ``key`` was taken, and the given statistics at that step."""
    for part in islice(reversed(seen.stretches), MOST_PIECES):
        step = _newest(seen, part, key)
        if step is not None:
            return _at(seen, part.piece, step, stats)
    return None


def sampled(seen: View, names: Collection[str], *, at: int) -> dict[str, Sampled]:
    """The histogram of each of these tensors that was taken nearest to the step ``at``, the view's last.

    One from before is preferred to one as far after.
    """
    found: dict[str, Sampled] = {}
    here = seen
    for _ in range(MOST_HISTOGRAMS):
        one = _take(here, names, found)
        if one is None or one == 0 or all(name in found for name in names):
            break
        here = view(here.source, replace(here.span, last=one - 1), with_tensors=True)
    distance = max((at - one.step for one in found.values()), default=FARTHEST_AFTER)
    found |= _nearer(seen, names, at, at + min(distance, FARTHEST_AFTER) - 1)
    return found


def _nearer(seen: View, names: Collection[str], at: int, last: int) -> dict[str, Sampled]:
    """Histograms of the steps after ``at`` up to ``last``, of each tensor the first."""
    after: dict[str, Sampled] = {}
    for _ in range(MOST_HISTOGRAMS):
        if last <= at:
            break
        here = view(seen.source, replace(seen.span, first=at + 1, last=last), with_tensors=True)
        earlier: dict[str, Sampled] = {}
        one = _take(here, names, earlier)
        if one is None:
            break
        after |= earlier
        last = one - 1
    return after


def _take(seen: View, names: Collection[str], found: dict[str, Sampled]) -> int | None:
    """Adds the newest histograms of the view for tensors that have none yet; returns their step."""
    one = frame_reads.histograms(seen)
    if one is None:
        return None
    for at, name in enumerate(one.names):
        if name in names and name not in found and one.counts[at].any():
            found[name] = Sampled(one.step, tuple(one.counts[at].tolist()))
    return one.step


def _newest(seen: View, part: Stretch, stat: str) -> int | None:
    taken = _some(seen, part.piece, stat, part.high).taken
    inside = taken[(taken >= part.low) & (taken <= part.high)]
    return int(inside[-1]) if len(inside) else None


def _at(seen: View, piece: Piece, step: int, stats: Sequence[str]) -> Frame:
    names = seen.source.tensor_names(piece)
    out: dict[str, tuple[Float32, Bool]] = {}
    for stat in stats:
        found = _some(seen, piece, stat, step)
        row = int(np.searchsorted(found.step, step))
        if row < len(found.step) and found.step[row] == step:
            out[stat] = (found.values[row], found.present[row])
    return Frame(step, names, out)


@dataclass(frozen=True, eq=False)
class _Some:
    """One statistic of a piece: the steps at which any tensor has it, and of some of them, ``step`` [K], the
    values and presence of all tensors [K, S].
    """

    taken: Int64
    step: Int64
    values: Float32
    present: Bool

    def has(self, at: int) -> bool:
        """Whether the values of the newest step up to ``at`` are here, if there is such a step."""
        place = int(np.searchsorted(self.taken, at, side="right")) - 1
        return place < 0 or bool(np.isin(self.taken[place], self.step))

    @property
    def size_bytes(self) -> int:
        return self.taken.nbytes + self.step.nbytes + self.values.nbytes + self.present.nbytes


def _some(seen: View, piece: Piece, stat: str, at: int) -> _Some:
    """One statistic of all tensors of the piece, with the values of the newest step up to ``at``.

    What was read of a chunk is remembered as far as it is small: who scrubs asks for its steps one after the
    other.
    """
    source = seen.source
    warm = source.warm or Warm(0)
    key = ("frames", source.run, source.rank, piece.chunk, stat)
    known: _Some | None = None if piece.chunk is None else warm.get(key)
    if known is None or not known.has(at):
        known = _read(source, piece, stat, at)
        if piece.chunk is not None:
            warm.keep(key, known, known.size_bytes + OVERHEAD_BYTES)
    return known


def _read(source: Source, piece: Piece, stat: str, at: int) -> _Some:
    names = source.tensor_names(piece)
    step, parts = _chunk(source, piece, piece.chunk, stat) if piece.chunk else _batch(source, piece, stat)
    some = np.zeros(len(step), bool)
    for _first, _values, there in parts:
        some |= True if there is None else there.any(axis=1)
    taken = step[some]
    chosen = kept(taken, at, most=KEPT_BYTES // (BYTES_A_VALUE * max(1, len(names))))
    rows = np.flatnonzero(some)[chosen]
    values = np.zeros((len(rows), len(names)), np.float32)
    present = np.zeros((len(rows), len(names)), bool)
    for first, found, there in parts:
        here = slice(first, first + found.shape[1])
        values[:, here] = found[rows]
        present[:, here] = True if there is None else there[rows]
    return _Some(taken, step[rows], values, present)


_Part = tuple[int, Float32, Bool | None]  # first column, values [D, s], presence [D, s] or None for all


def _chunk(source: Source, piece: Piece, chunk: Chunk, stat: str) -> tuple[Int64, list[_Part]]:
    ((_piece, step, stat_row),) = raw.rows(source, [piece])
    found = tiles.stats(source.c, source.run, source.rank, [stat], [chunk], objects=source.objects)
    what = f"{stat} of rank {source.rank} in chunk {piece.number}"
    return step[stat_row], [
        (
            tile.part * kinds.TILE_SERIES,
            tile.values.T,
            None if tile.present is None else tile.present.T,
        )
        for tile in damage.each(found, what)
    ]


def _batch(source: Source, piece: Piece, stat: str) -> tuple[Int64, list[_Part]]:
    found = list(raw.stats(source, stat, (stat,), [piece], tensors={}))
    step = found[0].step if found else np.empty(0, np.int64)
    return step, [(0, one.values, one.present) for one in found]


def kept(taken: Int64, at: int, *, most: int) -> Int64:
    """Places of the steps whose values are kept, about ``most``, at least one: the newest up to ``at``, those
    around it, and the newest up to each multiple of a power of two, where columns of a heat map begin.
    """
    if len(taken) <= most:
        return np.arange(len(taken))
    width = 1
    while (taken[-1] - taken[0]) // width > most // 2:
        width *= 2
    begins = np.arange(taken[0] // width, taken[-1] // width + 1) * width
    spread = np.searchsorted(taken, begins, side="right") - 1
    own = max(0, int(np.searchsorted(taken, at, side="right")) - 1)
    around = np.arange(max(0, own - most // 4), min(len(taken), own + most // 4 + 1))
    return np.union1d(spread[spread >= 0] if most > 1 else spread[:0], around)

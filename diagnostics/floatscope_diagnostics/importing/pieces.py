"""Cuts what a reader gives into batches for a server: one rank and segment, ascending steps, a fair size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from floatscope.protocol.batch import Batch

MOST_ROWS = 1024  # a batch is judged in one transaction; this many rows without tensors take milliseconds
MOST_BYTES = 8 << 20  # unpacked, a thirtieth of what a server takes


@dataclass
class RankCutter:
    """Batches of one rank, in order. segment: how often its steps have gone back."""

    segment: int = 0
    last_step: int | None = None
    _held: list[Batch] = field(default_factory=list)
    _rows: int = 0
    _bytes: int = 0

    def add(self, batch: Batch) -> Iterator[Batch]:
        """Takes what the reader gives next; yields what is ready to be sent."""
        for ascending in self._ascending(batch):
            for part in _small(ascending):
                if self._held and not self._fits(part):
                    yield from self.flush()
                self._held.append(part)
                self._rows += len(part)
                self._bytes += _nbytes(part)

    def flush(self) -> Iterator[Batch]:
        """The rest."""
        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        if held:
            yield joined(held)

    def _ascending(self, batch: Batch) -> Iterator[Batch]:
        """Parts whose steps ascend, each with the segment it belongs to."""
        if not len(batch):
            return
        cuts = [0, *(np.flatnonzero(np.diff(batch.step) <= 0) + 1).tolist(), len(batch)]
        for start, stop in itertools.pairwise(cuts):
            if self.last_step is not None and int(batch.step[start]) <= self.last_step:
                self.segment += 1
            self.last_step = int(batch.step[stop - 1])
            yield replace(batch.rows(start, stop), segment=self.segment)

    def _fits(self, part: Batch) -> bool:
        first = self._held[0]
        return (
            part.segment == first.segment
            and part.scalar_names == first.scalar_names
            and part.tensor_names == first.tensor_names
            and set(part.stats) == set(first.stats)
            and self._rows + len(part) <= MOST_ROWS
            and self._bytes + _nbytes(part) <= MOST_BYTES
        )


def joined(batches: Sequence[Batch]) -> Batch:
    """One batch of several with the same columns and the same segment."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    offsets = np.cumsum([0, *(len(b) for b in batches[:-1])])
    return replace(
        first,
        step=np.concatenate([b.step for b in batches]),
        time=np.concatenate([b.time for b in batches]),
        scalars=np.concatenate([b.scalars for b in batches]),
        scalars_present=np.concatenate([b.scalars_present for b in batches]),
        stat_row=np.concatenate([b.stat_row + at for b, at in zip(batches, offsets, strict=True)]),
        stats={n: np.concatenate([b.stats[n] for b in batches]) for n in first.stats},
        stats_present={n: np.concatenate([b.stats_present[n] for b in batches]) for n in first.stats},
        hist_row=np.concatenate([b.hist_row + at for b, at in zip(batches, offsets, strict=True)]),
        hist_log2=_hists(batches),
    )


def _hists(batches: Sequence[Batch]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    with_any = [b.hist_log2 for b in batches if len(b.hist_row)]
    return np.concatenate(with_any) if with_any else batches[0].hist_log2


def _small(batch: Batch) -> Iterator[Batch]:
    """The batch in parts that are not too large."""
    rows = max(1, min(MOST_ROWS, MOST_BYTES * len(batch) // max(_nbytes(batch), 1)))
    for start in range(0, len(batch), rows):
        yield batch.rows(start, min(start + rows, len(batch)))


def _nbytes(batch: Batch) -> int:
    stats = sum(a.nbytes for a in (*batch.stats.values(), *batch.stats_present.values()))
    return (
        stats + batch.scalars.nbytes + batch.scalars_present.nbytes + 16 * len(batch) + batch.hist_log2.nbytes
    )

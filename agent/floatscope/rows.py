"""One step as it travels inside the agent, and the columns it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch, Bool, Float32
from floatscope.protocol.names import HIST_BINS
from floatscope.protocol.runinfo import TensorTable

_CELL_BYTES = 5  # a float32 and its presence
_SCALAR_BYTES = 120  # a Python float, its name's reference and dictionary slot
_ROW_BYTES = 600  # objects of an empty row
_HIST_BYTES = 4 * HIST_BINS


@dataclass(frozen=True, eq=False)
class Block:
    """Statistics of some tensors at one step.

    names: n tensors; the same tuple object from step to step keeps packing cheap.
    stats: name -> float32 [n].  present: name -> bool [n]; a statistic without a mask is present everywhere.
    """

    names: tuple[str, ...]
    stats: Mapping[str, Float32]
    present: Mapping[str, Bool] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Histograms:
    """Histograms of some tensors at one step.

    names: n tensors.  counts: uint32 [n, HIST_BINS], finite non-zero elements by exponent of two, from -40 to
    23, clamped at the ends.
    """

    names: tuple[str, ...]
    counts: NDArray[np.uint32]


@dataclass(eq=False)
class Row:
    """What is known about one step of this rank.

    histograms: the largest part of a row by far, of few steps; what has to be given up goes here first.
    late: work left for the sender's thread, which turns raw readings into scalars and blocks.
    late_bytes: memory that these readings hold.
    Blocks that come later in the list win where two give the same statistic of a tensor.
    """

    step: int
    time: float
    scalars: dict[str, float] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    late: list[Callable[[Row], None]] = field(default_factory=list)
    histograms: list[Histograms] = field(default_factory=list)
    late_bytes: int = 0

    def with_default(self, name: str, value: float) -> Row:
        """A row with one scalar more, unless it has it; this one, which others may hold, stays as it is."""
        return replace(self, scalars={name: value, **self.scalars})

    @property
    def nbytes(self) -> int:
        """Approximate size in memory."""
        cells = sum(len(block.names) * len(block.stats) for block in self.blocks)
        hists = sum(part.counts.nbytes for part in self.histograms)
        return _ROW_BYTES + _SCALAR_BYTES * len(self.scalars) + _CELL_BYTES * cells + hists + self.late_bytes


class Columns:
    """Turns rows into batches whose tensor columns stay the same once all tensors have been seen.

    A tensor table that does not change is sent once; so the columns are all tensors met so far.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._names: tuple[str, ...] = ()
        self._places: dict[tuple[str, ...], NDArray[np.intp]] = {}
        self._stat_names: set[str] = set()

    @property
    def row_bytes(self) -> int:
        """Bytes of one step in a batch: every statistic met so far for every tensor met so far."""
        return len(self._names) * len(self._stat_names) * _CELL_BYTES

    def fitting(self, rows: Sequence[Row], most_bytes: int) -> int:
        """How many of the first rows, at least 1, make a batch of about this size."""
        left = float(most_bytes)
        for count, row in enumerate(rows):
            width = len(self._known) + len(self._new_names(row))
            stats = len(self._stat_names.union(*(block.stats for block in row.blocks)))
            left -= _SCALAR_BYTES * len(row.scalars)
            left -= width * stats * _CELL_BYTES if row.blocks else 0
            left -= width * _HIST_BYTES if row.histograms else 0
            if left < 0:
                return max(count, 1)
        return max(len(rows), 1)

    def batch(self, rows: Sequence[Row]) -> Batch:
        """The rows, whose steps ascend, as one batch."""
        self._meet(rows)
        scalar_names = tuple(sorted({name for row in rows for name in row.scalars}))
        column = {name: k for k, name in enumerate(scalar_names)}
        scalars = np.zeros((len(rows), len(scalar_names)))
        scalars_present = np.zeros(scalars.shape, bool)
        for t, row in enumerate(rows):
            for name, value in row.scalars.items():
                scalars[t, column[name]] = value
                scalars_present[t, column[name]] = True
        stat_rows = [t for t, row in enumerate(rows) if row.blocks]
        stats, present = self._stats([rows[t].blocks for t in stat_rows])
        hist_rows = [t for t, row in enumerate(rows) if row.histograms]
        return Batch(
            step=np.array([row.step for row in rows], np.int64),
            time=np.array([row.time for row in rows], np.float64),
            scalar_names=scalar_names,
            scalars=scalars,
            scalars_present=scalars_present,
            tensor_names=self._names if stat_rows or hist_rows else (),
            stat_row=np.array(stat_rows, np.int64),
            stats=stats,
            stats_present=present,
            hist_row=np.array(hist_rows, np.int64),
            hist_log2=self._histograms([rows[t].histograms for t in hist_rows]),
        )

    def _meet(self, rows: Sequence[Row]) -> None:
        new = {name for row in rows for name in self._new_names(row)}
        if new:
            self._known |= new
            self._names = tuple(sorted(self._known))
            self._places.clear()

    def _new_names(self, row: Row) -> set[str]:
        """Tensors of the row that have no column yet."""
        parts: tuple[Block | Histograms, ...] = (*row.blocks, *row.histograms)
        return {name for part in parts if part.names not in self._places for name in part.names} - self._known

    def _place(self, names: tuple[str, ...]) -> NDArray[np.intp]:
        place = self._places.get(names)
        if place is None:
            index = {name: s for s, name in enumerate(self._names)}
            place = self._places[names] = np.array([index[name] for name in names], np.intp)
        return place

    def _stats(self, steps: Sequence[Sequence[Block]]) -> tuple[dict[str, Float32], dict[str, Bool]]:
        shape = (len(steps), len(self._names))
        stats: dict[str, Float32] = {}
        present: dict[str, Bool] = {}
        for d, blocks in enumerate(steps):
            for block in blocks:
                place = self._place(block.names)
                for stat, values in block.stats.items():
                    if stat not in stats:
                        self._stat_names.add(stat)
                        stats[stat] = np.zeros(shape, np.float32)
                        present[stat] = np.zeros(shape, bool)
                    mask = block.present.get(stat)
                    where = place if mask is None else place[mask]
                    stats[stat][d, where] = values if mask is None else values[mask]
                    present[stat][d, where] = True
        return stats, present

    def _histograms(self, steps: Sequence[Sequence[Histograms]]) -> NDArray[np.uint32]:
        counts = np.zeros((len(steps), len(self._names) if steps else 0, HIST_BINS), np.uint32)
        for h, parts in enumerate(steps):
            for part in parts:
                counts[h, self._place(part.names)] = part.counts
        return counts


def table_of(batch: Batch, tensors: Mapping[str, Mapping[str, object]]) -> TensorTable:
    """The tensor table of a batch: what is known of each of its columns."""
    return {name: dict(tensors.get(name, {})) for name in batch.tensor_names}

"""Which batches become a chunk. Pure: from what a rank's hot batches look like to a list of plans.

A plan depends only on the batches up to its last one and on the chunk before, so whoever makes it again after
a crash makes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from floatscope.protocol.names import HIST_BINS
from floatscope_server.store.chunks import Chunk


@dataclass(frozen=True)
class Limits:
    """How much a chunk may hold, and what is worth one. A batch too big by itself is one all the same.

    merged_rows: a chunk above is not opened again for a few rows more. cells: rows with statistics x tensors
    x statistics, 64 MiB of float32. series_cells: of one statistic, which is held in memory while its tiles
    are made. hot_batches: so many make a chunk even if they are small, since readers open each of them.
    portion_bytes: about what one transaction writes or deletes, so that no batch waits long for it.
    """

    rows: int = 4096
    merged_rows: int = 2048
    cells: int = 1 << 24
    series_cells: int = 1 << 22
    histogram_cells: int = 1 << 23
    scalar_cells: int = 1 << 22
    hot_batches: int = 512
    portion_bytes: int = 1 << 20


LIMITS = Limits()


@dataclass(frozen=True)
class Content:
    """What a batch or a chunk holds. tensors: the names of its columns."""

    rows: int
    stat_rows: int
    hist_rows: int
    tensors: frozenset[str]
    stats: frozenset[str]
    scalars: frozenset[str]

    def with_(self, other: Content) -> Content:
        """Both together."""
        return Content(
            self.rows + other.rows,
            self.stat_rows + other.stat_rows,
            self.hist_rows + other.hist_rows,
            self.tensors if other.tensors is self.tensors else self.tensors | other.tensors,
            self.stats | other.stats,
            self.scalars | other.scalars,
        )

    def fits(self, limits: Limits) -> bool:
        """Whether a chunk may hold so much."""
        series = self.stat_rows * len(self.tensors)
        return (
            self.rows <= limits.rows
            and series <= limits.series_cells
            and series * len(self.stats) <= limits.cells
            and self.hist_rows * len(self.tensors) * HIST_BINS <= limits.histogram_cells
            and self.rows * len(self.scalars) <= limits.scalar_cells
        )


@dataclass(frozen=True)
class HotBatch:
    """A batch in hot blocks; a hole of lost steps has no content."""

    seq: int
    segment: int
    tensor_table: int | None
    content: Content | None


@dataclass(frozen=True)
class Plan:
    """Batches that become one chunk, with the small chunk before them that is taken in, if any.

    Without content there is nothing to write: the batches are holes.
    """

    batches: tuple[HotBatch, ...]
    merged: Chunk | None = None
    content: Content | None = None

    @property
    def first_seq(self) -> int:
        return self.batches[0].seq if self.merged is None else self.merged.first_seq

    @property
    def number(self) -> int:
        return self.batches[-1].seq

    @property
    def hot_rows(self) -> int:
        return sum(b.content.rows for b in self.batches if b.content is not None)


@dataclass
class _Group:
    limits: Limits
    merged: Chunk | None = None
    content: Content | None = None
    batches: list[HotBatch] = field(default_factory=list)

    def takes(self, batch: HotBatch) -> bool:
        if self.batches and self.batches[-1].segment != batch.segment:
            return False
        if batch.content is None or self.content is None:
            return True
        return self.content.with_(batch.content).fits(self.limits)

    def add(self, batch: HotBatch) -> None:
        self.batches.append(batch)
        if batch.content is not None:
            self.content = batch.content if self.content is None else self.content.with_(batch.content)

    def plan(self) -> Plan:
        merged = None if all(b.content is None for b in self.batches) else self.merged
        return Plan(tuple(self.batches), merged, None if merged is None and self.merged else self.content)


def plans(
    hot: Sequence[HotBatch], before: tuple[Chunk, Content] | None, *, whole: bool, limits: Limits
) -> Iterator[Plan]:
    """The chunks to make of the hot batches, in order.

    before: the chunk right before them, if there is one. whole: the last chunk need not be full, since no
    more batches are expected soon.
    """
    if not hot:
        return
    group = _Group(limits)
    if before is not None and _is_small(before[0], hot[0], limits):
        seeded = _Group(limits, before[0], before[1])
        if seeded.takes(hot[0]):
            group = seeded
    for batch in hot:
        if not group.takes(batch):
            yield group.plan()
            group = _Group(limits)
        group.add(batch)
    if whole or (group.content is not None and group.content.rows == limits.rows):
        yield group.plan()


def _is_small(chunk: Chunk, first: HotBatch, limits: Limits) -> bool:
    return chunk.segment == first.segment and chunk.rows <= limits.merged_rows

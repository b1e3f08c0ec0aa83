"""Batches one after the other, for whoever reads a run from front to back."""

from __future__ import annotations

from sqlalchemy import Connection

from floatscope.protocol.batch import Batch, lost_batch
from floatscope_server.store import batches, blocks, chunk_batches, chunks
from floatscope_server.store.batches import BatchKey
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects

WINDOW_BYTES = 64 * 1024 * 1024
FLOOR_BYTES = 8 * 1024 * 1024
"""A rank's share of the window is not less, or a chunk would be decoded again for each of its batches."""
MOST_BYTES = 512 * 1024 * 1024
"""But all shares together are not more, however many ranks there are."""


def share_bytes(ranks: int) -> int:
    """What each of so many ranks, read side by side, may hold of decoded batches."""
    ranks = max(ranks, 1)
    return max(WINDOW_BYTES // ranks, min(FLOOR_BYTES, MOST_BYTES // ranks))


class BatchSequence:
    """Loads the batches of one run; a chunk is decoded once for as many of them as fit into a window.

    ranks: how many ranks are read side by side; they share the window. tensors: False leaves out statistics
    and histograms. window_bytes: for all ranks together, in place of ``share_bytes`` for each.
    """

    def __init__(
        self,
        run: int,
        *,
        tensor_tables: TensorTables,
        objects: Objects | None = None,
        ranks: int = 1,
        tensors: bool = True,
        window_bytes: int | None = None,
    ) -> None:
        self._run = run
        self._tensor_tables = tensor_tables
        self._objects = objects
        self._tensors = tensors
        self._window_bytes = share_bytes(ranks) if window_bytes is None else window_bytes // max(ranks, 1)
        self._ahead: dict[int, dict[int, Batch]] = {}

    def load(self, c: Connection, key: BatchKey) -> Batch:
        """The batch behind a key, bit for bit."""
        if key.lost:
            return lost_batch(key.first_step, key.last_step)
        ahead = self._ahead.get(key.rank, {})
        if key.seq not in ahead:
            ahead.clear()  # before more is decoded
            chunk = chunks.of_seq(c, self._run, key.rank, key.seq)
            if chunk is None:
                return self._hot(c, key)
            ahead = self._ahead[key.rank] = chunk_batches.cut(
                c,
                self._run,
                chunk,
                first_seq=key.seq,
                most_bytes=self._window_bytes,
                tensor_tables=self._tensor_tables,
                objects=self._objects,
                tensors=self._tensors,
            )
        return ahead[key.seq]

    def _hot(self, c: Connection, key: BatchKey) -> Batch:
        names: tuple[str, ...] = ()
        if self._tensors and key.tensor_table is not None:
            names = self._tensor_tables.get(c, key.tensor_table).names
        stats = batches.stat_names(c, self._run) if self._tensors else ()
        return blocks.read(c, self._run, key.rank, key.seq, stats=stats, tensor_names=names)

"""Batches of every shape, and what chunks must say of them, found by looking at every value."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch, lost_batch
from floatscope.protocol.names import HIST_BINS
from floatscope.protocol.runinfo import RunInfo
from floatscope_server.database import Database
from floatscope_server.rewriting import Rewriter
from floatscope_server.store import batches, frames, runs
from floatscope_server.store.batches import BatchKey
from floatscope_server.store.runs import RankPosition
from floatscope_server.store.sequence import BatchSequence
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects

ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30], np.float32)


@dataclass(frozen=True)
class Shape:
    """Of one batch. rows: 0 for a hole. table: which tensors, 0 for none. every: rows with statistics."""

    rows: int
    table: int = 1
    every: int = 1
    gap: int = 1
    resumes: bool = False
    stats: tuple[str, ...] = ("amax", "scale")
    scalars: tuple[str, ...] = ("loss", "lr")
    histograms: int = 0
    present: float = 1.0
    odd: float = 0.0


def tensor_names(table: int) -> tuple[str, ...]:
    """Tables overlap, so that the tensors of a chunk are the union of several."""
    names = {f"blocks.{i}.mlp.fc{table % 3}/input" for i in range(table)} | {"shared/weight"}
    return tuple(sorted(names)) if table else ()


def make(shape: Shape, first_step: int, rng: np.random.Generator) -> Batch:
    """A batch with numbers of all kinds."""
    if not shape.rows:
        return lost_batch(first_step, first_step + shape.gap)
    names = tensor_names(shape.table)
    stat_row = np.arange(0, shape.rows, shape.every) if names else np.empty(0, np.int64)
    hist_row = stat_row[: shape.histograms]

    def numbers(*size: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        values = np.exp2(rng.integers(-9, 9, size)) * rng.normal(1, 0.1, size)
        values = np.where(rng.random(size) < shape.odd, rng.choice(ODD, size), values)
        present = rng.random(size) < shape.present
        return np.where(present, values, 0.0), present

    stats, stats_present = {}, {}
    for name in sorted(shape.stats) if names else ():
        values, present = numbers(len(stat_row), len(names))
        stats[name], stats_present[name] = values.astype(np.float32), present
    scalars, scalars_present = numbers(shape.rows, len(shape.scalars))
    step = first_step + np.cumsum(rng.integers(1, shape.gap + 1, shape.rows)) - 1
    hist: NDArray[np.uint32] = rng.integers(0, 99, (len(hist_row), len(names), HIST_BINS)).astype(np.uint32)
    return Batch(
        step=step.astype(np.int64),
        time=np.where(rng.random(shape.rows) < 0.1, np.nan, 1.7e9 + step),
        scalar_names=shape.scalars,
        scalars=scalars,
        scalars_present=scalars_present,
        tensor_names=names,
        stat_row=stat_row,
        stats=stats,
        stats_present=stats_present,
        hist_row=hist_row,
        hist_log2=hist if len(hist_row) else np.empty((0, 0, HIST_BINS), np.uint32),
    )


class Story:
    """A run that is written to a database as ingest does, and remembered to compare with."""

    def __init__(self, database: Database, *, seed: int = 0, objects: Objects | None = None) -> None:
        self.database = database
        self.objects = objects
        self.tables = TensorTables()
        self.rng = np.random.default_rng(seed)
        self.sent: dict[tuple[int, int], tuple[Batch, int]] = {}
        self._next: dict[int, tuple[int, int, int]] = {}
        described = {name: {"format": "e4m3"} for table in range(9) for name in tensor_names(table)}
        with database.write() as c:
            name = f"r{secrets.token_hex(4)}"
            runs.create(c, name, RunInfo(name=name, tensors=described), summary="", now=1.0)
            self.run = runs.get(c, name).id

    def send(self, shape: Shape, *, rank: int = 0) -> Batch:
        seq, step, segment = self._next.get(rank, (0, 0, 0))
        if shape.resumes and step:
            step, segment = max(step - 7, 0), segment + 1
        batch = make(shape, step, self.rng)
        first, last = batch.lost or (int(batch.step[0]), int(batch.step[-1]))
        key = BatchKey(
            rank,
            seq,
            len(self.sent) + 1,
            segment,
            len(batch),
            first,
            last,
            batch.lost is not None,
            None,
            True,
        )
        with self.database.write() as c:
            if batch.tensor_names:
                table = self.tables.add(c, self.run, {name: {} for name in batch.tensor_names})
                key = replace(key, tensor_table=table)
            size = batches.write(c, self.run, key, batches.packed(batch), digest=b"", received=1.0, glance={})
            assert size is not None
            runs.place(c, self.run, RankPosition(rank, seq + 1, segment, last, 1.0), rows=len(batch))
            runs.change(c, self.run, {"arrivals": len(self.sent) + 1} | runs.more_bytes(size))
        self.sent[rank, seq] = (batch, segment)
        self._next[rank] = (seq + 1, last + 1, segment)
        return batch

    def rewriter(self, worker: str = "w", **changes: Any) -> Rewriter:
        return Rewriter(
            database=self.database,
            tensor_tables=self.tables,
            worker=worker,
            objects=self.objects,
            **changes,
        )

    def compact(self, *, rank: int = 0, whole: bool = True) -> int:
        return self.rewriter().rewrite(self.run, rank, whole=whole)

    def check_batches(self, *, window_bytes: int = 1 << 26) -> None:
        """Every batch is loaded as it was sent, one by one and in order."""
        with self.database.read() as c:
            stats = batches.stat_names(c, self.run)
            in_order = BatchSequence(
                self.run,
                tensor_tables=self.tables,
                objects=self.objects,
                ranks=len(self._next),
                window_bytes=window_bytes,
            )
            keys = batches.keys(c, self.run)
            assert [(key.rank, key.seq) for key in keys] == list(self.sent)
            for key in keys:
                sent, _segment = self.sent[key.rank, key.seq]
                alone = batches.load(
                    c, self.run, key, tensor_tables=self.tables, stats=stats, objects=self.objects
                )
                same(alone, sent)
                same(in_order.load(c, key), sent)

    def check_frame(self, rank: int = 0) -> None:
        """The last frame is that of the last batch with statistics."""
        with self.database.read() as c:
            found = frames.last(c, self.run, rank)
        sent = [b for (r, _seq), (b, _segment) in self.sent.items() if r == rank]
        with_values = [b for b in sent if any(p.any() for p in b.stats_present.values())]
        if not with_values:
            assert found is None
            return
        assert found is not None
        batch = with_values[-1]
        assert set(found.stats) == {name for name, p in batch.stats_present.items() if p.any()}
        for name, frame in found.stats.items():
            row = int(np.flatnonzero(batch.stats_present[name].any(axis=1))[-1])
            assert frame.step == batch.step[batch.stat_row[row]]
            equal(frame.values, batch.stats[name][row])
            equal(frame.present, batch.stats_present[name][row])


def same(found: Batch, sent: Batch) -> None:
    """Bit-equal, NaN and the sign of 0 included."""
    assert found.scalar_names == sent.scalar_names
    assert found.tensor_names == sent.tensor_names
    assert found.lost == sent.lost
    assert list(found.stats) == list(sent.stats)
    for name in ("step", "time", "scalars", "scalars_present", "stat_row", "hist_row", "hist_log2"):
        equal(getattr(found, name), getattr(sent, name))
    for name in sent.stats:
        equal(found.stats[name], sent.stats[name])
        equal(found.stats_present[name], sent.stats_present[name])


def equal(found: NDArray[Any], sent: NDArray[Any]) -> None:
    assert found.dtype == sent.dtype
    assert found.shape == sent.shape
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(sent).tobytes()


def rows_of(shapes: Sequence[Shape]) -> int:
    return sum(shape.rows for shape in shapes)

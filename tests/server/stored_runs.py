"""Runs written straight to the store, beside a look at every row of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch, Float64, Int64, lost_batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_server.chunk_plan import LIMITS, Limits
from floatscope_server.database import Database
from floatscope_server.derived import derive
from floatscope_server.rewriting import Rewriter
from floatscope_server.store import batches, runs
from floatscope_server.store.batches import BatchKey
from floatscope_server.store.runs import RankPosition
from floatscope_server.store.stretches import Span
from floatscope_server.store.tensor_tables import TensorTables

ODD = (float("nan"), float("inf"), float("-inf"), 0.0)
FORMATS = ("e4m3", "e5m2", "bf16")


def named(count: int) -> dict[str, dict[str, Any]]:
    """A tensor table of so many tensors."""
    return {f"t{i:03d}/input": {"format": FORMATS[i % 3]} for i in range(count)}


@dataclass(frozen=True, eq=False)
class Stored:
    """A batch as it was written."""

    rank: int
    segment: int
    batch: Batch


@dataclass
class Store:
    """A run under test and the database it is in."""

    database: Database
    run_id: str
    tensors: dict[str, dict[str, Any]]
    limits: Limits = LIMITS
    tables: TensorTables = field(default_factory=TensorTables)
    stored: list[Stored] = field(default_factory=list)
    run: int = 0

    def __post_init__(self) -> None:
        with self.database.write() as c:
            runs.create(c, self.run_id, RunInfo(tensors=self.tensors), summary="", now=1.0)
            self.run = runs.get(c, self.run_id).id

    def add(self, batch: Batch, *, segment: int = 0, rank: int = 0) -> None:
        """Writes a batch as ingest does."""
        first, last = batch.lost or (int(batch.step[0]), int(batch.step[-1]))
        with self.database.write() as c:
            at = runs.position(c, self.run, rank)
            key = BatchKey(
                *(rank, at.next_seq, len(self.stored) + 1, segment, len(batch), first, last),
                *(batch.lost is not None, None, True),
            )
            if batch.tensor_names:
                table = {name: self.tensors.get(name, {}) for name in batch.tensor_names}
                key = replace(key, tensor_table=self.tables.add(c, self.run, table))
            size = batches.write(c, self.run, key, batches.packed(batch), digest=b"", received=1.0, glance={})
            assert size is not None
            here = RankPosition(rank, at.next_seq + 1, segment, last, 1.0)
            runs.place(c, self.run, here, rows=len(batch))
        self.stored.append(Stored(rank, segment, batch))

    def lose(self, first: int, last: int, *, segment: int = 0) -> None:
        """Writes a hole of lost steps."""
        self.add(lost_batch(first, last), segment=segment)

    def rewrite(self, *, whole: bool = True, rank: int = 0) -> int:
        """Makes chunks of what is hot."""
        rewriter = Rewriter(
            database=self.database, tensor_tables=self.tables, worker="test", limits=self.limits
        )
        return rewriter.rewrite(self.run, rank, whole=whole)

    def counting(self, span: Span, rank: int = 0) -> list[tuple[int, Batch, int]]:
        """(step, batch, row) of every row that counts, steps ascending."""
        found: dict[int, tuple[int, Batch, int]] = {}
        for one in sorted(self.stored, key=lambda one: one.segment):
            if one.rank == rank and span.segment in (None, one.segment):
                for row, step in enumerate(one.batch.step.tolist()):
                    if span.first <= step <= span.last:
                        found[step] = (one.segment, one.batch, row)
        return [(step, batch, row) for step, (_segment, batch, row) in sorted(found.items())]

    def scalar(self, name: str, span: Span, rank: int = 0) -> tuple[Int64, Float64]:
        """Steps and values of every row that counts and has the scalar."""
        found = [
            (step, batch.scalar(name)[0][row])
            for step, batch, row in self.counting(span, rank)
            if batch.scalar(name)[1][row]
        ]
        return _columns(found)

    def stat(self, stat: str, tensor: str, span: Span, rank: int = 0) -> tuple[Int64, Float64]:
        """Steps and values of every row that counts and has the stored or derived statistic."""
        found = []
        made = {id(one.batch): derive(one.batch, stat, self.tensors) for one in self.stored}
        for step, batch, row in self.counting(span, rank):
            at = np.flatnonzero(batch.stat_row == row)
            if tensor in batch.tensor_names and len(at):
                values, present = made[id(batch)]
                s = batch.tensor_names.index(tensor)
                if present[at[0], s]:
                    found.append((step, float(values[at[0], s])))
        return _columns(found)


def random_batch(
    rng: np.random.Generator,
    step: Int64,
    names: Sequence[str],
    *,
    every: int = 1,
    odd: float = 0.05,
    missing: float = 0.2,
) -> Batch:
    """A batch with every kind of value; statistics on every so many rows."""
    rows = np.arange(0, len(step), every) if names else np.empty(0, np.int64)
    scalars = _values(rng, (len(step), 2), odd).astype(np.float64)
    shape = (len(rows), len(names))
    stats = {name: _values(rng, shape, odd) for name in ("amax", "rms")}
    stats["scale"] = np.float32(2.0) ** rng.integers(-2, 3, shape).astype(np.float32)
    present = {name: rng.random(shape) >= missing for name in stats}
    return Batch(
        step=step,
        time=step.astype(float),
        scalar_names=("loss", "lr"),
        scalars=scalars,
        scalars_present=np.column_stack([rng.random(len(step)) >= 0.1, np.arange(len(step)) % 7 == 0]),
        tensor_names=tuple(sorted(names)),
        stat_row=rows,
        stats={name: np.where(present[name], values, 0).astype(np.float32) for name, values in stats.items()},
        stats_present=present,
    )


def _values(rng: np.random.Generator, shape: tuple[int, ...], odd: float) -> NDArray[Any]:
    values = rng.normal(3, 1, shape).astype(np.float32)
    return np.where(rng.random(shape) < odd, rng.choice(ODD, shape), values).astype(np.float32)


def _columns(found: Sequence[tuple[int, float]]) -> tuple[Int64, Float64]:
    return np.array([step for step, _ in found], np.int64), np.array([value for _, value in found], float)

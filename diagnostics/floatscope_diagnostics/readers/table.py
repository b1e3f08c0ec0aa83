"""All pieces of a log side by side, in the order of its lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.readers.piece import EVAL, EVENT, RESUME, START, TRAIN
from floatscope_diagnostics.readers.records import Records, Schema

KINDS = (TRAIN, EVAL, EVENT, START, RESUME)
NONE = -(2**62)  # a position that the line does not give

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Table:
    """N pieces. kind: int8 [N], index into KINDS.  schema: int32 [N], index into ``schemas``.

    line: int64 [N].  step, batch, batches, rank: int64 [N], NONE where not given; None where no piece gives
    it. epoch: float64 [N], NaN where not given; None likewise.
    order: for each schema int64, the places of its pieces in 0..N-1.
    """

    schemas: Sequence[Schema]
    order: Sequence[Int64]
    kind: NDArray[np.int8]
    schema: NDArray[np.int32]
    line: Int64
    step: Int64 | None
    epoch: Float64 | None
    batch: Int64 | None
    batches: Int64 | None
    rank: Int64 | None

    def __len__(self) -> int:
        return len(self.kind)

    def of(self, *kinds: str) -> Bool:
        """bool [N]: pieces of these kinds."""
        return np.isin(self.kind, [KINDS.index(k) for k in kinds])

    def column(self, name: str) -> Float64:
        """float64 [N]: a value of each piece, NaN where it has none (or is NaN)."""
        out = np.full(len(self), np.nan)
        for schema, order in zip(self.schemas, self.order, strict=True):
            if name in schema.values:
                out[order] = np.frombuffer(schema.values[name], np.float64)
        return out

    def has(self, name: str) -> Bool:
        """bool [N]: pieces that carry the value."""
        named = np.array([name in s.values for s in self.schemas], bool)
        return np.asarray(named[self.schema], bool)


def table_of(records: Records) -> Table:
    """The pieces of ``records`` in order."""
    schemas = list(records.schemas.values())
    count = records.count
    kind = np.zeros(count, np.int8)
    number = np.full(count, -1, np.int32)
    line = np.zeros(count, np.int64)
    whole: dict[str, Int64] = {}
    epoch: Float64 | None = None
    order = [np.frombuffer(s.order, np.int64) for s in schemas]
    for k, (schema, at) in enumerate(zip(schemas, order, strict=True)):
        kind[at] = KINDS.index(schema.kind)
        number[at] = k
        line[at] = np.frombuffer(schema.line, np.int64)
        for name, column in schema.where.items():
            if name == "epoch":
                epoch = np.full(count, np.nan) if epoch is None else epoch
                epoch[at] = np.frombuffer(column, np.float64)
                continue
            if name not in whole:
                whole[name] = np.full(count, NONE, np.int64)
            whole[name][at] = np.frombuffer(column, np.int64)
    if (number < 0).any():  # numbers that were reserved and not used
        keep = number >= 0
        new = np.cumsum(keep) - 1
        kind, number, line = kind[keep], number[keep], line[keep]
        whole = {name: column[keep] for name, column in whole.items()}
        epoch = None if epoch is None else epoch[keep]
        order = [new[at] for at in order]
    return Table(
        schemas,
        order,
        kind,
        number,
        line,
        step=whole.get("step"),
        epoch=epoch,
        batch=whole.get("batch"),
        batches=whole.get("batches"),
        rank=whole.get("rank"),
    )

"""The last frame of a rank: what its tensors looked like at its newest step with statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, select

from floatscope.protocol.batch import Batch, Bool, Float32
from floatscope_server import tables
from floatscope_server.codec import pack, pack_mask, unpack, unpack_mask
from floatscope_server.database import upsert

_frame = tables.frame


@dataclass(frozen=True, eq=False)
class StatFrame:
    """One statistic at the last step at which a tensor had it: values [S] and which are present [S]."""

    step: int
    values: Float32
    present: Bool


@dataclass(frozen=True, eq=False)
class Frame:
    """The statistics of the rank's newest batch that carries any. Columns: those of ``tensor_table``."""

    seq: int
    segment: int
    step: int
    tensor_table: int
    stats: Mapping[str, StatFrame]


@dataclass(frozen=True)
class Packed:
    """A frame as it is stored: names of statistics as JSON, the step of each, values [K, S], presence."""

    step: int
    data: bytes


def packed(batch: Batch) -> Packed | None:
    """The batch's last frame: of each statistic its last row that has a value. None without any."""
    names, rows = [], []
    for name in batch.stats:
        found = np.flatnonzero(batch.stats_present[name].any(axis=1))
        if len(found):
            names.append(name)
            rows.append(int(found[-1]))
    if not names:
        return None
    values = np.array([batch.stats[name][row] for name, row in zip(names, rows, strict=True)])
    present = np.array([batch.stats_present[name][row] for name, row in zip(names, rows, strict=True)])
    steps = batch.step[batch.stat_row[rows]]
    text = np.frombuffer(json.dumps(names).encode(), np.uint8)
    return Packed(int(steps.max()), pack([text, steps, values, pack_mask(present)]))


def write(
    c: Connection, run: int, rank: int, seq: int, *, segment: int, tensor_table: int, frame: Packed
) -> None:
    """Stores a batch's last frame in place of the one before."""
    row = {
        "seq": seq,
        "segment": segment,
        "step": frame.step,
        "tensor_table": tensor_table,
        "data": frame.data,
    }
    statement = upsert(c, _frame).values(run=run, rank=rank, **row)
    c.execute(statement.on_conflict_do_update(index_elements=["run", "rank"], set_=row))


def last(c: Connection, run: int, rank: int) -> Frame | None:
    """The rank's last frame; None if it never sent statistics."""
    row = c.execute(select(_frame).where(_frame.c.run == run, _frame.c.rank == rank)).first()
    if row is None:
        return None
    text, steps, values, bits = unpack(row.data)
    present = unpack_mask(bits, values.shape)
    stats = {
        name: StatFrame(int(steps[i]), values[i], present[i])
        for i, name in enumerate(json.loads(text.tobytes()))
    }
    return Frame(row.seq, row.segment, row.step, row.tensor_table, stats)

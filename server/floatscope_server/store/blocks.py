"""The numbers of a batch as compressed blocks: one row for its steps, one for its scalars, one per
statistic.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, insert, select

from floatscope.protocol.batch import Batch, Bool, Float32, Float64, Int64
from floatscope.protocol.names import HIST_BINS
from floatscope_server import tables
from floatscope_server.codec import pack, pack_mask, unpack, unpack_mask
from floatscope_server.store.kinds import HISTOGRAM, ROWS, SCALARS, STAT

_block = tables.block
Block = tuple[int, str, bytes]
"""Kind, name and data."""


def compressed(batch: Batch) -> list[Block]:
    """Every number of the batch. A hole of lost steps has none."""
    if batch.lost is not None:
        return []
    rows: list[Block] = [
        (ROWS, "", pack([batch.step, batch.time, batch.stat_row, batch.hist_row])),
        (SCALARS, "", pack([_names(batch.scalar_names), batch.scalars, pack_mask(batch.scalars_present)])),
    ]
    for name, values in batch.stats.items():
        rows.append((STAT, name, pack([values, pack_mask(batch.stats_present[name])])))
    if len(batch.hist_row):
        rows.append((HISTOGRAM, "", pack([batch.hist_log2])))
    return rows


def write(c: Connection, run: int, rank: int, seq: int, rows: Sequence[Block]) -> int:
    """Stores the blocks of a batch and returns the bytes they took."""
    if not rows:
        return 0
    c.execute(
        insert(_block),
        [
            {"run": run, "rank": rank, "seq": seq, "kind": kind, "name": name, "data": data}
            for kind, name, data in rows
        ],
    )
    return sum(len(data) for _kind, _name, data in rows)


def read(
    c: Connection, run: int, rank: int, seq: int, *, stats: Sequence[str], tensor_names: tuple[str, ...]
) -> Batch:
    """The batch as it was sent.

    ``stats``: every statistic the run may have; ``tensor_names``: the batch's columns.
    """
    query = select(_block.c.kind, _block.c.name, _block.c.data).where(
        _block.c.run == run,
        _block.c.rank == rank,
        _block.c.seq == seq,
        _block.c.kind.in_((ROWS, SCALARS, STAT, HISTOGRAM)),
        _block.c.name.in_(("", *stats)),
    )
    found = {(kind, name): data for kind, name, data in c.execute(query)}
    step, time, stat_row, hist_row = unpack(found[ROWS, ""])
    scalar_names, scalars, scalars_present = scalar_block(found[SCALARS, ""])
    values: dict[str, Float32] = {}
    present: dict[str, Bool] = {}
    for (kind, name), data in sorted(found.items()):
        if kind == STAT:
            values[name], present[name] = stat_block(data)
    hist: NDArray[np.uint32] = np.empty((0, 0, HIST_BINS), np.uint32)
    if (HISTOGRAM, "") in found:
        (hist,) = unpack(found[HISTOGRAM, ""])
    return Batch(
        step=step,
        time=time,
        scalar_names=scalar_names,
        scalars=scalars,
        scalars_present=scalars_present,
        tensor_names=tensor_names,
        stat_row=stat_row,
        stats=values,
        stats_present=present,
        hist_row=hist_row,
        hist_log2=hist,
    )


def each(
    c: Connection, run: int, rank: int, kind: int, name: str = "", *, first_seq: int, last_seq: int
) -> Iterator[tuple[int, bytes]]:
    """(seq, data) of every block of one series in a range of batches, in order."""
    query = (
        select(_block.c.seq, _block.c.data)
        .where(_block.c.run == run, _block.c.rank == rank, _block.c.kind == kind, _block.c.name == name)
        .where(_block.c.seq.between(first_seq, last_seq))
        .order_by(_block.c.seq)
    )
    yield from ((seq, data) for seq, data in c.execute(query))


def rows_block(data: bytes) -> tuple[Int64, Float64, Int64]:
    """Steps [T], times [T] and the rows [D] that carry statistics."""
    step, time, stat_row, _hist_row = unpack(data)
    return step, time, stat_row


def scalar_block(data: bytes) -> tuple[tuple[str, ...], Float64, Bool]:
    """Names, values [T, K] and presence [T, K] of the scalars."""
    names, values, bits = unpack(data)
    return tuple(json.loads(names.tobytes())), values, unpack_mask(bits, values.shape)


def scalar_names(data: bytes) -> tuple[str, ...]:
    """Only the names of ``scalar_block``."""
    (names,) = unpack(data, most=1)
    return tuple(json.loads(names.tobytes()))


def stat_block(data: bytes) -> tuple[Float32, Bool]:
    """Values [D, S] and presence [D, S] of one statistic."""
    values, bits = unpack(data)
    return values, unpack_mask(bits, values.shape)


def series_of(batch: Batch) -> Collection[tuple[int, str]]:
    """(kind, name) of every scalar that has a value in the batch, and of every statistic that has a block."""
    found = [
        (SCALARS, name) for k, name in enumerate(batch.scalar_names) if batch.scalars_present[:, k].any()
    ]
    return found + [(STAT, name) for name in batch.stats]


def _names(names: tuple[str, ...]) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(names).encode(), np.uint8)

"""Batches as they lie in a spool: read back, put together, and made smaller by giving up detail."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from floatscope.protocol import wire_json, wire_safetensors
from floatscope.protocol.batch import Batch, Bool, Float32
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import MAX_UNPACKED_BYTES
from floatscope.protocol.runinfo import TensorTable
from floatscope.spool_format import Flag

FindTable = Callable[[str], "TensorTable | None"]


def read_body(data: bytes, flags: Flag, *, rank: int, find_table: FindTable) -> tuple[Batch, TensorTable]:
    """The batch and the tensor table of a body. Raises ProtocolError for anything that is not one."""
    if Flag.GZIP in flags:
        try:
            unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            data = unpacker.decompress(data, MAX_UNPACKED_BYTES)
        except zlib.error as error:
            raise ProtocolError("body", "a whole gzip stream", str(error)) from error
        if not unpacker.eof:
            raise ProtocolError("body", "a whole gzip stream", "one that goes on")
    if Flag.JSON in flags:
        return wire_json.decode(data, rank=rank), {}
    return wire_safetensors.decode(data, find_table=find_table)


def headers_of(flags: Flag) -> dict[str, str]:
    """The request headers that belong to a body."""
    kind = wire_json.CONTENT_TYPE if Flag.JSON in flags else wire_safetensors.CONTENT_TYPE
    return {"Content-Type": kind} | ({"Content-Encoding": "gzip"} if Flag.GZIP in flags else {})


def flags_of(headers: Mapping[str, str], *, with_table: bool) -> Flag:
    """What a spool notes about a body with these headers."""
    flags = Flag.HAS_TABLE if with_table else Flag.NONE
    if headers.get("Content-Encoding") == "gzip":
        flags |= Flag.GZIP
    if headers.get("Content-Type") == wire_json.CONTENT_TYPE:
        flags |= Flag.JSON
    return flags


def detail_rows(batch: Batch) -> int:
    """Steps that carry tensor statistics or histograms."""
    return len(np.union1d(batch.stat_row, batch.hist_row)) if len(batch.hist_row) else len(batch.stat_row)


def can_follow(before: Batch, after: Batch) -> bool:
    """Whether two batches may become one: steps ascend, and neither says more than its steps."""
    plain = all(b.lost is None and b.segment is None and len(b) for b in (before, after))
    return plain and bool(after.step[0] > before.step[-1])


def joined(parts: Sequence[tuple[Batch, TensorTable]]) -> tuple[Batch, TensorTable]:
    """Batches whose steps ascend as one, with the tensors of all; what is known last of a tensor counts."""
    if len(parts) == 1:
        return parts[0]
    batches = [batch for batch, _ in parts]
    table: TensorTable = {}
    for _, known in parts:
        for name, facts in known.items():
            table[name] = {**table.get(name, {}), **facts}
    names = tuple(sorted(table))
    place = {name: s for s, name in enumerate(names)}
    scalar_names = tuple(sorted({name for batch in batches for name in batch.scalar_names}))
    column = {name: k for k, name in enumerate(scalar_names)}
    steps = sum(map(len, batches))
    scalars = np.zeros((steps, len(scalar_names)))
    scalars_present = np.zeros(scalars.shape, bool)
    stat_rows = sum(len(batch.stat_row) for batch in batches)
    hist_rows = sum(len(batch.hist_row) for batch in batches)
    stats: dict[str, Float32] = {}
    present: dict[str, Bool] = {}
    hists = np.zeros((hist_rows, len(names), *batches[0].hist_log2.shape[2:]), np.uint32)
    row = stat = hist = 0
    for batch in batches:
        where = np.array([column[name] for name in batch.scalar_names], np.intp)
        scalars[row : row + len(batch), where] = batch.scalars
        scalars_present[row : row + len(batch), where] = batch.scalars_present
        columns = np.array([place[name] for name in batch.tensor_names], np.intp)
        for name, values in batch.stats.items():
            if name not in stats:
                stats[name] = np.zeros((stat_rows, len(names)), np.float32)
                present[name] = np.zeros((stat_rows, len(names)), bool)
            stats[name][stat : stat + len(values), columns] = values
            present[name][stat : stat + len(values), columns] = batch.stats_present[name]
        if len(batch.hist_row):
            hists[hist : hist + len(batch.hist_row), columns] = batch.hist_log2
        row, stat, hist = row + len(batch), stat + len(batch.stat_row), hist + len(batch.hist_row)
    offsets = np.cumsum([0, *map(len, batches)])
    whole = Batch(
        step=np.concatenate([batch.step for batch in batches]),
        time=np.concatenate([batch.time for batch in batches]),
        scalar_names=scalar_names,
        scalars=scalars,
        scalars_present=scalars_present,
        tensor_names=names,
        stat_row=np.concatenate([b.stat_row + at for b, at in zip(batches, offsets, strict=False)]),
        stats=stats,
        stats_present=present,
        hist_row=np.concatenate([b.hist_row + at for b, at in zip(batches, offsets, strict=False)]),
        hist_log2=hists if hist_rows else batches[0].hist_log2,
    )
    return whole, table


def thinned(batch: Batch, table: TensorTable, keep: Callable[[], bool]) -> tuple[Batch, TensorTable, int]:
    """The batch with the statistics of some steps only, its table, and how many steps lost theirs.

    keep: asked once for each step that carries statistics. Scalars always stay.
    """
    rows = sorted({*batch.stat_row.tolist(), *batch.hist_row.tolist()})
    kept = {row for row in rows if keep()}
    if len(kept) == len(rows):
        return batch, table, 0
    if not kept:
        bare = Batch(batch.step, batch.time, batch.scalar_names, batch.scalars, batch.scalars_present)
        return bare, {}, len(rows)
    stat = np.array([row in kept for row in batch.stat_row.tolist()], bool)
    hist = np.array([row in kept for row in batch.hist_row.tolist()], bool)
    smaller = replace(
        batch,
        stat_row=batch.stat_row[stat],
        stats={name: values[stat] for name, values in batch.stats.items()},
        stats_present={name: mask[stat] for name, mask in batch.stats_present.items()},
        hist_row=batch.hist_row[hist],
        hist_log2=batch.hist_log2[hist] if len(batch.hist_log2) else batch.hist_log2,
    )
    return smaller, table, len(rows) - len(kept)


def with_scalar(batch: Batch, name: str, value: float) -> Batch:
    """The batch with one scalar more on its first step, unless that step has it."""
    if name in batch.scalar_names:
        k = batch.scalar_names.index(name)
        if batch.scalars_present[0, k]:
            return batch
        scalars, present = batch.scalars.copy(), batch.scalars_present.copy()
        names = batch.scalar_names
    else:
        names = (*batch.scalar_names, name)
        k = len(names) - 1
        scalars = np.hstack([batch.scalars, np.zeros((len(batch), 1))])
        present = np.hstack([batch.scalars_present, np.zeros((len(batch), 1), bool)])
    scalars[0, k], present[0, k] = value, True
    return replace(batch, scalar_names=names, scalars=scalars, scalars_present=present)

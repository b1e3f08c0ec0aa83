"""Checks the batches that are still in hot blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row

from floatscope.protocol.names import HIST_BINS
from floatscope_server.codec import unpack
from floatscope_server.dbtool.faults import Fault, faults_of
from floatscope_server.store import blocks, checking
from floatscope_server.store.checking import Where
from floatscope_server.store.kinds import HISTOGRAM, ROWS, SCALARS, STAT
from floatscope_server.store.tensor_tables import TensorTables


def check(c: Connection, at: Where, hot: Sequence[Row[Any]], tables: TensorTables) -> Iterator[Fault]:
    """hot: the rank's batches that are in no chunk, in order of seq."""
    rows = sum(row.rows for row in hot)
    if rows != at.hot_rows:
        yield Fault(str(at), f"counts {at.hot_rows} steps in hot batches, these have {rows}")
    strange = checking.block_seqs(c, at) - {row.seq for row in hot}
    if strange:
        yield Fault(str(at), f"has blocks of batches that are not there: {sorted(strange)[:10]}")
    for batch in hot:
        if not batch.lost:
            where = f"{at} steps {batch.first_step}-{batch.last_step} (batch {batch.seq})"
            with faults_of(where) as found:
                found += [Fault(where, what) for what in _batch(c, at, batch, tables)]
            yield from found


def _batch(c: Connection, at: Where, batch: Row[Any], tables: TensorTables) -> Iterator[str]:
    stored = checking.blocks(c, at, batch.seq)
    for needed in ((ROWS, "steps"), (SCALARS, "scalars")):
        if (needed[0], "") not in stored:
            yield f"its {needed[1]} are missing"
            return
    step, time, stat_row, hist_row = unpack(stored[ROWS, ""])
    if not len(step) == len(time) == batch.rows:
        yield f"has {len(step)} steps and {len(time)} times, its row says {batch.rows}"
        return
    if (int(step[0]), int(step[-1])) != (batch.first_step, batch.last_step) or (np.diff(step) <= 0).any():
        yield f"its steps {step[0]} to {step[-1]} are not those of its row, or not in order"
    names, values, _present = blocks.scalar_block(stored[SCALARS, ""])
    if values.shape != (len(step), len(names)):
        yield f"its scalars have the shape {values.shape}, expected {(len(step), len(names))}"
    tensors = 0 if batch.tensor_table is None else len(tables.get(c, batch.tensor_table).names)
    for (kind, name), data in stored.items():
        if kind == STAT and blocks.stat_block(data)[0].shape != (len(stat_row), tensors):
            yield f"{name} does not have {len(stat_row)} rows of {tensors} tensors"
        if kind == HISTOGRAM and unpack(data)[0].shape != (len(hist_row), tensors, HIST_BINS):
            yield f"the histograms are not {len(hist_row)} rows of {tensors} tensors"

"""The common log of one run: every record prints its step, and steps only rise. Its columns are the rows
already; nothing is copied, which matters with a million of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.readers.piece import EVAL, TRAIN
from floatscope_diagnostics.readers.records import MAX_STEP, Records, Schema
from floatscope_diagnostics.readers.rows import Columns, Rows, shown

Int64 = NDArray[np.int64]


def plain_series(records: Records) -> tuple[Rows, Int64] | None:
    """The rows, and the places of the training records among all pieces; None where a log is not so plain:
    then runs, restarts, ranks and missing steps have to be found out."""
    schemas = list(records.schemas.values())
    steps = [_steps(s) for s in schemas]
    train = [s for s in schemas if s.kind == TRAIN]
    if not any("loss" in s.names for s in train) or any(x is None for x in steps):
        return None
    known = [x for x in steps if x is not None]
    order = [np.frombuffer(s.order, np.int64) for s in schemas]
    if sum(map(len, order)) != records.count or any((np.diff(x) <= 0).any() for x in (*order, *known)):
        return None
    step, rows = _together(known, order, records.count)
    if step is None or step[0] < 0 or step[-1] >= MAX_STEP:
        return None
    # as in ``rows``: of two values of one row that of the training record counts
    ranked = sorted(range(len(schemas)), key=lambda k: (schemas[k].kind == TRAIN, k))
    columns = [
        Columns(rows[k], {shown(n): np.frombuffer(schemas[k].values[n]) for n in schemas[k].names})
        for k in ranked
        if schemas[k].names
    ]
    leads = np.sort(np.concatenate([np.frombuffer(s.order, np.int64) for s in train]))
    return Rows(step, np.zeros(len(step), np.int32), columns, 0), leads


def _steps(schema: Schema) -> Int64 | None:
    if schema.kind not in (TRAIN, EVAL) or schema.given != ("step",) or not schema.names:
        return None
    return np.frombuffer(schema.where["step"], np.int64)


def _together(steps: list[Int64], order: list[Int64], count: int) -> tuple[Int64 | None, list[Int64]]:
    """The steps of all rows, and the rows of each schema; None if steps fall back or two schemas of one kind
    of record share a step."""
    if len(steps) == 1:
        return steps[0], [np.arange(count)]
    everything = np.empty(count, np.int64)
    for mine, places in zip(steps, order, strict=True):
        everything[places] = mine
    change = np.diff(everything)
    if (change < 0).any():
        return None, []
    step = everything[np.concatenate([[True], change > 0])]
    return step, [np.searchsorted(step, mine) for mine in steps]

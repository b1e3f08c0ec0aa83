"""The floatscope log's objects, one a step, to and from a batch (columns)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError, TooLarge
from floatscope.protocol.names import (
    HIST_BINS,
    MAX_SCALARS,
    MAX_STATS,
    MAX_STEP,
    MAX_STEPS,
    MAX_TENSORS,
    MAX_UNPACKED_BYTES,
    SCALARS,
    check_name,
)
from floatscope.protocol.strict_json import number, whole

RESERVED = frozenset({"step", "time", "rank", "segment", "tensors"})
"""Keys of a row that are not scalars."""

_HIST = "hist_log2"
_MAX_CELLS = MAX_UNPACKED_BYTES // 4  # float32 cells of all statistics of one batch
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_KNOWN_SCALARS = frozenset(SCALARS)


def batch_from_rows(
    rows: Sequence[Mapping[str, Any]], *, rank: int | None = None, strict: bool = True
) -> Batch:
    """Columns from log objects.

    rank: if given, a row that names another rank is refused.  strict: steps must ascend.
    A null is missing. Text under a key without a fixed meaning is passed over, since only numbers are
    scalars. Raises ProtocolError naming row, tensor and statistic; TooLarge if the columns would not fit the
    protocol's limits.
    """
    if len(rows) > MAX_STEPS:
        raise ProtocolError("steps", f"at most {MAX_STEPS:,} steps in a batch", f"{len(rows):,}")
    steps: list[int] = []
    times: list[float] = []
    scalars: dict[str, dict[int, float]] = {}
    stats: dict[str, dict[str, dict[int, float]]] = {}
    hists: dict[int, dict[str, list[int]]] = {}
    tensor_rows: list[int] = []
    for index, row in enumerate(rows):
        where = f"steps[{index}]"
        if not isinstance(row, Mapping):
            raise ProtocolError(where, "an object", row)
        step = whole(row.get("step"), field=f"{where}.step", low=0, high=MAX_STEP)
        if strict and steps and step <= steps[-1]:
            raise ProtocolError(
                f"{where}.step", f"a step above {steps[-1]:,}, since steps ascend in a batch", step
            )
        steps.append(step)
        times.append(_time(row.get("time"), field=f"{where}.time"))
        if rank is not None and row.get("rank") is not None and row["rank"] != rank:
            raise ProtocolError(f"{where}.rank", f"rank {rank}, as in the address", row["rank"])
        _read_scalars(row, index, scalars, where)
        tensors = row.get("tensors")
        if tensors is not None:
            if not isinstance(tensors, Mapping):
                raise ProtocolError(f"{where}.tensors", "an object: tensor name -> statistics", tensors)
            tensor_rows.append(index)
            _read_tensors(tensors, index, stats, hists, where)
    return _columns(steps, times, scalars, stats, hists, tensor_rows)


def _time(value: object, *, field: str) -> float:
    time = number(value, field=field)
    if time is None:
        return math.nan
    if not math.isfinite(time):
        raise ProtocolError(field, "Unix seconds (a finite number), or no time at all", value)
    return time


def _read_scalars(
    row: Mapping[str, Any], index: int, scalars: dict[str, dict[int, float]], where: str
) -> None:
    for key, raw in row.items():
        if key in RESERVED or raw is None:
            continue
        field = f"{where}.{key}"
        try:
            value = number(raw, field=field)
        except ProtocolError:
            if key in _KNOWN_SCALARS:
                raise
            continue
        column = scalars.get(key)
        if column is None:
            if len(scalars) >= MAX_SCALARS:
                raise ProtocolError(field, f"at most {MAX_SCALARS:,} different scalars in a batch", key)
            column = scalars[check_name(key, field=field)] = {}
        if value is not None:
            column[index] = value


def _read_tensors(
    tensors: Mapping[str, Any],
    index: int,
    stats: dict[str, dict[str, dict[int, float]]],
    hists: dict[int, dict[str, list[int]]],
    where: str,
) -> None:
    for name, values in tensors.items():
        field = f"{where}.tensors[{name!r}]"
        if not isinstance(values, Mapping):
            raise ProtocolError(field, "an object: statistic -> number", values)
        per_stat = stats.get(name)
        if per_stat is None:
            if len(stats) >= MAX_TENSORS:
                raise ProtocolError(field, f"at most {MAX_TENSORS:,} tensors in a batch", name)
            per_stat = stats[check_name(name, field=field)] = {}
        for stat, raw in values.items():
            if raw is None:
                continue
            if stat == _HIST:
                hists.setdefault(index, {})[name] = _hist(raw, field=f"{field}.{_HIST}")
                continue
            value = number(raw, field=f"{field}.{stat}")
            if value is None:
                continue
            if math.isfinite(value) and abs(value) > _FLOAT32_MAX:
                raise ProtocolError(
                    f"{field}.{stat}", "a number within float32 (at most 3.4e38), or an infinity", raw
                )
            if stat not in per_stat:
                check_name(stat, field=f"{field}.{stat}")
            per_stat.setdefault(stat, {})[index] = value


def _hist(raw: object, *, field: str) -> list[int]:
    if not isinstance(raw, Sequence) or isinstance(raw, str) or len(raw) != HIST_BINS:
        raise ProtocolError(field, f"{HIST_BINS} counts", raw)
    return [whole(count, field=field, low=0, high=2**32 - 1) for count in raw]


def _columns(
    steps: list[int],
    times: list[float],
    scalars: dict[str, dict[int, float]],
    stats: dict[str, dict[str, dict[int, float]]],
    hists: dict[int, dict[str, list[int]]],
    tensor_rows: list[int],
) -> Batch:
    scalar_names = tuple(scalars)
    values = np.zeros((len(steps), len(scalar_names)))
    present = np.zeros(values.shape, bool)
    for k, name in enumerate(scalar_names):
        for index, value in scalars[name].items():
            values[index, k] = value
            present[index, k] = True

    tensor_names = tuple(sorted(stats))
    stat_names = sorted({stat for per_stat in stats.values() for stat in per_stat})
    shape = (len(tensor_rows), len(tensor_names))
    if len(stat_names) > MAX_STATS:
        raise ProtocolError(
            "steps", f"at most {MAX_STATS} different statistics in a batch", f"{len(stat_names)}"
        )
    cells = shape[0] * shape[1] * len(stat_names) + len(hists) * shape[1] * HIST_BINS
    if cells > _MAX_CELLS:
        raise TooLarge(
            "steps",
            f"at most {_MAX_CELLS:,} cells (steps x tensors x statistics); send fewer steps",
            f"{cells:,}",
        )
    row_of = {index: d for d, index in enumerate(tensor_rows)}
    stat_values = {stat: np.zeros(shape, np.float32) for stat in stat_names}
    stat_present = {stat: np.zeros(shape, bool) for stat in stat_names}
    for s, name in enumerate(tensor_names):
        for stat, column in stats[name].items():
            for index, value in column.items():
                stat_values[stat][row_of[index], s] = value
                stat_present[stat][row_of[index], s] = True
    hist_rows = sorted(hists)
    hist_log2 = np.zeros((len(hist_rows), len(tensor_names) if hist_rows else 0, HIST_BINS), np.uint32)
    column_of = {name: s for s, name in enumerate(tensor_names)}
    for h, index in enumerate(hist_rows):
        for name, counts in hists[index].items():
            hist_log2[h, column_of[name]] = counts
    return Batch(
        step=np.array(steps, np.int64),
        time=np.array(times, np.float64),
        scalar_names=scalar_names,
        scalars=values,
        scalars_present=present,
        tensor_names=tensor_names,
        stat_row=np.array(tensor_rows, np.int64),
        stats=stat_values,
        stats_present=stat_present,
        hist_row=np.array(hist_rows, np.int64),
        hist_log2=hist_log2,
    )


def rows_from_batch(batch: Batch, *, rank: int = 0, segment: int = 0) -> Iterator[dict[str, Any]]:
    """The batch's steps as log objects, in order; ``strict_json.dumps`` turns one into a line of a log.

    ``rank`` and ``segment`` are written when they are not 0. Only present values are written; NaN and Inf
    stay floats.
    """
    tensors_of = {int(index): d for d, index in enumerate(batch.stat_row)}
    hist_of = {int(index): h for h, index in enumerate(batch.hist_row)}
    for index in range(len(batch)):
        row: dict[str, Any] = {"step": int(batch.step[index])}
        if not math.isnan(batch.time[index]):
            row["time"] = float(batch.time[index])
        if rank:
            row["rank"] = rank
        if segment:
            row["segment"] = segment
        for k, name in enumerate(batch.scalar_names):
            if batch.scalars_present[index, k]:
                row[name] = float(batch.scalars[index, k])
        if index in tensors_of or index in hist_of:
            row["tensors"] = _tensors(batch, tensors_of.get(index), hist_of.get(index))
        yield row


def _tensors(batch: Batch, d: int | None, h: int | None) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    if d is not None:
        for stat, values in batch.stats.items():
            for s in np.flatnonzero(batch.stats_present[stat][d]):
                out.setdefault(batch.tensor_names[s], {})[stat] = float(values[d, s])
    if h is not None:
        for s in np.flatnonzero(batch.hist_log2[h].any(axis=1)):
            out.setdefault(batch.tensor_names[s], {})[_HIST] = batch.hist_log2[h, s].tolist()
    return out

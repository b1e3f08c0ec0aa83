"""Reads the numbers of a run back: for every step its newest segment, or one segment as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.batch import Bool, Float64, Int64
from floatscope_server.derived import combine, needs
from floatscope_server.store import batches, blocks, kinds
from floatscope_server.store.batches import BatchKey
from floatscope_server.store.tensor_tables import TensorTables


@dataclass(frozen=True)
class Span:
    """Steps ``first`` to ``last``, both included; of the newest segment of each step, or of one segment."""

    first: int
    last: int
    segment: int | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of one batch that a reader gets to see.

    Step: int64 [T].  shown: bool [T].  stat_row: int64 [D].
    """

    key: BatchKey
    step: Int64
    time: Float64
    stat_row: Int64
    shown: Bool


def rows(c: Connection, run: int, rank: int, span: Span) -> list[Rows]:
    """Batches that touch the span, in the order in which they were sent, with the rows of them that count."""
    keys = [
        key
        for key in batches.keys(c, run, rank=rank, first_step=span.first, last_step=span.last)
        if not key.lost and span.segment in (None, key.segment)
    ]
    if not keys:
        return []
    wanted = {key.seq: key for key in keys}
    found: list[Rows] = []
    for seq, data in blocks.each(c, run, rank, kinds.ROWS, first_seq=keys[0].seq, last_seq=keys[-1].seq):
        if seq in wanted:
            step, time, stat_row = blocks.rows_block(data)
            found.append(Rows(wanted[seq], step, time, stat_row, (step >= span.first) & (step <= span.last)))
    return found if len({key.segment for key in keys}) == 1 else _newest(found)


def scalars(
    c: Connection, run: int, rank: int, names: Sequence[str], span: Span
) -> dict[str, tuple[Int64, Float64]]:
    """name -> (step, value) of every step of the span that has the scalar, steps ascending."""
    found = {r.key.seq: r for r in rows(c, run, rank, span)}
    parts: dict[str, list[tuple[Int64, Float64]]] = {name: [] for name in names}
    if found:
        first, last = min(found), max(found)
        for seq, data in blocks.each(c, run, rank, kinds.SCALARS, first_seq=first, last_seq=last):
            if seq not in found:
                continue
            have, values, present = blocks.scalar_block(data)
            for name in names:
                if name in have:
                    k = have.index(name)
                    mask = found[seq].shown & present[:, k]
                    parts[name].append((found[seq].step[mask], values[mask, k]))
    return {name: _joined(part) for name, part in parts.items()}


def tensor_names(c: Connection, run: int, rank: int, span: Span, *, tensor_tables: TensorTables) -> set[str]:
    """Every tensor of which some batch of the span carries statistics."""
    keys = batches.keys(c, run, rank=rank, first_step=span.first, last_step=span.last)
    ids = {key.tensor_table for key in keys if span.segment in (None, key.segment)}
    return {name for table in ids if table is not None for name in tensor_tables.get(c, table).names}


def stat_blocks(
    c: Connection,
    run: int,
    rank: int,
    stat: str,
    span: Span,
    *,
    tensor_tables: TensorTables,
    tensors: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[tuple[str, ...], Int64, Float64, Bool]]:
    """Per batch: tensor names [S], steps [D], values [D, S] and presence [D, S] of a stored or derived
    statistic.

    Rows that do not count are left out. ``tensors``: the run's description of its tensors, for the formats.
    """
    parts = needs(stat, batches.stat_names(c, run))
    found = [r for r in rows(c, run, rank, span) if r.key.tensor_table is not None]
    if not parts or not found:
        return
    first, last = found[0].key.seq, found[-1].key.seq
    readers = [blocks.each(c, run, rank, kinds.STAT, part, first_seq=first, last_seq=last) for part in parts]
    ahead = [next(reader, None) for reader in readers]
    for r in found:
        blocks_here = {}
        for i, part in enumerate(parts):
            at = ahead[i]
            while at is not None and at[0] < r.key.seq:
                at = next(readers[i], None)
            if at is not None and at[0] == r.key.seq:
                blocks_here[part] = blocks.stat_block(at[1])
                at = next(readers[i], None)
            ahead[i] = at
        names = tensor_tables.get(c, r.key.tensor_table or 0).names
        combined = combine(stat, blocks_here, names, tensors)
        if combined is not None:
            values, present = combined
            shown = r.shown[r.stat_row]
            yield names, r.step[r.stat_row][shown], values[shown].astype(np.float64), present[shown]


def series(
    c: Connection,
    run: int,
    rank: int,
    stat: str,
    tensor: str,
    span: Span,
    *,
    tensor_tables: TensorTables,
    tensors: Mapping[str, Mapping[str, Any]],
) -> tuple[Int64, Float64]:
    """(step, value) of every step of the span at which the tensor has the statistic, steps ascending."""
    parts = []
    found = stat_blocks(c, run, rank, stat, span, tensor_tables=tensor_tables, tensors=tensors)
    for names, step, values, present in found:
        if tensor in names:
            s = names.index(tensor)
            parts.append((step[present[:, s]], values[present[:, s], s]))
    return _joined(parts)


def _newest(found: list[Rows]) -> list[Rows]:
    """Of the rows of one step, keeps only that of the highest segment."""
    step = np.concatenate([r.step for r in found])
    segment = np.concatenate([np.full(len(r.step), r.key.segment) for r in found])
    order = np.lexsort((segment, step))
    last_of_step = np.append(step[order][1:] != step[order][:-1], True)
    newest = np.zeros(len(step), bool)
    newest[order[last_of_step]] = True
    out, at = [], 0
    for r in found:
        out.append(Rows(r.key, r.step, r.time, r.stat_row, r.shown & newest[at : at + len(r.step)]))
        at += len(r.step)
    return out


def _joined(parts: list[tuple[Int64, Float64]]) -> tuple[Int64, Float64]:
    if not parts:
        return np.empty(0, np.int64), np.empty(0)
    step = np.concatenate([step for step, _ in parts])
    value = np.concatenate([value for _, value in parts])
    if len(step) > 1 and (np.diff(step) < 0).any():
        order = np.argsort(step, kind="stable")
        return step[order], value[order]
    return step, value

"""Rows of one step that come one after the other (training, then evaluation) are one row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch

REPEATED = ("epoch", "tokens")  # said in both rows without being two values


def joined(batches: Iterable[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
    """The batches with rows joined that share rank and step and no scalar. The last row of a rank is held
    back until its next batch."""
    held: dict[int, Batch] = {}
    for rank, batch in batches:
        before = held.pop(rank, None)
        if before is not None:
            if batch.lost is not None or len(batch) == 0 or batch.step[0] != before.step[0]:
                yield rank, before
            else:
                first, rest = batch.rows(0, 1), batch.rows(1, len(batch))
                one = _one(before, first)
                if one is None:
                    yield rank, before
                elif len(rest) == 0:
                    held[rank] = one
                    continue
                elif rest.step[0] != one.step[0]:
                    yield rank, one
                    batch = rest
                else:
                    yield rank, one
                    batch = rest
        if batch.lost is not None or len(batch) == 0:
            yield rank, batch
            continue
        batch = _inside(batch)
        if len(batch) > 1:
            yield rank, batch.rows(0, len(batch) - 1)
        held[rank] = batch.rows(len(batch) - 1, len(batch))
    yield from held.items()


def _inside(batch: Batch) -> Batch:
    """The batch with pairs of rows of one step joined where they hold different scalars."""
    second = np.flatnonzero(np.diff(batch.step) == 0) + 1
    if not len(second) or len(batch.stat_row) or len(batch.hist_row):
        return batch
    values, present = batch.scalars.copy(), batch.scalars_present.copy()
    judged = np.array([n not in REPEATED for n in batch.scalar_names], bool)
    keep = np.ones(len(batch), bool)
    for row in second.tolist():
        before = row - 1
        while not keep[before]:
            before -= 1
        if (present[before] & present[row] & judged).any():
            continue
        values[before] = np.where(present[row], values[row], values[before])
        present[before] |= present[row]
        keep[row] = False
    index: NDArray[np.int64] = np.flatnonzero(keep)
    return replace(
        batch,
        step=batch.step[index],
        time=batch.time[index],
        scalars=values[index],
        scalars_present=present[index],
    )


def _one(a: Batch, b: Batch) -> Batch | None:
    """Two single rows of one step as one; None if both hold a scalar, or tensors."""
    if len(a.stat_row) or len(b.stat_row) or len(a.hist_row) or len(b.hist_row):
        return None
    names = (*a.scalar_names, *(n for n in b.scalar_names if n not in a.scalar_names))
    values, present = np.zeros((1, len(names))), np.zeros((1, len(names)), bool)
    for batch in (a, b):
        for k, name in enumerate(batch.scalar_names):
            here = batch.scalars_present[0, k]
            at = names.index(name)
            if here and present[0, at] and name not in REPEATED:
                return None
            if here:
                values[0, at], present[0, at] = batch.scalars[0, k], True
    return replace(a, scalar_names=names, scalars=values, scalars_present=present)

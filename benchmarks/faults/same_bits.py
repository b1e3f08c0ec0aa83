"""Whether a batch came back as it was sent: every value by its bits, and missing is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch


@dataclass
class Compared:
    """steps and values that were looked at, and in words what differs."""

    steps: int = 0
    values: int = 0
    nonfinite: int = 0
    missing: int = 0
    differs: list[str] = field(default_factory=list)


def compare(sent: Batch, stored: Batch) -> Compared:
    """Compares two batches; a column in which nothing is present is as good as none."""
    found = Compared(steps=len(sent))
    if sent.lost != stored.lost:
        found.differs.append(f"hole {sent.lost} came back as {stored.lost}")
    if not np.array_equal(sent.step, stored.step):
        found.differs.append(f"steps {_span(sent)} came back as {_span(stored)}")
        return found
    _look(found, "time", _bits(sent.time), _bits(stored.time))
    for name in sorted({*sent.scalar_names, *stored.scalar_names}):
        _column(found, f"scalar {name}", sent.scalar(name), stored.scalar(name))
    for name in sorted({*sent.stats, *stored.stats}):
        _column(found, f"statistic {name}", _spread(sent, name), _spread(stored, name))
    ours, theirs = _histograms(sent), _histograms(stored)
    found.values += sum(len(counts) for counts in ours.values())
    if set(ours) != set(theirs) or any(not np.array_equal(ours[k], theirs[k]) for k in ours):
        found.differs.append("histograms differ")
    return found


def _column(
    found: Compared,
    what: str,
    sent: tuple[NDArray[Any], NDArray[Any]],
    stored: tuple[NDArray[Any], NDArray[Any]],
) -> None:
    if not np.array_equal(sent[1], stored[1]):
        found.differs.append(f"{what}: another set of values is missing")
        return
    there = sent[0][sent[1]]
    found.nonfinite += int(np.count_nonzero(~np.isfinite(there)))
    found.missing += int(np.count_nonzero(~sent[1]))
    _look(found, what, _bits(there), _bits(stored[0][stored[1]]))


def _look(found: Compared, what: str, sent: NDArray[Any], stored: NDArray[Any]) -> None:
    found.values += sent.size
    if not np.array_equal(sent, stored):
        found.differs.append(f"{what}: {int(np.count_nonzero(sent != stored))} values have other bits")


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(np.uint64 if values.dtype == np.float64 else np.uint32)


def _spread(batch: Batch, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """A statistic over all steps and all tensors that have a value of anything, in order of their names."""
    values, present = batch.stat(name)
    names = sorted(batch.tensor_names)
    order = [batch.tensor_names.index(tensor) for tensor in names]
    shape = (len(batch), len(names))
    all_values, all_present = np.zeros(shape, np.float32), np.zeros(shape, bool)
    all_values[batch.stat_row], all_present[batch.stat_row] = values[:, order], present[:, order]
    if not all_present.any():  # a batch without statistics carries no names in JSON
        return np.zeros((0, 0), np.float32), np.zeros((0, 0), bool)
    return all_values, all_present


def _histograms(batch: Batch) -> dict[tuple[int, str], NDArray[Any]]:
    """Counts by (step, tensor); one of only zeros may be left out."""
    out = {}
    for h, row in enumerate(batch.hist_row):
        for s, tensor in enumerate(batch.tensor_names):
            if batch.hist_log2[h, s].any():
                out[int(batch.step[row]), tensor] = batch.hist_log2[h, s]
    return out


def _span(batch: Batch) -> str:
    return f"{batch.step[0]} to {batch.step[-1]} ({len(batch)})" if len(batch) else "none"

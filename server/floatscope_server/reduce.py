"""Reduces long series and wide tables to what a screen shows, without losing a spike, a NaN or a gap."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Bool, Float64, Int64

COLUMNS = ("step", "min", "max", "mean", "last", "count", "nan", "inf")
MAX_POINTS = 10_000
MAX_COLUMNS = 500
MAX_CELLS = 2_500_000  # of one heat map, 2.5 MB as bytes: with very many tensors there are fewer columns
NON_FINITE, MISSING, LEVELS = 255, 254, 253

WORST_IS_LOW = frozenset({"headroom_log2", "sqnr_db", "amax_min_block"})
"""Statistics whose lowest value is the worst one; of all others it is the highest."""


def bin_starts(step: Int64, points: int, *, first: int, last: int) -> Int64:
    """Row at which each bin begins, at most ``points`` bins; steps ascend. With few rows each is its own bin.

    Bins have equal widths in steps, so that a bin means the same stretch in every series of a picture.
    """
    if len(step) <= points:
        return np.arange(len(step))
    width = -(-(last - first + 1) // points)
    which = (step - first) // width
    return np.flatnonzero(np.append(True, which[1:] != which[:-1]))


def summarise(step: Int64, value: Float64, points: int, *, first: int, last: int) -> dict[str, list[Any]]:
    """Column arrays of a series. count: values in the bin, of which nan and inf are not finite.

    min, max, mean and last are over the bin's finite values, None if it has none. step: the bin's first.
    """
    starts = bin_starts(step, points, first=first, last=last)
    if not len(starts):
        return {name: [] for name in COLUMNS}
    finite = np.isfinite(value)
    good = np.add.reduceat(finite, starts, dtype=np.int64)
    some = good > 0
    zeroed = np.where(finite, value, 0.0)
    # The last finite row of a bin: the highest row number among finite rows.
    last_row = np.maximum.reduceat(np.where(finite, np.arange(len(value)), -1), starts)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.add.reduceat(
            zeroed / np.repeat(np.maximum(good, 1), np.diff(np.append(starts, len(value)))), starts
        )
    columns: dict[str, NDArray[Any]] = {
        "min": np.minimum.reduceat(np.where(finite, value, np.inf), starts),
        "max": np.maximum.reduceat(np.where(finite, value, -np.inf), starts),
        "mean": mean,
        "last": value[np.maximum(last_row, 0)],
    }
    out: dict[str, list[Any]] = {"step": step[starts].tolist()}
    for name, column in columns.items():
        out[name] = [v if ok else None for v, ok in zip(column.tolist(), some.tolist(), strict=True)]
    out["count"] = np.diff(np.append(starts, len(value))).tolist()
    out["nan"] = np.add.reduceat(np.isnan(value), starts, dtype=np.int64).tolist()
    out["inf"] = np.add.reduceat(np.isinf(value), starts, dtype=np.int64).tolist()
    return out


@dataclass
class HeatMap:
    """Gathers the worst value per tensor and bin of steps. ``tensors``: rows from top to bottom."""

    stat: str
    tensors: Sequence[str]
    first: int
    last: int
    columns: int
    _worst: Float64 = field(init=False)
    _nan: NDArray[np.int64] = field(init=False)
    _inf: NDArray[np.int64] = field(init=False)
    _row_of: Mapping[str, int] = field(init=False)
    _width: int = field(init=False)

    def __post_init__(self) -> None:
        span = self.last - self.first + 1
        most = max(1, min(self.columns, MAX_COLUMNS, MAX_CELLS // max(len(self.tensors), 1)))
        self._width = -(-span // most)
        shape = (len(self.tensors), -(-span // self._width))
        self._worst = np.full(shape, np.nan)
        self._nan = np.zeros(shape, np.int64)
        self._inf = np.zeros(shape, np.int64)
        self._row_of = {name: s for s, name in enumerate(self.tensors)}

    def add(self, names: Sequence[str], step: Int64, values: Float64, present: Bool) -> None:
        """Takes in rows [D] of columns ``names`` [S]; names that are not rows of the map are passed over."""
        columns = [s for s, name in enumerate(names) if name in self._row_of]
        if not len(step) or not columns:
            return
        rows = np.array([self._row_of[names[s]] for s in columns])
        which = (step - self.first) // self._width
        starts = np.flatnonzero(np.append(True, which[1:] != which[:-1]))
        cells = np.ix_(rows, which[starts])
        values, present = values[:, columns], present[:, columns]
        finite = np.where(present & np.isfinite(values), values, np.nan)
        worst = np.fmin if self.stat in WORST_IS_LOW else np.fmax
        self._worst[cells] = worst(self._worst[cells], worst.reduceat(finite, starts, axis=0).T)
        self._nan[cells] += np.add.reduceat(present & np.isnan(values), starts, axis=0, dtype=np.int64).T
        self._inf[cells] += np.add.reduceat(present & np.isinf(values), starts, axis=0, dtype=np.int64).T

    def to_json(self) -> dict[str, Any]:
        """The heat map of the API: bytes 0 to 253 between lo and hi, 254 missing, 255 not finite.

        A tensor without any value has no row: a statistic of weights says nothing of inputs.
        """
        columns = np.arange(self._worst.shape[1])
        begin = self.first + columns * self._width
        odd = (self._nan > 0) | (self._inf > 0)
        rows = np.flatnonzero((~np.isnan(self._worst) | odd).any(axis=1))
        worst, odd, nan, inf = self._worst[rows], odd[rows], self._nan[rows], self._inf[rows]
        known = ~np.isnan(worst)
        finite = worst[known]
        lo, hi = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
        data = np.full(worst.shape, MISSING, np.uint8)
        if lo is not None and hi is not None:
            span = hi / 2 - lo / 2  # halves, so that the difference of two huge numbers stays finite
            share = (finite / 2 - lo / 2) / (span or 1.0)
            data[known] = np.clip(np.rint(share * LEVELS), 0, LEVELS).astype(np.uint8)
        data[odd] = NON_FINITE
        return {
            "stat": self.stat,
            "tensors": [self.tensors[int(row)] for row in rows],
            "from": begin.tolist(),
            "to": np.minimum(begin + self._width - 1, self.last).tolist(),
            "encoding": "u1",
            "lo": lo,
            "hi": hi,
            "data": base64.b64encode(data.tobytes()).decode(),
            "nan": _sparse(nan),
            "inf": _sparse(inf),
        }


def _sparse(counts: NDArray[np.int64]) -> list[list[int]]:
    rows, columns = np.nonzero(counts)
    return [[int(r), int(c), int(counts[r, c])] for r, c in zip(rows, columns, strict=True)]

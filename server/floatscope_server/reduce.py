"""Reduces long series and wide tables to what a screen shows, without losing a spike, a NaN or a gap."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Bool, Float64, Int64
from floatscope_server.levels import Level

COLUMNS = ("step", "min", "max", "mean", "last", "count", "nan", "inf")
MAX_POINTS = 10_000
MAX_COLUMNS = 500
MAX_CELLS = 2_500_000  # of one heat map, 2.5 MB as bytes: with very many tensors there are fewer columns
MANY_ROWS = 4  # of a bin
MAX_LISTED = 50_000  # cells with NaN, and with infinite values, of which a heat map says how many
NON_FINITE, MISSING, LEVELS = 255, 254, 253

WORST_IS_LOW = frozenset({"headroom_log2", "sqnr_db", "amax_min_block"})
"""Statistics whose lowest value is the worst one; of all others it is the highest."""


def bin_width(first: int, last: int, most: int) -> int:
    """The smallest power of two of which at most ``most`` bins cover the steps from first to last.

    Bins begin at multiples of it, so that those of a picture stay where they are while a run grows.
    """
    width = 1
    while last // width - first // width >= most:
        width *= 2
    return width


def columns(level: Level, *, first: int) -> dict[str, list[Any]]:
    """Column arrays of a level of one series. count: values in the bin, of which nan and inf are not finite.

    min, max, mean and last are over the bin's finite values, None if it has none. step: where the bin begins,
    or ``first`` if it begins before that.
    """
    out: dict[str, list[Any]] = {"step": np.maximum(level.bins * level.width, first).tolist()}
    some = (level.count[0] > level.nan[0] + level.inf[0]).tolist()
    finite = {"min": level.minimum, "max": level.maximum, "mean": level.mean, "last": level.last}
    for name, array in finite.items():
        found = [] if array is None else array[0].tolist()
        out[name] = [value if ok else None for value, ok in zip(found, some, strict=True)]
    return out | {
        "count": level.count[0].tolist(),
        "nan": level.nan[0].tolist(),
        "inf": level.inf[0].tolist(),
    }


@dataclass
class HeatMap:
    """Gathers the worst value per tensor and bin of steps. ``tensors``: rows from top to bottom.

    log2: cells are logarithms of the values; those of 0 and below are missing. width: of a column, in steps;
    a power of two, and columns begin at multiples of it.
    """

    stat: str
    tensors: Sequence[str]
    first: int
    last: int
    columns: int
    log2: bool = False
    width: int = field(init=False)
    _worst: Float64 = field(init=False)
    _nan: NDArray[np.int64] = field(init=False)
    _inf: NDArray[np.int64] = field(init=False)
    _row_of: Mapping[str, int] = field(init=False)
    _known: dict[tuple[str, ...], tuple[Int64, Int64]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        most = max(1, min(self.columns, MAX_COLUMNS, MAX_CELLS // max(len(self.tensors), 1)))
        self.width = bin_width(self.first, self.last, most)
        shape = (len(self.tensors), self.last // self.width - self.first // self.width + 1)
        self._worst = np.full(shape, np.nan)
        self._nan = np.zeros(shape, np.int64)
        self._inf = np.zeros(shape, np.int64)
        self._row_of = {name: s for s, name in enumerate(self.tensors)}

    def add(self, names: Sequence[str], step: Int64, values: NDArray[Any], present: Bool | None) -> None:
        """Takes in rows [D] of columns ``names`` [S]; names that are not rows of the map are passed over.

        present: None if all are. Steps ascend.
        """
        rows, taken = self._rows(names)
        if not len(step) or not len(rows):
            return
        which = step // self.width
        starts = np.flatnonzero(np.append(True, which[1:] != which[:-1]))
        columns = which[starts] - self.first // self.width
        if len(rows) < len(names):
            values, present = values[:, taken], None if present is None else present[:, taken]
        finite = np.isfinite(values) if present is None else np.isfinite(values) & present
        if finite.all():
            worst = _reduced(np.minimum if self._low else np.maximum, values, starts)
        else:
            there = True if present is None else present
            for cells, odd in ((self._nan, np.isnan(values)), (self._inf, np.isinf(values))):
                counts = np.add.reduceat(odd & there, starts, axis=0, dtype=np.int64)
                cells[np.ix_(rows, columns)] += counts.T
            worst = _reduced(np.fmin if self._low else np.fmax, np.where(finite, values, np.nan), starts)
        self._take(rows, columns, worst.T)

    def add_level(self, names: Sequence[str], level: Level) -> None:
        """Takes in a level of tensors ``names`` [S], of a width of which the map's is a multiple."""
        rows, taken = self._rows(names)
        if not len(level.bins) or not len(rows):
            return
        which = level.bins * level.width // self.width
        starts = np.flatnonzero(np.append(True, which[1:] != which[:-1]))
        columns = which[starts] - self.first // self.width
        worst = level.minimum if self._low else level.maximum
        for cells, odd in ((self._nan, level.nan), (self._inf, level.inf)):
            if odd.any():
                cells[np.ix_(rows, columns)] += np.add.reduceat(odd[taken], starts, axis=1)
        if len(taken) < len(names):
            worst = worst[taken]
        if len(starts) < len(which):
            worst = (np.fmin if self._low else np.fmax).reduceat(worst, starts, axis=1)
        self._take(rows, columns, worst)

    def _take(self, rows: Int64, columns: Int64, worst: NDArray[Any]) -> None:
        worse = np.fmin if self._low else np.fmax
        first, end = int(columns[0]), int(columns[-1]) + 1
        if end - first == len(columns):  # no hole: a slice is quicker than a list of columns
            self._worst[rows, first:end] = worse(self._worst[rows, first:end], worst)
        else:
            cells = np.ix_(rows, columns)
            self._worst[cells] = worse(self._worst[cells], worst)

    @property
    def cells(self) -> tuple[Float64, Int64, Int64]:
        """The worst value, the number of NaN and of infinite values by tensor and column."""
        return self._worst, self._nan, self._inf

    @property
    def _low(self) -> bool:
        return self.stat in WORST_IS_LOW

    def _rows(self, names: Sequence[str]) -> tuple[Int64, Int64]:
        """Rows of the map, and the columns of ``names`` that they are."""
        if (known := self._known.get(tuple(names))) is not None:
            return known
        rows = np.array([self._row_of.get(name, -1) for name in names], np.int64)
        taken = np.flatnonzero(rows >= 0)
        self._known[tuple(names)] = (rows[taken], taken)
        return rows[taken], taken

    def to_json(self) -> dict[str, Any]:
        """The heat map of the API: bytes 0 to 253 between lo and hi, 254 missing, 255 not finite.

        A tensor without any value has no row: a statistic of weights says nothing of inputs. nan and inf list
        at most 50,000 cells each, the first ones; ``nan_left_out`` and ``inf_left_out`` say how many more
        there are.
        """
        begin = (self.first // self.width + np.arange(self._worst.shape[1])) * self.width
        odd = (self._nan > 0) | (self._inf > 0)
        rows = np.flatnonzero((~np.isnan(self._worst) | odd).any(axis=1))
        worst, odd, nan, inf = self._worst[rows], odd[rows], self._nan[rows], self._inf[rows]
        if self.log2:
            worst = np.log2(worst, out=np.full(worst.shape, np.nan), where=worst > 0)
        known = ~np.isnan(worst)
        lo = float(np.fmin.reduce(worst, axis=None)) if known.any() else None
        hi = float(np.fmax.reduce(worst, axis=None)) if known.any() else None
        data = np.full(worst.shape, MISSING, np.uint8)
        if lo is not None and hi is not None:
            span = hi / 2 - lo / 2  # halves, so that the difference of two huge numbers stays finite
            share = np.where(known, worst, lo)
            share *= 0.5
            share -= lo / 2
            share /= span or 1.0
            share *= LEVELS
            np.copyto(data, np.clip(np.rint(share), 0, LEVELS).astype(np.uint8), where=known)
        data[odd] = NON_FINITE
        return {
            "stat": self.stat,
            "tensors": [self.tensors[int(row)] for row in rows],
            "from": np.maximum(begin, self.first).tolist(),
            "to": np.minimum(begin + self.width - 1, self.last).tolist(),
            "encoding": "u1",
            **({"log2": True} if self.log2 else {}),
            "lo": lo,
            "hi": hi,
            "data": base64.b64encode(data.tobytes()).decode(),
            **_sparse("nan", nan),
            **_sparse("inf", inf),
        }


def _reduced(worse: np.ufunc, values: NDArray[Any], starts: Int64) -> NDArray[Any]:
    """``worse.reduceat`` over rows, which is many times slower where bins have many rows."""
    if len(starts) * MANY_ROWS > len(values):
        return np.asarray(worse.reduceat(values, starts, axis=0))
    ends = [*starts[1:].tolist(), len(values)]
    return np.stack([worse.reduce(values[a:b], axis=0) for a, b in zip(starts.tolist(), ends, strict=True)])


def _sparse(name: str, counts: NDArray[np.int64]) -> dict[str, Any]:
    """[row, column, count] of each cell; a run that diverged has very many, and their bytes say so too."""
    rows, columns = np.nonzero(counts)
    left_out = len(rows) - MAX_LISTED
    rows, columns = rows[:MAX_LISTED], columns[:MAX_LISTED]
    cells = np.stack([rows, columns, counts[rows, columns]], axis=1).tolist()
    return {name: cells} | ({f"{name}_left_out": left_out} if left_out > 0 else {})

"""A batch:

consecutive steps of one rank as columns. This is the form in which steps travel, are judged and are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.names import HIST_BINS

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


def _no_rows() -> Int64:
    return np.empty(0, np.int64)


def _no_hist() -> NDArray[np.uint32]:
    return np.empty((0, 0, HIST_BINS), np.uint32)


@dataclass(frozen=True, eq=False)
class Batch:
    """T steps of one rank with K scalars, of which D steps carry statistics of S tensors and H carry
    histograms.

    step: int64 [T].  time: float64 [T], Unix seconds UTC, NaN where the sender gave none.
    scalar_names: K names.  scalars: float64 [T, K].  scalars_present: bool [T, K].
    tensor_names: S names, sorted by code point.  stat_row: int64 [D], indices into ``step``, ascending.
    stats: name -> float32 [D, S].  stats_present: name -> bool [D, S], with the same keys.
    hist_row: int64 [H], indices into ``step``.  hist_log2: uint32 [H, S, 64], counts by exponent from -40 to
    23. segment: which life of the run the sender says this is, or None.  lost: (first, last) step of a hole;
    T is then 0. A value that is not present is 0.0 in its array: always look at the presence mask.
    """

    step: Int64
    time: Float64
    scalar_names: tuple[str, ...]
    scalars: Float64
    scalars_present: Bool
    tensor_names: tuple[str, ...] = ()
    stat_row: Int64 = field(default_factory=_no_rows)
    stats: Mapping[str, Float32] = field(default_factory=dict)
    stats_present: Mapping[str, Bool] = field(default_factory=dict)
    hist_row: Int64 = field(default_factory=_no_rows)
    hist_log2: NDArray[np.uint32] = field(default_factory=_no_hist)
    segment: int | None = None
    lost: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.step)

    def scalar(self, name: str) -> tuple[Float64, Bool]:
        """Values float64 [T] and presence bool [T] of a scalar; all missing if the batch has none of it."""
        if name not in self.scalar_names:
            return np.zeros(len(self)), np.zeros(len(self), bool)
        k = self.scalar_names.index(name)
        return self.scalars[:, k], self.scalars_present[:, k]

    def stat(self, name: str) -> tuple[Float32, Bool]:
        """Values float32 [D, S] and presence bool [D, S] of one statistic; all missing if the batch does not
        carry it.
        """
        shape = (len(self.stat_row), len(self.tensor_names))
        values = self.stats.get(name)
        if values is None:
            return np.zeros(shape, np.float32), np.zeros(shape, bool)
        return values, self.stats_present[name]

    def rows(self, start: int, stop: int) -> Batch:
        """The batch with only the steps from row ``start`` up to, not including, row ``stop``."""
        stats = (self.stat_row >= start) & (self.stat_row < stop)
        hists = (self.hist_row >= start) & (self.hist_row < stop)
        return replace(
            self,
            step=self.step[start:stop],
            time=self.time[start:stop],
            scalars=self.scalars[start:stop],
            scalars_present=self.scalars_present[start:stop],
            stat_row=self.stat_row[stats] - start,
            stats={name: values[stats] for name, values in self.stats.items()},
            stats_present={name: mask[stats] for name, mask in self.stats_present.items()},
            hist_row=self.hist_row[hists] - start,
            hist_log2=self.hist_log2[hists] if len(self.hist_log2) else self.hist_log2,
        )


def lost_batch(first_step: int, last_step: int) -> Batch:
    """A batch that only says: these steps were lost before they could be sent."""
    return Batch(
        step=np.empty(0, np.int64),
        time=np.empty(0),
        scalar_names=(),
        scalars=np.empty((0, 0)),
        scalars_present=np.empty((0, 0), bool),
        lost=(first_step, last_step),
    )

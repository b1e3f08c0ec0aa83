"""Slow growth per tensor, for which a running level is too quick to follow and a jump limit too far away.

A fast average of each signal is compared with the lowest it has been. Signals: ``amax_trend`` (activations
and weights that grow away from the others of their class), ``grad_trend`` (gradients that grow),
``underflow_trend``. The onset is the step at which CREEP_SHARE of the limit was passed for good. Off during
learning-rate warm-up, when everything grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES, Columns
from floatscope_diagnostics.detectors.row import JudgedRow, StatRow
from floatscope_diagnostics.frame import AMAX, UNDERFLOW

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

READY_ROWS = 16
FAST_ROWS = 6  # memory of the fast average
# A single row moves the fast average as if it were at most this far away (octaves; x10 for percent).
MAX_MOVE = 1.5
PERSIST_ROWS = 4
CREEP_SHARE = 0.6  # of a limit, passed for good: the onset
GROWTH_LOG2 = (3.0, 1.6)  # activations, weights; clean runs up to 1.2 and 0.8 in 300 steps from scratch
GRAD_GROWTH_LOG2 = 2.5  # clean gradients wander by 2 octaves
UNDERFLOW_CREEP_PCT = (6.0, 15.0)  # forward, backward; clean runs 1 and 4
_ROWS = [AMAX, UNDERFLOW]
MOVES = np.array([[MAX_MOVE], [MAX_MOVE * 10]])
_RATES = 1.0 / np.clip(np.arange(FAST_ROWS + 1), 1, None)  # by count: the plain mean at first


class Trends:
    """Fast averages and their lowest values, arrays (2, S): log2 amax and underflow_pct."""

    def __init__(self, size: int = 0) -> None:
        self.fast = np.full((2, size), np.nan)
        self.low = np.full((2, size), np.nan)
        self.count = np.zeros((2, size), np.int32)
        self.creep = np.full((2, size), -1, np.int64)  # step since which CREEP_SHARE of the limit is passed
        self.rows = np.zeros((2, size), np.int32)  # rows in a row above the limit
        self._growing = True  # some creep or rows may be set; checked again at the next row
        self._version = -1
        self._limit = np.zeros((2, size))

    ARRAYS = ("fast", "low", "count", "creep", "rows")

    def resize(self, size: int) -> None:
        have = self.fast.shape[1]
        if have == size:
            return
        grown = Trends(size)
        for name in self.ARRAYS:
            getattr(grown, name)[:, :have] = getattr(self, name)
            setattr(self, name, getattr(grown, name))

    def restart(self) -> None:
        fresh = Trends(self.fast.shape[1])
        for name in self.ARRAYS:
            setattr(self, name, getattr(fresh, name))
        self._growing = True

    def rows_in_order(self, judged: Sequence[JudgedRow]) -> None:
        """Judges rows of one segment, in order; excluded and frozen tensors keep their state. While the run
        warms up the growth of amax starts afresh.
        """
        size = len(judged[0].row.columns)
        self.resize(size)
        limits = self._limits(judged[0].row.columns)
        near = limits * CREEP_SHARE
        for j in judged:
            if j.warming:
                self.fast[0], self.low[0] = np.nan, np.nan
                self.count[0], self.creep[0], self.rows[0] = 0, -1, 0
                self._growing = bool((self.creep >= 0).any() or self.rows.any())
            use = self._follow(j)
            rise = self.fast - self.low
            with np.errstate(invalid="ignore"):
                early = (rise > near) & use
            if not self._growing and not early.any():
                continue
            self._growing = True
            rise = np.where(np.isnan(rise), 0.0, rise)
            step = j.row.step
            self.creep = np.where(early & (self.creep < 0), step, np.where(early | ~use, self.creep, -1))
            above = (rise > limits) & use & (self.count >= READY_ROWS)
            self.rows = np.where(above, self.rows + 1, np.where(use, 0, self.rows)).astype(np.int32)
            if (self.rows >= PERSIST_ROWS).any():
                self._emit(j.row, rise)
            self._growing = bool((self.creep >= 0).any() or self.rows.any())

    def _follow(self, judged: JudgedRow) -> Bool:
        """Takes one row into the averages; where it could be used (2, S)."""
        x = judged.row.frame.signals[judged.row.d][_ROWS]
        use: Bool = ~np.isnan(x)
        use &= ~(judged.excluded | judged.frozen)
        self.count += use
        rate = _RATES.take(self.count, mode="clip")
        move = x - self.fast
        np.minimum(move, MOVES, out=move)
        np.maximum(move, -MOVES, out=move)
        move *= rate
        move += self.fast
        first = np.isnan(self.fast)
        np.copyto(move, x, where=first)
        np.copyto(self.fast, move, where=use)
        low = np.fmin(self.low, self.fast)
        np.copyto(self.low, low, where=self.count >= READY_ROWS // 2)
        return use

    def _limits(self, columns: Columns) -> Float64:
        if self._version != columns.version:
            weight = columns.role == ROLE_CODES["weight"]
            growth = np.where(
                columns.backward, GRAD_GROWTH_LOG2, np.where(weight, GROWTH_LOG2[1], GROWTH_LOG2[0])
            )
            creep = np.where(columns.backward, UNDERFLOW_CREEP_PCT[1], UNDERFLOW_CREEP_PCT[0])
            self._version, self._limit = columns.version, np.stack([growth, creep])
        return self._limit

    def _emit(self, row: StatRow, rise: Float64) -> None:
        columns = row.columns
        grown = self.rows[0] >= PERSIST_ROWS
        alone = np.zeros(len(columns), bool)
        for code in (ROLE_CODES["input"], ROLE_CODES["weight"], ROLE_CODES["output"]):
            mine = columns.role == code
            if mine.any():
                ordinary = float(np.median(rise[0][mine]))
                alone |= mine & (
                    rise[0] - ordinary > 0.7 * np.where(code == 1, GROWTH_LOG2[1], GROWTH_LOG2[0])
                )
        self._hit(row, "amax_trend", 0, grown & alone, rise)
        self._hit(row, "grad_trend", 0, grown & columns.backward, rise)
        self._hit(row, "underflow_trend", 1, self.rows[1] >= PERSIST_ROWS, rise)

    def _hit(self, row: StatRow, signal: str, k: int, mask: Bool, rise: Float64) -> None:
        if not mask.any():
            return
        began = int(self.creep[k][mask].min())
        values = rise[0] if k == 0 else self.fast[1]
        row.hit(
            signal,
            mask=mask,
            values=values,
            onset=began if began >= 0 else row.step,
            gap_rows=6,
        )

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.ARRAYS}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Trends:
        out = cls()
        for name in cls.ARRAYS:
            setattr(out, name, state[name])
        return out

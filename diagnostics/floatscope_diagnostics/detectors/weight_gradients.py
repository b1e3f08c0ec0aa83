"""Whether a weight's gradient fits what it is made of.

The gradient of a linear's weight is the sum over tokens of grad_output times input, so its norm moves with
the two tensors' sizes. log2(grad_norm / (rms of input * rms of grad_output)) of a layer is steady, and what
moves all layers alike (clipping, a loss scale, a batch whose tokens agree) goes away with the median over
layers. A reduction that reads a buffer too early, or twice, breaks the relation in single layers of single
steps, and leaves the median where it was.

Where the median itself leaves its level, the batch is another one: few tokens carry the gradient, and how few
differs from layer to layer. Layers then scatter about as far as all of them moved, so the limit of a layer
grows by as much. Hard batches come in bursts while a deep model is young; without this they are a race.

Signal: ``weight_grad_flicker``, layers whose gradient does not fit in some steps and fits again in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES, Columns
from floatscope_diagnostics.detectors.row import StatRow, skipped_by_scaler
from floatscope_diagnostics.frame import GRAD, RMS
from floatscope_diagnostics.tracker import Tracker

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]

MIN_LAYERS = 4  # fewer have no median to speak of
READY_ROWS = 24
FLOOR_LOG2 = 0.08  # spread of the steadiest layers of healthy runs
ODD_LOG2 = 0.4  # a half that is lost is 0.5, one that counts twice 0.66; healthy: 1 % of layer-steps
ODD_SIGMA = 4.0
BACK_SHARE = 0.5  # of the limit: back in line
ROW_MAX = 2.0  # layers of one step that count; one odd batch moves several at once
EXPECTED = 0.35  # odd layers a step that are no news
ALARM = 5.0  # cumulative sum of odd layers beyond EXPECTED
GAP_ROWS = 16
LEVEL_FLOOR_LOG2 = 0.1  # of the median over layers: nothing is judged by it, its updates are clipped


class WeightGradients:
    """One rank's layers with a weight, its input and its grad_output."""

    def __init__(self) -> None:
        self.tracker = Tracker(np.array([[FLOOR_LOG2]]), 0)
        self.common = Tracker(np.array([[LEVEL_FLOOR_LOG2]]), 1)  # the median over layers
        self.odd = np.zeros(0, bool)
        self.sum = 0.0
        self.since = -1
        self._version = -1
        self._weight: Int64 = np.zeros(0, np.int64)
        self._input: Int64 = np.zeros(0, np.int64)
        self._grad: Int64 = np.zeros(0, np.int64)

    def seam(self) -> None:
        self.tracker.restart()
        self.common.restart()
        self.odd[:] = False
        self.sum, self.since = 0.0, -1

    def step(self, row: StatRow, *, excluded: Bool, warming: bool) -> None:
        """Judges one row; excluded tensors (S,) hold NaN or Inf, or have a wrong scale."""
        self._resize(row.columns)
        if len(self._weight) < MIN_LAYERS or warming or skipped_by_scaler(row.scalars):
            return
        x = row.frame.signals[row.d]
        fit = np.full(len(row.columns), np.nan)
        fit[self._weight] = x[GRAD, self._weight] - x[RMS, self._input] - x[RMS, self._grad]
        bad = excluded[self._weight] | excluded[self._input] | excluded[self._grad]
        fit[self._weight[bad]] = np.nan
        known = fit[np.isfinite(fit)]
        if len(known) < MIN_LAYERS:
            return
        median = float(np.partition(known, len(known) // 2)[len(known) // 2])
        fit -= median
        away = np.abs(fit - self.tracker.center[0])
        limit = np.maximum(ODD_LOG2, ODD_SIGMA * self.tracker.deviation()[0]) + self._moved(median)
        ready = self.tracker.count[0] >= READY_ROWS
        with np.errstate(invalid="ignore"):
            fresh = ready & ~self.odd & (away > limit)
            self.odd = np.where(
                np.isnan(away), self.odd, ready & (away > np.where(self.odd, BACK_SHARE * limit, limit))
            )
        self._add(row, fresh, away)
        self.tracker.update(fit[None, :])
        self.common.update(np.array([[median]]))

    def _moved(self, median: float) -> float:
        """Octaves by which all layers alike are away from their level."""
        if self.common.count[0, 0] < READY_ROWS:
            return 0.0
        return abs(median - float(self.common.center[0, 0]))

    def _add(self, row: StatRow, fresh: Bool, away: Float64) -> None:
        self.sum = max(0.0, self.sum + min(float(fresh.sum()), ROW_MAX) - EXPECTED)
        self.sum = min(self.sum, 2 * ALARM)
        if self.sum == 0.0:
            self.since = -1
        elif self.since < 0:
            self.since = row.step
        if self.sum < ALARM or not fresh.any():
            return
        row.hit(
            "weight_grad_flicker",
            mask=fresh,
            values=np.where(np.isnan(away), 0.0, away),
            onset=self.since,
            gap_rows=GAP_ROWS,
        )

    def _resize(self, columns: Columns) -> None:
        if self._version == columns.version:
            return
        self._version = columns.version
        self.tracker.resize(len(columns))
        if len(self.odd) < len(columns):
            self.odd = np.concatenate([self.odd, np.zeros(len(columns) - len(self.odd), bool)])
        found = []
        for i in np.flatnonzero(columns.role == ROLE_CODES["weight"]).tolist():
            layer = columns.names[i].rpartition("/")[0]
            pair = columns.index.get(f"{layer}/input"), columns.index.get(f"{layer}/grad_output")
            if pair[0] is not None and pair[1] is not None:
                found.append((i, *pair))
        self._weight, self._input, self._grad = np.array(found, np.int64).reshape(-1, 3).T

    def state(self) -> dict[str, Any]:
        return {
            "tracker": self.tracker.state(),
            "common": self.common.state(),
            "odd": self.odd,
            "sum": self.sum,
            "since": self.since,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> WeightGradients:
        out = cls()
        out.tracker.load(state["tracker"])
        out.common.load(state["common"])
        out.odd, out.sum, out.since = state["odd"], float(state["sum"]), int(state["since"])
        return out

"""Steps in the size of tensors: from one row to the next an input's rms is at another level and stays there.

The rms of a whole tensor wanders far less than its largest element, so that a step of half an octave can be
told from noise. Gradients move together with the loss (common cause): of them only the median step over all
is kept, the loss scale taken out, and what a single one does against that median. Where the rms is not logged
its place is taken by amax, whose larger scatter makes the limits wider.

Signals: ``rms_step`` (inputs and outputs that stepped; values in octaves), ``gradients_step`` (median octaves
over all grad_output tensors; ``extra`` has the signed number as ``log2``), ``gradient_apart`` (grad_output of
single layers, against the median), ``weight_step`` (weights, which no optimizer moves that far in a step),
``zeros_appear`` (a share of exact zeros in a tensor that had none), ``underflow_step`` (the underflow of a
gradient that begins from one row to the next). ``extra`` of the first and third has ``jump``: octaves gained
from the row before the onset to the onset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES, Columns
from floatscope_diagnostics.detectors.row import StatRow, skipped_by_scaler
from floatscope_diagnostics.frame import AMAX, RMS
from floatscope_diagnostics.tracker import Tracker

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int32 = NDArray[np.int32]

READY_ROWS = 32
FLOOR_LOG2 = 0.04
STEP_LOG2, STEP_SIGMA = 0.5, 7.0  # another domain moves an input's rms by up to 0.5 octaves and 3 sigma
GRAD_STEP_LOG2, GRAD_STEP_SIGMA = 1.2, 4.0  # median over gradients; a hard batch moves it for one row
PERSIST_ROWS = 3
APART_LOG2, APART_SIGMA = 1.0, 7.0  # one gradient against the median of all
# Exact zeros before the cast; healthy tensors have none.
ZERO_RISE_PCT, ZERO_SIGMA, ZERO_FLOOR_PCT = 4.0, 8.0, 0.2
UNDERFLOW_STEP_PCT, UNDERFLOW_SHARE = 3.0, 0.7  # growing logits gain at most a third of it in three rows
RELEASE_ROWS = 48  # a step that stays this long is the new level
MIN_GRADIENTS = 3


class LevelSteps:
    """One rank's levels of log2 rms."""

    def __init__(self) -> None:
        self.tracker = Tracker(np.array([[FLOOR_LOG2], [ZERO_FLOOR_PCT]]), 0)
        self.rows: Int32 = np.zeros(0, np.int32)  # rows in a row off the level, negative below it
        self.since = np.zeros(0, np.int64)
        self.away = np.zeros(0)  # of the row before, in octaves
        self.jump = np.zeros(0)
        self.zero_rows: Int32 = np.zeros(0, np.int32)
        self.zero_since = np.zeros(0, np.int64)
        self.has_rms = np.zeros(0, bool)
        self.flushed = np.full((2 * PERSIST_ROWS, 0), np.nan)  # underflow_pct of the last rows
        self.flushed_steps = [-1] * (2 * PERSIST_ROWS)
        self.grad_rows = 0
        self.grad_since = -1
        self._version = -1
        self._weight: Bool = np.zeros(0, bool)
        self._activation: Bool = np.zeros(0, bool)  # an activation or the gradient of one
        self._least: Float64 = np.zeros(0)  # smallest step, in octaves
        self._sigmas: Float64 = np.zeros(0)

    def seam(self) -> None:
        self.tracker.restart()
        self.rows[:] = 0
        self.zero_rows[:] = 0
        self.away[:] = 0.0
        self.flushed[:] = np.nan
        self.grad_rows = 0

    def step(self, row: StatRow, *, excluded: Bool, warming: bool) -> None:
        """Judges one row; excluded tensors (S,) hold NaN or Inf."""
        columns = row.columns
        size = len(columns)
        self._resize(size)
        if warming:
            self.seam()  # everything moves: the levels are learned afterwards
            return
        x = np.empty((2, size))
        x[0], x[1] = self._size(row), row.stat("zero_pct")
        scale = row.scalars.get("loss_scale", 1.0)
        if 0 < scale < np.inf and scale != 1.0:
            x[0, columns.backward] -= np.log2(scale)
        skipped = skipped_by_scaler(row.scalars)
        x[0, excluded | columns.backward if skipped else excluded] = np.nan
        all_away = x - self.tracker.center
        away, deviation = all_away[0].copy(), self.tracker.deviation()
        known = self.tracker.count >= READY_ROWS
        ready = known[0] & ~np.isnan(away)
        backward = ready & columns.gradient
        held = self._gradients(row, away, deviation[0], backward)
        if backward.sum() >= MIN_GRADIENTS:
            away[columns.backward] -= _middle(away[backward])
        off = self._steps(row, away, deviation[0], ready)
        if not skipped:
            self._zeros(row, all_away[1], deviation[1], known[1])
            self._flushed(row)
        frozen = (off & (np.abs(self.rows) <= RELEASE_ROWS)) | (held & columns.backward)
        zeros = (self.zero_rows > 0) & (self.zero_rows <= RELEASE_ROWS)
        use = ~np.isnan(all_away)
        use[0] &= ~frozen
        use[1] &= ~zeros
        self.tracker.take(all_away, use)

    def _size(self, row: StatRow) -> Float64:
        """log2 rms (S,); of a tensor whose rms was never logged, log2 amax."""
        signals = row.frame.signals[row.d]
        known = ~np.isnan(signals[RMS])
        fresh = known & ~self.has_rms
        if fresh.any():
            self.tracker.count[0, fresh] = 0  # its level was that of amax
            self.has_rms |= known
        size: Float64 = np.where(self.has_rms, signals[RMS], signals[AMAX])
        return size

    def _resize(self, size: int) -> None:
        more = size - len(self.rows)
        if more <= 0:
            return
        self.tracker.resize(size)
        self.rows = np.concatenate([self.rows, np.zeros(more, np.int32)])
        self.zero_rows = np.concatenate([self.zero_rows, np.zeros(more, np.int32)])
        self.since = np.concatenate([self.since, np.full(more, -1, np.int64)])
        self.zero_since = np.concatenate([self.zero_since, np.full(more, -1, np.int64)])
        self.flushed = np.concatenate([self.flushed, np.full((len(self.flushed), more), np.nan)], axis=1)
        self.has_rms = np.concatenate([self.has_rms, np.zeros(more, bool)])
        self.away = np.concatenate([self.away, np.zeros(more)])
        self.jump = np.concatenate([self.jump, np.zeros(more)])

    def _prepare(self, columns: Columns) -> None:
        """What follows from the columns alone, made again when they change."""
        if self._version == columns.version:
            return
        self._version = columns.version
        self._weight = columns.role == ROLE_CODES["weight"]
        self._activation = columns.activation | columns.gradient
        self._least = np.where(columns.gradient, APART_LOG2, STEP_LOG2)
        self._sigmas = np.where(columns.gradient, APART_SIGMA, STEP_SIGMA)

    def _steps(self, row: StatRow, away: Float64, deviation: Float64, ready: Bool) -> Bool:
        self._prepare(row.columns)
        forward, backward = row.columns.activation, row.columns.gradient
        weight = self._weight & self.has_rms  # amax is a single element
        with np.errstate(invalid="ignore"):
            limit = np.maximum(self._least, self._sigmas * deviation)
            off: Bool = ready & (self._activation | weight) & (np.abs(away) > limit)
        if not off.any() and not self.rows.any():
            self.away = np.where(ready, away, 0.0)
            return off
        sign = np.sign(np.nan_to_num(away)).astype(np.int32)
        goes_on = off & (np.sign(self.rows) == sign)
        unknown = np.isnan(away) & (self.rows != 0)  # a skipped step says nothing about gradients
        begins = off & ~goes_on
        self.since = np.where(begins, row.step, self.since)
        self.jump = np.where(begins, np.abs(away - self.away), self.jump)
        rows = np.where(goes_on, self.rows + sign, np.where(off, sign, 0))
        self.rows = np.where(unknown, self.rows, rows).astype(np.int32)
        self.away = np.where(ready, away, 0.0)
        lasting = np.abs(self.rows) >= PERSIST_ROWS
        for signal, kind in (("rms_step", forward), ("gradient_apart", backward), ("weight_step", weight)):
            mask = lasting & kind
            if mask.any():
                worst = int(np.argmax(np.where(mask, np.abs(away), -np.inf)))
                extra = {"jump": float(self.jump[worst])}
                self._hit(row, signal, mask, np.abs(away), onset=int(self.since[mask].min()), extra=extra)
        return off

    def _zeros(self, row: StatRow, away: Float64, deviation: Float64, ready: Bool) -> None:
        with np.errstate(invalid="ignore"):
            rises = ready & (away > np.maximum(ZERO_RISE_PCT, ZERO_SIGMA * deviation))
        if not rises.any() and not self.zero_rows.any():
            return
        self.zero_since = np.where(rises & (self.zero_rows == 0), row.step, self.zero_since)
        self.zero_rows = np.where(rises, self.zero_rows + 1, 0).astype(np.int32)
        lasting = self.zero_rows >= PERSIST_ROWS
        if lasting.any():
            self._hit(row, "zeros_appear", lasting, away, onset=int(self.zero_since[lasting].min()))

    def _flushed(self, row: StatRow) -> None:
        """Compares the underflow of gradients in the last three rows with the three before them."""
        values = np.where(row.columns.backward, row.stat("underflow_pct"), np.nan)
        self.flushed = np.concatenate([self.flushed[1:], values[None, :]])
        self.flushed_steps = [*self.flushed_steps[1:], row.step]
        if not (values > UNDERFLOW_STEP_PCT).any():  # then none of them can have risen so far
            return
        with np.errstate(invalid="ignore"):
            before, after = self.flushed[:PERSIST_ROWS].max(axis=0), self.flushed[PERSIST_ROWS:].min(axis=0)
            mask = (after - before > UNDERFLOW_STEP_PCT) & (after - before > UNDERFLOW_SHARE * after)
        if mask.any():
            self._hit(row, "underflow_step", mask, after, onset=self.flushed_steps[PERSIST_ROWS])

    def _gradients(self, row: StatRow, away: Float64, deviation: Float64, mine: Bool) -> bool:
        if mine.sum() < MIN_GRADIENTS:
            self.grad_rows = 0
            return False
        middle, spread = _middle(away[mine]), _middle(deviation[mine])
        if abs(middle) <= max(GRAD_STEP_LOG2, GRAD_STEP_SIGMA * spread):
            self.grad_rows = 0
            return False
        sign = 1 if middle > 0 else -1
        if self.grad_rows * sign <= 0:
            self.grad_rows, self.grad_since = 0, row.step
        self.grad_rows += sign
        if abs(self.grad_rows) >= PERSIST_ROWS:
            extra = {"log2": middle}
            self._hit(row, "gradients_step", mine, np.abs(away), onset=self.grad_since, extra=extra)
        return abs(self.grad_rows) <= RELEASE_ROWS

    def _hit(
        self,
        row: StatRow,
        signal: str,
        mask: Bool,
        values: Float64,
        *,
        onset: int,
        extra: Mapping[str, float] | None = None,
    ) -> None:
        row.hit(
            signal,
            mask=mask,
            values=values,
            onset=onset,
            gap_rows=4,
            extra=None if row.log.is_open(signal, row=row.index) else extra,
        )

    def state(self) -> dict[str, Any]:
        return {
            "tracker": self.tracker.state(),
            "rows": self.rows,
            "since": self.since,
            "away": self.away,
            "jump": self.jump,
            "zero_rows": self.zero_rows,
            "zero_since": self.zero_since,
            "has_rms": self.has_rms,
            "flushed": self.flushed,
            "flushed_steps": self.flushed_steps,
            "grad_rows": self.grad_rows,
            "grad_since": self.grad_since,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> LevelSteps:
        out = cls()
        out.tracker.load(state["tracker"])
        for name in (
            "rows",
            "since",
            "away",
            "jump",
            "zero_rows",
            "zero_since",
            "has_rms",
            "flushed",
            "flushed_steps",
        ):
            setattr(out, name, state[name])
        out.grad_rows, out.grad_since = int(state["grad_rows"]), int(state["grad_since"])
        return out


def _middle(values: Float64) -> float:
    """The upper median: one of the values, so that it does not depend on how they are added up."""
    k = len(values) // 2
    return float(np.partition(values, k)[k])

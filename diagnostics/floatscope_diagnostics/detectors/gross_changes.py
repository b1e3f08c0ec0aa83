"""Changes so gross that no healthy tensor shows them, whatever the run is going through: judged without
levels.

A level takes rows to learn and means little while a run warms up: everything grows, spreads are wide, and a
stretch of ordinary jumps of one tensor hides the one that matters of another. So a tensor is also held
against itself a few rows before: against a peak that sinks by FADE_LOG2 a row. What is asked for lies far
beyond the worst of healthy runs, first steps and warm-ups included (in brackets). The first rows of a
segment, where delayed scales are 1 and gradients underflow altogether, are only remembered.

Signals: ``amax_leap`` amax far above its own last rows; ``idle_after_leap`` amax is back one to RETURN_ROWS
rows later, and the scale leaves a range unused as the leap has taken; ``flushed_after_leap`` meanwhile the
tensor rounds to zero as it did not before; ``clipped_at_leap`` much of an activation or gradient clips in
the row in which it rose; ``gradient_flushed`` nearly all of a gradient that was there before rounds to zero,
row after row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import CURRENT, Columns
from floatscope_diagnostics.detectors.limits import classes_of
from floatscope_diagnostics.detectors.row import StatRow
from floatscope_diagnostics.frame import AMAX, HEADROOM, OVERFLOW, UNDERFLOW

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

FADE_LOG2 = 0.5  # octaves a row: a peak eight rows ago still covers four octaves less
FADE_PCT = 5.0  # points of underflow a row
KNOWN_ROWS = 2  # rows of a tensor before it is judged
# By class: forward, weight, backward.
LEAP_LOG2 = (3.5, 2.0, 12.0)  # octaves in one row [2.4, 0.1, 8.0]
IDLE_LOG2 = (6.0, 4.0, 12.0)  # bits unused beyond what was unused before the leap [2.9, 0.1, 9.9]
RETURN_LOG2 = (2.0, 1.0, 4.0)  # amax this close to what it was is back
RETURN_ROWS = 3
CLIPPED_PCT = (25.0, 101.0, 60.0)  # of the elements [4.6, -, 11]; a weight that leaps is no stale scale
CLIPPED_RISE_LOG2 = (1.5, 1.5, 3.0)  # beside it: clipping that grew bit by bit is judged by its level
LOST_PCT = 10.0  # points of underflow above what the tensor lost before
FLUSHED_PCT = 95.0  # of a gradient [8.6]
FLUSHED_STAYS_PCT = 80.0  # and on it goes, once it has begun
FLUSHED_RISE_PCT = 40.0  # [8.1]
FLUSHED_ROWS = 3  # the first pass of delayed scaling flushes gradients for one or two
NEVER = -(1 << 40)


class GrossChanges:
    """What one rank's tensors were a few rows ago, arrays (S,).

    peak: log2 amax, sinking.  unused, lost: headroom and underflow, the least and the most of the last rows.
    leapt: row index of the last leap.  was, unused_before, lost_before: peak, headroom and underflow before
    it.  idle: the scale is idle since a leap.  flushed, since: rows in a row in which nearly all of a
    gradient was lost, and the first step.
    """

    def __init__(self, size: int = 0) -> None:
        self.rows = np.zeros(size, np.int32)
        self.leapt = np.full(size, NEVER, np.int64)
        self.idle = np.zeros(size, bool)
        self.flushed = np.zeros(size, np.int32)
        self.since = np.full(size, -1, np.int64)
        for name in _LEVELS:
            setattr(self, name, np.full(size, np.nan))
        self._version = -1
        self._place: NDArray[np.int64] = np.zeros(0, np.int64)
        self._remembers: Bool = np.zeros(0, bool)  # the scale comes from earlier steps, or may

    peak: Float64
    unused: Float64
    lost: Float64
    was: Float64
    unused_before: Float64
    lost_before: Float64

    def seam(self) -> None:
        fresh = GrossChanges(len(self.rows))
        for name in _ARRAYS:
            setattr(self, name, getattr(fresh, name))

    def step(self, row: StatRow, *, excluded: Bool) -> None:
        """Judges one row; excluded tensors (S,) hold NaN or Inf and are passed over."""
        self._resize(row.columns)
        columns, place = row.columns, self._place
        if not columns.scaled.any():
            return
        x = row.frame.signals[row.d]
        if excluded.any():
            x = np.where(excluded, np.nan, x)
        amax, unused, over, under = x[AMAX], x[HEADROOM], x[OVERFLOW], x[UNDERFLOW]
        ready = columns.scaled & (self.rows >= KNOWN_ROWS)
        with np.errstate(invalid="ignore"):
            rise = amax - self.peak
            leap = ready & (rise > _by(LEAP_LOG2, place))
            clipped = (
                ready
                & self._remembers
                & (over > _by(CLIPPED_PCT, place))
                & (rise > _by(CLIPPED_RISE_LOG2, place))
            )
            stays = np.where(self.flushed > 0, FLUSHED_STAYS_PCT, FLUSHED_PCT)
            gone = ready & columns.backward & (under > stays)
        if leap.any():
            self._leap(row, leap, rise)
        if clipped.any():
            row.hit(
                "clipped_at_leap",
                mask=clipped,
                values=np.where(np.isnan(over), 0.0, over),
                gap_rows=1,
                extra={
                    "sat_log2": float(np.nanmax(-unused[clipped], initial=0.0)),
                    "rise": float(rise[clipped].max()),
                },
            )
        self._idle(row, x, leap)
        self._flushed(row, under, gone)
        self._remember(amax, unused, under)

    def _leap(self, row: StatRow, leap: Bool, rise: Float64) -> None:
        row.hit("amax_leap", mask=leap, values=np.where(np.isnan(rise), 0.0, rise), gap_rows=1)
        self.leapt[leap] = row.index
        for name, now in (("was", self.peak), ("unused_before", self.unused), ("lost_before", self.lost)):
            setattr(self, name, np.where(leap, now, getattr(self, name)))

    def _idle(self, row: StatRow, x: Float64, leap: Bool) -> None:
        """After a leap: back where it was, under a scale made for the leap."""
        since = row.index - self.leapt
        fresh = (since >= 1) & (since <= RETURN_ROWS)
        if not fresh.any() and not self.idle.any():
            return
        place, amax, unused, under = self._place, x[AMAX], x[HEADROOM], x[UNDERFLOW]
        with np.errstate(invalid="ignore"):
            back = fresh & self._remembers & (amax < self.was + _by(RETURN_LOG2, place))
            spare = unused - np.fmax(self.unused_before, 0.0) > _by(IDLE_LOG2, place)
            self.idle = np.where(np.isnan(unused), self.idle & ~leap, (back | self.idle) & spare & ~leap)
            lost = self.idle & (under - np.fmax(self.lost_before, 0.0) > LOST_PCT)
        now = self.idle & ~np.isnan(unused)
        if now.any():
            row.hit("idle_after_leap", mask=now, values=unused, gap_rows=2)
        if lost.any():
            row.hit("flushed_after_leap", mask=lost, values=under, gap_rows=2)

    def _flushed(self, row: StatRow, under: Float64, gone: Bool) -> None:
        if not gone.any() and not self.flushed.any():
            return
        with np.errstate(invalid="ignore"):
            begins = gone & (self.flushed == 0) & (under - self.lost > FLUSHED_RISE_PCT)
        self.since = np.where(begins, row.step, self.since)
        goes_on = gone & (self.flushed > 0)
        kept = np.where(np.isnan(under), self.flushed, 0)
        self.flushed = np.where(begins | goes_on, self.flushed + 1, kept).astype(np.int32)
        proven = goes_on & (self.flushed >= FLUSHED_ROWS)
        if proven.any():
            row.hit(
                "gradient_flushed", mask=proven, values=under, onset=int(self.since[proven].min()), gap_rows=2
            )

    def _remember(self, amax: Float64, unused: Float64, under: Float64) -> None:
        there = ~np.isnan(amax)
        self.rows = np.minimum(self.rows + there, KNOWN_ROWS).astype(np.int32)
        self.peak = np.where(there, np.fmax(amax, self.peak - FADE_LOG2), self.peak)
        self.unused = np.where(np.isnan(unused), self.unused, np.fmin(unused, self.unused + FADE_LOG2))
        faded = np.where(self.flushed > 0, self.lost, self.lost - FADE_PCT)
        self.lost = np.where(np.isnan(under) | (self.flushed > 0), self.lost, np.fmax(under, faded))

    def _resize(self, columns: Columns) -> None:
        if self._version == columns.version:
            return
        self._version, self._place = columns.version, classes_of(columns)
        self._remembers = columns.scaled & ~columns.block & (columns.rule != CURRENT)
        more = len(columns) - len(self.rows)
        if more > 0:
            fresh = GrossChanges(more)
            for name in _ARRAYS:
                setattr(self, name, np.concatenate([getattr(self, name), getattr(fresh, name)]))

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> GrossChanges:
        out = cls()
        for name in _ARRAYS:
            setattr(out, name, state[name])
        return out


def _by(limits: tuple[float, float, float], place: NDArray[np.int64]) -> Float64:
    return np.array(limits)[place]


_LEVELS = ("peak", "unused", "lost", "was", "unused_before", "lost_before")
_ARRAYS = ("rows", "leapt", "idle", "flushed", "since", *_LEVELS)

"""What is remembered about a rank's tensors from row to row: levels, how long a signal has been off, and when
all that is no longer worth anything.

Rows in which a tensor is missing neither prolong nor end what it shows, for ABSENT_ROWS. A tensor that comes
back after RETURN_ROWS, and every tensor after a hole in the log, is learned afresh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.frame import SIGNAL_COUNT, UPDATE
from floatscope_diagnostics.tracker import Tracker

Bool = NDArray[np.bool_]

# Smallest spread by signal in its unit: below it a deviation is the last printed digit or ordinary rounding.
FLOORS = (0.05, 0.03, 0.05, 0.02, 0.3, 0.15, 0.05, 0.2, 0.3)
ABSENT_ROWS = 16  # a tensor logged in turns with others is back by then; what it showed before is over
RETURN_ROWS = 64  # after this its level says nothing: two memories of the level
HOLE_STEPS, HOLE_STRIDES = 256, 16  # more steps without statistics than both, and no level says anything
LR_MEMORY_ROWS = 32.0  # of the levels, so that both follow a schedule alike
LR_STEP_LOG2 = 0.5  # in one row: no warm-up or decay, but a step of the schedule


class TensorLevels:
    """Levels and counters, arrays (SIGNAL_COUNT, S) or (S,)."""

    def __init__(self, size: int = 0) -> None:
        self.tracker = Tracker(np.array(FLOORS)[:, None], size)
        self.rows = np.zeros((SIGNAL_COUNT, size), np.int32)  # rows in a row with a deviation
        self.since = np.full((SIGNAL_COUNT, size), -1, np.int64)  # step at which it began
        self.absent = np.zeros(size, np.int32)  # rows in a row without any signal of the tensor
        self.last_step: int | None = None
        self.stride = 0  # fewest steps from one row to the next
        self.lr_level: float | None = None  # log2
        self.last_rate: float | None = None  # log2

    def resize(self, size: int) -> None:
        have = self.rows.shape[1]
        if have == size:
            return
        self.tracker.resize(size)
        rows, since, absent = self.rows, self.since, self.absent
        self.rows = np.zeros((SIGNAL_COUNT, size), np.int32)
        self.since = np.full((SIGNAL_COUNT, size), -1, np.int64)
        self.absent = np.zeros(size, np.int32)
        self.rows[:, :have], self.since[:, :have], self.absent[:have] = rows, since, absent

    def restart(self) -> None:
        """A new segment or phase: everything is learned afresh."""
        self.tracker.restart()
        self.rows[:] = 0
        self.since[:] = -1
        self.absent[:] = 0
        self.lr_level = self.last_rate = None
        self.last_step = None

    def count(self, alarm: Bool, missing: Bool, step: int) -> None:
        """Counts rows in a row with an alarm (SIGNAL_COUNT, S); a missing signal is no news."""
        self.since = np.where(alarm & (self.rows == 0), step, self.since)
        kept = np.where(missing, self.rows, 0)
        self.rows = np.where(alarm, self.rows + 1, kept).astype(np.int32)

    def any_hole(self, steps: Sequence[int]) -> bool:
        """Whether a hole lies before any of these rows, which come next."""
        before, stride = self.last_step, self.stride
        for step in steps:
            if before is not None:
                if _is_hole(step - before, stride):
                    return True
                stride = _shorter(stride, step - before)
            before = step
        return False

    def nobody_returns(self, there: Bool) -> bool:
        """Whether no tensor that was away for long comes back in these rows (n, S)."""
        if there.all():
            return bool((self.absent < ABSENT_ROWS).all())
        row = np.arange(len(there))[:, None]
        seen = np.where(there, row, -1 - self.absent)
        last = np.maximum.accumulate(np.concatenate([[-1 - self.absent], seen[:-1]]), axis=0)
        return not bool((there & (row - last > ABSENT_ROWS)).any())

    def note_row(self, step: int, there: Bool) -> None:
        """there: (S,) tensors with any signal in this row."""
        if self.last_step is not None:
            self.stride = _shorter(self.stride, step - self.last_step)
        self.last_step = step
        self.absent += 1
        np.copyto(self.absent, 0, where=there)

    def forget_stale(self, step: int, there: Bool) -> None:
        """Before a row is judged: what was remembered for too long about its tensors is dropped."""
        hole = self.last_step is not None and _is_hole(step - self.last_step, self.stride)
        over = there & (self.absent >= ABSENT_ROWS)
        if not hole and not over.any():
            return
        stale = np.ones(len(there), bool) if hole else there & (self.absent >= RETURN_ROWS)
        self.rows[:, over | stale] = 0
        self.tracker.restart(stale)
        if hole:
            self.lr_level = self.last_rate = None

    def lr_shift(self, scalars: Mapping[str, float]) -> float:
        """How far the learning rate is above its level, in octaves; 0 when it is not logged."""
        rate = _log2_rate(scalars)
        return 0.0 if rate is None or self.lr_level is None else rate - self.lr_level

    def learn_lr(self, scalars: Mapping[str, float]) -> None:
        rate = _log2_rate(scalars)
        if rate is None:
            return
        before = self.lr_level
        self.lr_level = rate if before is None else before + (rate - before) / LR_MEMORY_ROWS
        self.last_rate = rate

    def any_lr_step(self, rows: Iterable[Mapping[str, float]]) -> bool:
        """Whether the learning rate steps in any of these rows, which come next."""
        before = self.last_rate
        for scalars in rows:
            rate = _log2_rate(scalars)
            if rate is None:
                continue
            if before is not None and abs(rate - before) > LR_STEP_LOG2:
                return True
            before = rate
        return False

    def follow_lr_step(self, scalars: Mapping[str, float]) -> None:
        """Before a row is judged: updates step with a rate that steps, so their levels go along at once."""
        rate = _log2_rate(scalars)
        if rate is None or self.last_rate is None or self.lr_level is None:
            return
        step = rate - self.last_rate
        if abs(step) > LR_STEP_LOG2:
            self.lr_level += step
            self.tracker.center[UPDATE] += np.where(self.tracker.count[UPDATE] > 0, step, 0.0)

    def state(self) -> dict[str, Any]:
        return {"tracker": self.tracker.state(), **{name: getattr(self, name) for name in _PLAIN}}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> TensorLevels:
        out = cls(state["rows"].shape[1])
        out.tracker.load(state["tracker"])
        for name in _PLAIN:
            setattr(out, name, state[name])
        return out


def _log2_rate(scalars: Mapping[str, float]) -> float | None:
    rate = scalars.get("lr")
    return math.log2(rate) if rate is not None and math.isfinite(rate) and rate > 0 else None


def _is_hole(gap: int, stride: int) -> bool:
    """Whether so many steps went by without statistics that no level says anything any more."""
    return stride > 0 and gap > max(HOLE_STEPS, HOLE_STRIDES * stride)


def _shorter(stride: int, gap: int) -> int:
    return gap if stride == 0 else min(stride, gap)


_PLAIN = ("rows", "since", "absent", "last_step", "stride", "lr_level", "last_rate")

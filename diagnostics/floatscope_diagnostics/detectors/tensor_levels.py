"""What is remembered about a rank's tensors from row to row: levels, how long a signal has been off, and when
all that is no longer worth anything.

Rows in which a tensor is missing neither prolong nor end what it shows, for ABSENT_ROWS. A tensor that comes
back after RETURN_ROWS, and every tensor after a hole in the log, is learned afresh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.frame import SIGNAL_COUNT
from floatscope_diagnostics.tracker import Tracker

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

# Smallest spread by signal in its unit: below it a deviation is the last printed digit or ordinary rounding.
FLOORS = (0.05, 0.03, 0.05, 0.02, 0.3, 0.15, 0.05, 0.2, 0.3)
ABSENT_ROWS = 16  # a tensor logged in turns with others is back by then; what it showed before is over
RETURN_ROWS = 64  # after this its level says nothing: two memories of the level
HOLE_STEPS, HOLE_STRIDES = 256, 16  # more steps without statistics than both, and no level says anything
LR_MEMORY_ROWS = 32.0  # of the levels, so that both follow a schedule alike


class TensorLevels:
    """Levels and counters, arrays (SIGNAL_COUNT, S) or (S,)."""

    def __init__(self, size: int = 0) -> None:
        self.tracker = Tracker(np.array(FLOORS)[:, None], size)
        self.rows = np.zeros((SIGNAL_COUNT, size), np.int32)  # rows in a row with a deviation
        self.since = np.full((SIGNAL_COUNT, size), -1, np.int64)  # step at which it began
        self.absent = np.zeros(size, np.int32)  # rows in a row without any signal of the tensor
        self.last_step: int | None = None
        self.stride = 0  # fewest steps from one row to the next
        self.lr_level: float | None = None

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
        self.lr_level = None
        self.last_step = None

    def count(self, alarm: Bool, missing: Bool, step: int) -> None:
        """Counts rows in a row with an alarm (SIGNAL_COUNT, S); a missing signal is no news."""
        self.since = np.where(alarm & (self.rows == 0), step, self.since)
        kept = np.where(missing, self.rows, 0)
        self.rows = np.where(alarm, self.rows + 1, kept).astype(np.int32)

    def hole(self, before: int | None, step: int) -> bool:
        """Whether so many steps went by without statistics that no level says anything any more."""
        if before is None or self.stride == 0:
            return False
        return step - before > max(HOLE_STEPS, HOLE_STRIDES * self.stride)

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
            gap = step - self.last_step
            self.stride = gap if self.stride == 0 else min(self.stride, gap)
        self.last_step = step
        self.absent += 1
        np.copyto(self.absent, 0, where=there)

    def forget_stale(self, step: int, there: Bool) -> None:
        """Before a row is judged: what was remembered for too long about its tensors is dropped."""
        hole = self.hole(self.last_step, step)
        over = there & (self.absent >= ABSENT_ROWS)
        if not hole and not over.any():
            return
        stale = np.ones(len(there), bool) if hole else there & (self.absent >= RETURN_ROWS)
        self.rows[:, over | stale] = 0
        self.tracker.restart(stale)
        if hole:
            self.lr_level = None

    def lr_shift(self, scalars: Mapping[str, float]) -> float:
        """How far the learning rate is above its level, in octaves; 0 when it is not logged."""
        lr = scalars.get("lr")
        if lr is None or not math.isfinite(lr) or lr <= 0 or self.lr_level is None:
            return 0.0
        return math.log2(lr) - self.lr_level

    def learn_lr(self, scalars: Mapping[str, float]) -> None:
        lr = scalars.get("lr")
        if lr is None or not math.isfinite(lr) or lr <= 0:
            return
        level = math.log2(lr)
        before = self.lr_level
        self.lr_level = level if before is None else before + (level - before) / LR_MEMORY_ROWS

    def state(self) -> dict[str, Any]:
        return {"tracker": self.tracker.state(), **{name: getattr(self, name) for name in _PLAIN}}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> TensorLevels:
        out = cls(state["rows"].shape[1])
        out.tracker.load(state["tracker"])
        for name in _PLAIN:
            setattr(out, name, state[name])
        return out


_PLAIN = ("rows", "since", "absent", "last_step", "stride", "lr_level")

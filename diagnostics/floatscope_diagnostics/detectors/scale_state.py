"""Invariants of the stored scale: finite and positive, not reset, and equal to what the recipe gives (shadow
scale).

Signals: ``scale_nonfinite``; ``scale_reset`` (nearly all scales are exactly 1 at once); ``scale_high`` and
``scale_low`` (outside the shadow interval; ``extra`` tells how far and whether it stands still);
``scale_frozen`` (same value while the shadow moves).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.detectors.row import StatRow
from floatscope_diagnostics.shadow import TOLERANCE_LOG2, ShadowScale

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

RESET_SHARE = 0.9  # of scaled tensors at exactly 1.0; measured: 48 of 48 after a resume without history
RESET_MIN_TENSORS = 3  # one or two scales at 1.0 happen by themselves (amax equal to the format's maximum)
FROZEN_UPDATES = 2  # SCIENCE: a deviation for two updates is a deterministic violation
HALF_WINDOW_MIN_ROWS = 3


class ScaleState:
    """One rank's scales over time."""

    def __init__(self, size: int = 0) -> None:
        self.shadow = ShadowScale(size)
        self.last_scale = np.full(size, np.nan)
        self.same = np.zeros(size, np.int32)  # rows in a row with an unchanged scale
        self.off = np.zeros(size, np.int32)  # rows in a row outside the shadow interval
        self.last_step: int | None = None

    def resize(self, size: int) -> None:
        have = len(self.last_scale)
        if have == size:
            return
        grown = ScaleState(size)
        for name in ("last_scale", "same", "off"):
            getattr(grown, name)[:have] = getattr(self, name)
            setattr(self, name, getattr(grown, name))
        self.shadow.resize(size)

    def seam(self) -> None:
        self.shadow.forget()
        self.off[:] = 0

    def step(self, row: StatRow) -> Bool:
        """Judges one row; returns the columns (S,) whose scale is wrong, for the detectors that come
        after."""
        columns = row.columns
        self.resize(len(columns))
        scale = row.stat("scale")
        present = row.has("scale") & columns.scaled
        if not present.any():
            return np.zeros(len(columns), bool)
        amax = np.where(row.has("amax"), row.stat("amax"), np.nan)
        passes = (
            max(int(row.scalars.get("passes", 1.0)), 1) if np.isfinite(row.scalars.get("passes", 1.0)) else 1
        )
        low, high = self.shadow.step(row.step, amax, np.where(present, scale, np.nan), columns, passes=passes)
        bad = present & (~np.isfinite(scale) | (scale <= 0))
        if bad.any():
            self._hit(row, "scale_nonfinite", bad, np.abs(scale))
        reset = self._reset(row, scale, present)
        wrong = self._compare(row, scale, present & ~bad, low, high, skip=reset)
        self.same = np.where(scale == self.last_scale, self.same + 1, 0).astype(np.int32)
        self.last_scale = np.where(present, scale, self.last_scale)
        self.last_step = row.step
        wrong |= bad | reset
        return wrong

    def _reset(self, row: StatRow, scale: Float64, present: Bool) -> Bool:
        one: Bool = present & (scale == 1.0)
        before = np.isfinite(self.last_scale) & present
        changed = one & before & (self.last_scale != 1.0)
        if changed.sum() >= RESET_MIN_TENSORS and changed.sum() >= RESET_SHARE * before.sum():
            self._hit(row, "scale_reset", one, np.abs(np.log2(np.where(changed, self.last_scale, 1.0))))
            return one
        if row.log.is_open("scale_reset") and one.sum() >= RESET_SHARE * present.sum():
            self._hit(row, "scale_reset", one, np.zeros(len(one)))
            return one
        return np.zeros(len(one), bool)

    def _compare(
        self, row: StatRow, scale: Float64, usable: Bool, low: Float64, high: Float64, *, skip: Bool
    ) -> Bool:
        with np.errstate(all="ignore"):
            log_scale = np.log2(scale)
            above = log_scale - np.log2(high)
            below = np.log2(low) - log_scale
            up = usable & ~skip & (above > TOLERANCE_LOG2)
            down = usable & ~skip & (below > TOLERANCE_LOG2)
            # an open interval (low 0 or high inf) gives -inf: never a violation
        off = up | down
        self.off = np.where(off, self.off + 1, 0).astype(np.int32)
        if not off.any():
            return off
        frozen = off & (scale == self.last_scale)
        if up.any():
            self._hit(row, "scale_high", up, above, frozen=frozen)
        if down.any():
            self._hit(row, "scale_low", down, below, frozen=frozen)
        return off

    def _hit(
        self, row: StatRow, signal: str, mask: Bool, values: Float64, *, frozen: Bool | None = None
    ) -> None:
        extra: dict[str, float] = {}
        if frozen is not None:
            extra["frozen"] = float((frozen & mask).sum())
        row.log.hit(
            signal,
            step=row.step,
            row=row.index,
            segment=row.segment,
            mask=mask,
            values=values,
            expected=0.0,
            extra=extra,
        )

    def state(self) -> dict[str, Any]:
        return {
            "shadow": self.shadow.state(),
            "last_scale": self.last_scale,
            "same": self.same,
            "off": self.off,
            "last_step": self.last_step,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> ScaleState:
        out = cls()
        out.shadow = ShadowScale.load(state["shadow"])
        out.last_scale, out.same, out.off = state["last_scale"], state["same"], state["off"]
        out.last_step = state["last_step"]
        return out


def scaled_share(mask: Bool, columns: Columns) -> float:
    total = int(columns.scaled.sum())
    return float(mask.sum()) / total if total else 0.0

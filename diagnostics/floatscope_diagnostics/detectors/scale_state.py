"""Invariants of the stored scale: finite and positive, not reset, and equal to what the recipe gives (shadow
scale).

Signals: ``scale_nonfinite``; ``scale_reset`` (nearly all scales are exactly 1 at once); ``scale_high`` and
``scale_low`` (outside the shadow interval; ``extra`` tells how far and whether it stands still);
``scale_frozen`` (same value while the shadow moves).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import CURRENT, OPEN
from floatscope_diagnostics.detectors.printed_digits import PrintedDigits
from floatscope_diagnostics.detectors.row import StatRow
from floatscope_diagnostics.shadow import TOLERANCE_LOG2, ShadowScale

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

RESET_SHARE = 0.9  # of scaled tensors at exactly 1.0; measured: 48 of 48 after a resume without history
RESET_MIN_TENSORS = 3  # one or two scales at 1.0 happen by themselves (amax equal to the format's maximum)
SCRATCH_STEPS = 1  # a run from scratch begins at step 0 or 1, with all scales at 1
UNTRAINED_SHARE = 0.9  # of ln(vocabulary), the loss of even chances; initialisation adds to it
LEAST_STEPS = 8.0  # printed amax: with fewer steps to 0 those near it read as idle, and roll no history
FROZEN_UPDATES = 2  # SCIENCE: a deviation for two updates is a deterministic violation
CURRENT_LIKE_SHARE = 0.8  # of the gradients with sat exactly 1: only current scaling does that
CURRENT_LIKE_MIN = 3
CURRENT_LIKE_TOLERANCE = 0.005  # four printed digits
MOST_PASSES = 1 << 16  # of one step: more is no count of micro-batches


class ScaleState:
    """One rank's scales over time."""

    def __init__(self, size: int = 0) -> None:
        self.shadow = ShadowScale(size)
        self.last_scale = np.full(size, np.nan)
        self.off = np.zeros(size, np.int32)  # rows in a row outside the shadow interval
        self.moved = np.zeros(size, bool)  # the scale moved when it left the interval; else it stood still
        self.written = np.full(size, -1, np.int64)  # step at which the scale last changed
        self.last_step: int | None = None
        self.amax_digits = PrintedDigits()
        self.scale_digits = PrintedDigits()

    def resize(self, size: int) -> None:
        have = len(self.last_scale)
        if have == size:
            return
        grown = ScaleState(size)
        for name in ("last_scale", "off", "moved", "written"):
            getattr(grown, name)[:have] = getattr(self, name)
            setattr(self, name, getattr(grown, name))
        self.shadow.resize(size)

    def seam(self) -> None:
        self.shadow.forget()
        self.off[:] = 0

    def step(self, row: StatRow, *, broken: Bool) -> Bool:
        """Judges one row; broken: tensors that hold NaN or Inf, whose scale is no news.

        Returns the columns (S,) whose scale is wrong, for the detectors that come after.
        """
        columns = row.columns
        self.resize(len(columns))
        scale = row.stat("scale")
        present = row.has("scale") & columns.scaled
        if not present.any():
            return np.zeros(len(columns), bool)
        amax = np.where(row.has("amax"), row.stat("amax"), np.nan)
        self.amax_digits.learn(amax)
        self.scale_digits.learn(scale)
        if self.amax_digits.hides_small:
            amax = np.where(amax == 0, np.nan, amax)  # perhaps not 0, and then the history rolled
        passes = _passes(row.scalars.get("passes", 1.0))
        low, high = self.shadow.expect(row.step, amax, columns, passes=passes)
        bad = present & ~broken & (~np.isfinite(scale) | (scale <= 0))
        if bad.any():
            self._hit(row, "scale_nonfinite", bad, np.abs(scale))
        high = self._current_like(row, high, amax)
        reset = self._reset(row, scale, present & ~broken)
        wrong = self._compare(row, scale, present & ~bad & ~broken, low, high, skip=reset)
        self.shadow.advance(row.step, amax, np.where(present, scale, np.nan), columns, passes=passes)
        self.written = np.where(present & (scale != self.last_scale), row.step, self.written)
        self.last_scale = np.where(present, scale, self.last_scale)
        self.last_step = row.step
        wrong |= bad | reset
        return wrong

    def _reset(self, row: StatRow, scale: Float64, present: Bool) -> Bool:
        one: Bool = present & (scale == 1.0)
        if not one.any():
            return one
        if self.last_step is None and self._begins_lost(row, one, present):
            self._hit(row, "scale_reset", one, np.ones(len(one)))
            return one
        before = np.isfinite(self.last_scale) & present & (row.columns.rule != CURRENT)
        changed = one & before & (self.last_scale != 1.0)
        if changed.sum() >= RESET_MIN_TENSORS and changed.sum() >= RESET_SHARE * before.sum():
            self._hit(row, "scale_reset", one, np.abs(np.log2(np.where(changed, self.last_scale, 1.0))))
            return one
        if row.log.is_open("scale_reset", row=row.index) and one.sum() >= RESET_SHARE * present.sum():
            self._hit(row, "scale_reset", one, np.zeros(len(one)))
            return one
        return np.zeros(len(one), bool)

    def _begins_lost(self, row: StatRow, one: Bool, present: Bool) -> bool:
        """The first row of a log that does not begin from scratch: all scales 1 means that none was
        restored."""
        resumed = row.scalars.get("resumed", 0.0) == 1.0
        if not resumed and _is_untrained(row):
            return False
        stateful = present & (row.columns.rule != CURRENT)
        enough = (
            stateful.sum() >= RESET_MIN_TENSORS and (one & stateful).sum() >= RESET_SHARE * stateful.sum()
        )
        return bool(enough) and (resumed or row.step > SCRATCH_STEPS)

    def _compare(
        self, row: StatRow, scale: Float64, usable: Bool, low: Float64, high: Float64, *, skip: Bool
    ) -> Bool:
        with np.errstate(all="ignore"):
            log_scale = np.log2(scale)
            above = log_scale - np.log2(high)
            below = np.log2(low) - log_scale
            tolerance = TOLERANCE_LOG2 + self._rounding(row, scale)
            up = usable & ~skip & (above > tolerance)
            down = usable & ~skip & (below > tolerance)
            # an open interval (low 0 or high inf) gives -inf: never a violation
        off = up | down
        if off.any():
            begins = off & (self.off == 0)
            self.moved = np.where(begins, scale != self.last_scale, self.moved)
            self.off = np.where(off, self.off + 1, 0).astype(np.int32)
        elif self.off.any():
            self.off[:] = 0
        if up.any():
            self._hit(row, "scale_high", up, above, scale=scale)
        if down.any():
            self._hit(row, "scale_low", down, below, scale=scale)
        run = row.columns.run
        if (run.ranks or 1) > 1 and run.recipe.get("reduce_amax") is not False:
            return up  # another rank's larger amax explains a lower scale
        return off

    def _rounding(self, row: StatRow, scale: Float64) -> Float64:
        """Octaves (S,) by which the printed amax and scale may be off, half a step each; Inf where amax has
        no digits left."""
        implied = row.columns.fmax * np.exp2(-row.columns.margin_log2) / scale
        amax = self.amax_digits.step(implied) / implied
        off: Float64 = np.log2(1.0 + amax / 2) + np.log2(1.0 + self.scale_digits.step(scale) / scale / 2)
        return np.where(amax > 1.0 / LEAST_STEPS, np.inf, off)

    def _current_like(self, row: StatRow, high: Float64, amax: Float64) -> Float64:
        """Where no recipe is declared but the gradients' scales are those of current scaling, none may
        clip."""
        columns = row.columns
        open_rule = columns.scaled & ~columns.block & (columns.rule == OPEN)
        grads = open_rule & columns.backward & np.isfinite(row.frame.sat[row.d])
        if grads.sum() < CURRENT_LIKE_MIN:
            return high
        exact = np.abs(row.frame.sat[row.d] - 1.0) < CURRENT_LIKE_TOLERANCE
        if (exact & grads).sum() < CURRENT_LIKE_SHARE * grads.sum():
            return high
        with np.errstate(all="ignore"):
            return np.where(open_rule & (amax > 0), columns.fmax / amax * (1 + CURRENT_LIKE_TOLERANCE), high)

    def _hit(
        self, row: StatRow, signal: str, mask: Bool, values: Float64, *, scale: Float64 | None = None
    ) -> None:
        extra: dict[str, float] = {}
        if scale is not None:
            with np.errstate(all="ignore"):
                half = np.abs(np.log2(scale / self.shadow.half_window(row.columns))) < TOLERANCE_LOG2
            extra["total_moved"] = float((self.moved & mask).sum())
            extra["total_half"] = float((half & mask).sum())
            extra["total_count"] = float(mask.sum())
            extra["written"] = float(self.written[mask & (self.off >= 1)].min())
            extra["longest"] = float(self.off[mask].max())
            extra["spread"] = float(np.ptp(values[mask]))
            proven = bool((self.off[mask] >= FROZEN_UPDATES).any()) or bool(
                (row.columns.rule == CURRENT)[mask].any()
            )
            proven |= bool((row.columns.rule == OPEN)[mask].any())
        else:
            proven = True
        row.hit(
            signal,
            mask=mask,
            values=values,
            expected=0.0,
            proven=proven,
            extra=extra,
        )

    def state(self) -> dict[str, Any]:
        return {
            "shadow": self.shadow.state(),
            "last_scale": self.last_scale,
            "off": self.off,
            "moved": self.moved,
            "written": self.written,
            "last_step": self.last_step,
            "amax_digits": self.amax_digits.state(),
            "scale_digits": self.scale_digits.state(),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> ScaleState:
        out = cls()
        out.shadow = ShadowScale.load(state["shadow"])
        for name in ("last_scale", "off", "moved", "written"):
            setattr(out, name, state[name])
        out.last_step = state["last_step"]
        out.amax_digits = PrintedDigits.load(state["amax_digits"])
        out.scale_digits = PrintedDigits.load(state["scale_digits"])
        return out


def _is_untrained(row: StatRow) -> bool:
    """Whether the loss is that of a model that has learned nothing: a run from scratch, whatever its step
    numbers (tokens, samples, a run numbered on from another)."""
    vocab, loss = row.columns.run.vocab_size, row.scalars.get("loss")
    return vocab is not None and loss is not None and loss > UNTRAINED_SHARE * math.log(vocab)


def _passes(logged: float) -> int:
    """Forward passes of a step, 1 where what is logged is no such number."""
    return int(logged) if 1.0 <= logged <= MOST_PASSES else 1

"""Change detection per tensor, on whole arrays: jumps, clipping, flushing to zero, lost precision, updates
that stop.

Each signal of a tensor is compared with its own running level, less what its class does in common
(``common_shift``), against limits from the tails of healthy runs (``limits``): a healthy gradient's amax
jumps by 28 times in one step and a weight's by 1.03. Levels are frozen while an alarm is open. Constants here
are in the signal's own unit; healthy extremes in brackets.

Most rows of a healthy run have nothing to say, so a block of rows is first taken as if none had: the levels
are carried through it and all conditions are looked at together. From the first row that might have
something to say the block is taken back and that row is judged by itself.

Signals: ``amax_jump``, ``amax_zero``, ``clipping``, ``clipping_grad``, ``underflow``, ``underflow_always``,
``headroom_up``, ``sqnr_drop``, ``sqnr_drop_all``, ``update_jump``, ``update_fall``, ``unchanged``,
``near_limit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES, Columns
from floatscope_diagnostics.detectors.row import JudgedRow, StatRow, skipped_by_scaler
from floatscope_diagnostics.detectors.tensor_alarms import (
    IDLE_LOG2,
    READY_ROWS,
    UNUSUAL,
    Limits,
    alarms,
    may_alarm,
)
from floatscope_diagnostics.detectors.tensor_levels import TensorLevels
from floatscope_diagnostics.frame import (
    AMAX,
    GRAD,
    HEADROOM,
    OVERFLOW,
    SQNR,
    UNCHANGED,
    UNDERFLOW,
    UPDATE,
)
from floatscope_diagnostics.tracker import MAD_TO_SIGMA

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int32 = NDArray[np.int32]

RELEASE_ROWS = 24  # a jump that stays this long is the new level; T04 and T05 need at most a few rows
PERSIST_ROWS = 3  # rows in a row for a signal that is not proof by itself
# Of a gradient, beside its limit of sat; activations and weights have clip_with_sat.
CLIP_BESIDE_SAT_PCT = 5.0
CHRONIC_PCT = 90.0  # of a gradient, at every step since the first: healthy ones lose up to 72 % at times
SPIKE_ROWS = 2
FAR_BACK = -(1 << 40)
UPDATE_STEP_LOG2 = 1.6  # update_ratio beyond the change of lr, median over weights [0.65; 2.2 in warm-up]
UPDATE_LEAP_LOG2 = 3.0  # a part of the weights may be enough when they leap
UPDATE_LEAP_SHARE = 0.15
NEAR_LIMIT_LOG2 = -0.1  # amax of an FP16 activation within 7 % of 65,504
ALL_SHARE = 0.7  # of the tensors of a class
CLASS_TENSORS = 4  # so many lose precision together by their casts, not by what each holds
MAX_BLOCK_ROWS = 64
BLOCK_SERIES = 1 << 15  # series times rows judged together: they stay in the processor's cache


class TensorChanges:
    """What one rank's tensors have shown so far."""

    def __init__(self, size: int = 0) -> None:
        self.levels = TensorLevels(size)
        self.spiked = np.full(size, FAR_BACK, np.int64)  # row index of the last jump of amax
        self.idle = np.zeros(size, bool)  # the scale leaves range unused since such a spike
        self._version = -1
        self._limits: Limits | None = None
        self._stretch = MAX_BLOCK_ROWS  # rows to try together next; no part of what is known about the run

    def resize(self, size: int) -> None:
        have = len(self.idle)
        if have == size:
            return
        self.levels.resize(size)
        self.spiked = np.concatenate([self.spiked, np.full(size - have, FAR_BACK, np.int64)])
        self.idle = np.concatenate([self.idle, np.zeros(size - have, bool)])

    def seam(self) -> None:
        self.levels.restart()
        self.spiked[:] = FAR_BACK
        self.idle[:] = False

    def new_phase(self) -> None:
        """Levels are learned afresh, unless something is wrong: then they are what was right before."""
        if not self.levels.rows.any() and not self.idle.any():
            self.seam()

    def rows_in_order(self, judged: Sequence[JudgedRow]) -> None:
        """Judges rows of one segment, in order, that all know the same columns."""
        at = 0
        while at < len(judged):
            self.resize(len(judged[at].row.columns))
            size = min(self._stretch, len(judged) - at, max(1, BLOCK_SERIES // max(1, self.levels.rows.size)))
            quiet = self._quiet_rows(judged[at : at + size]) if size > 1 else 0
            at += quiet
            if quiet == size:
                self._stretch = min(2 * self._stretch, MAX_BLOCK_ROWS)
                continue
            spoke = self._step(judged[at])
            at += 1
            self._stretch = 1 if spoke else max(2, self._stretch)

    def _quiet_rows(self, judged: Sequence[JudgedRow]) -> int:
        """Takes rows up to the first that might have something to say; returns how many."""
        levels, first = self.levels, judged[0].row
        if levels.rows.any() or self.idle.any() or first.log.is_open("headroom_up", row=first.index):
            return 0
        if first.index - int(self.spiked.max(initial=FAR_BACK)) <= SPIKE_ROWS:
            return 0
        if levels.any_hole([j.row.step for j in judged]) or levels.any_lr_step(j.row.scalars for j in judged):
            return 0
        x = np.stack([_values(j.row) for j in judged])
        use = ~np.isnan(x)
        there: Bool = np.logical_or.reduce(use, axis=1)
        if not levels.nobody_returns(there):
            return 0
        excluded = np.stack([j.excluded for j in judged])
        held = excluded | np.stack([j.frozen for j in judged])
        if held.any():
            use &= ~held[:, None]
        track, rates = levels.tracker, (levels.lr_level, levels.last_rate)
        center, spread = np.empty_like(x), np.empty_like(x)
        count = np.empty(x.shape, np.int32)
        away, shift = np.empty_like(x), np.zeros(len(judged))
        for k, j in enumerate(judged):
            center[k], spread[k], count[k] = track.center, track.spread, track.count
            np.subtract(x[k], track.center, out=away[k])
            track.take(away[k], use[k])
            shift[k] = levels.lr_shift(j.row.scalars)
            levels.learn_lr(j.row.scalars)
        speaks = self._speaks(judged, x, away, spread, count, shift, excluded)
        quiet = int(np.argmax(speaks)) if speaks.any() else len(judged)
        if quiet < len(judged):
            track.center, track.spread, track.count = center[quiet], spread[quiet], count[quiet]
            levels.lr_level, levels.last_rate = rates
            for j in judged[:quiet]:
                levels.learn_lr(j.row.scalars)
        for k, j in enumerate(judged[:quiet]):
            levels.note_row(j.row.step, there[k])
        return quiet

    def _speaks(
        self,
        judged: Sequence[JudgedRow],
        x: Float64,
        away: Float64,
        spread: Float64,
        count: Int32,
        shift: Float64,
        excluded: Bool,
    ) -> Bool:
        """Rows (n,) that might have something to say; every one that has is among them.

        x, away, spread, count: (n, SIGNAL_COUNT, S), the levels as they were before each row.
        """
        columns = judged[0].row.columns
        limits = self._limits_of(columns)
        sigma = np.maximum(spread * MAD_TO_SIGMA, self.levels.tracker.floor)
        off = may_alarm(x, away, sigma, count, columns, limits) & ~excluded[:, None]
        over = -x[:, HEADROOM]
        with np.errstate(invalid="ignore"):
            clips = (over > limits.over_log2) & (x[:, OVERFLOW] > limits["clip_with_sat"])
            tensor = columns.scaled & ((over > limits["sat"]) | clips)
            tensor |= ~columns.scaled & ~columns.backward & (over > NEAR_LIMIT_LOG2)
            tensor |= columns.backward & (x[:, UNDERFLOW] > CHRONIC_PCT)
            moved = np.abs(away[:, UPDATE]) + np.abs(shift)[:, None] > UPDATE_STEP_LOG2
            tensor |= moved & (count[:, UPDATE] >= READY_ROWS)
        amax = [j.row.frame.row("amax", j.row.d) for j in judged]
        zero = np.array([a is not None and bool((a == 0).any()) for a in amax])
        speaks: Bool = off.any(axis=(1, 2)) | tensor.any(axis=1) | zero
        return speaks

    def _limits_of(self, columns: Columns) -> Limits:
        if self._limits is None or self._version != columns.version:
            self._version, self._limits = columns.version, Limits.of(columns)
        return self._limits

    def _step(self, judged: JudgedRow) -> bool:
        """Judges one row by itself; whether it had something to say."""
        row, excluded, levels = judged.row, judged.excluded, self.levels
        x = _values(row)
        missing = np.isnan(x)
        there: Bool = np.logical_or.reduce(~missing, axis=0)
        levels.forget_stale(row.step, there)
        levels.follow_lr_step(row.scalars)
        away = x - levels.tracker.center
        limits, count = self._limits_of(row.columns), levels.tracker.count
        off = may_alarm(x, away, levels.tracker.deviation(), count, row.columns, limits) & ~excluded
        off[UNCHANGED] &= ~_without_gradient(row, x, count)
        alarm = alarms(off, away, count, limits)
        levels.count(alarm, missing, row.step)
        self._emit_jumps(row, x, away, alarm, warming=judged.warming)
        self._emit_clipping(row, x, alarm, limits, judged)
        self._emit_flushed(row, x, away, alarm, limits)
        self._emit_precision(row, away, alarm, limits)
        self._emit_updates(row, away)
        hold = (alarm & (levels.rows <= RELEASE_ROWS)) | excluded | judged.frozen
        for k in (UNDERFLOW, OVERFLOW, SQNR, UNCHANGED):
            hold[k] |= alarm[k]
        levels.tracker.take(away, ~(missing | hold))
        levels.learn_lr(row.scalars)
        levels.note_row(row.step, there)
        return bool(alarm.any())

    def _hit(
        self,
        row: StatRow,
        signal: str,
        k: int,
        mask: Bool,
        values: Float64,
        *,
        gap_rows: int = 1,
        extra: Mapping[str, float] | None = None,
    ) -> None:
        if not mask.any():
            return
        began = np.where(self.levels.rows[k] > 0, self.levels.since[k], row.step) if k >= 0 else None
        onset = row.step if began is None else int(began[mask].min())
        row.hit(
            signal,
            mask=mask,
            values=values,
            onset=onset,
            gap_rows=gap_rows,
            extra=extra,
        )

    def _emit_jumps(self, row: StatRow, x: Float64, away: Float64, alarm: Bool, *, warming: bool) -> None:
        fresh = alarm[AMAX] & (self.levels.rows[AMAX] <= RELEASE_ROWS)
        self.spiked[fresh] = row.index
        self._hit(row, "amax_jump", AMAX, fresh, away[AMAX], extra={"warming": 1.0} if warming else None)
        amax = row.stat("amax")
        zero = (amax == 0) & (self.levels.tracker.count[AMAX] > 0) & ~row.frame.nan[row.d]
        self._hit(row, "amax_zero", -1, zero, np.ones(len(zero)))
        with np.errstate(invalid="ignore"):
            near = ~row.columns.scaled & ~row.columns.backward & (-x[HEADROOM] > NEAR_LIMIT_LOG2)
        self._hit(row, "near_limit", -1, near, amax, gap_rows=3)

    def _emit_clipping(
        self, row: StatRow, x: Float64, alarm: Bool, limits: Limits, judged: JudgedRow
    ) -> None:
        """Far above the format's maximum, much of the tensor at once, or some of it in row after row; while
        the run warms up everything grows away from its scale, and the last is no news.
        """
        columns, levels = row.columns, self.levels
        over, share = -x[HEADROOM], x[OVERFLOW]
        # a cast that does not saturate makes NaN of a single element
        single = np.isnan(share) | bool((judged.excluded & ~columns.backward).any())
        with np.errstate(invalid="ignore"):
            strong = (over > limits["sat"]) & (single | (columns.backward & (share > CLIP_BESIDE_SAT_PCT)))
            strong |= (over > limits.over_log2) & (share > limits["clip_with_sat"])
            strong &= columns.scaled & (levels.tracker.count[AMAX] >= READY_ROWS)
            much = alarm[OVERFLOW] & (share > limits["clip_at_once"])
            much &= levels.tracker.count[OVERFLOW] >= READY_ROWS
        lasting = alarm[OVERFLOW] & (levels.rows[OVERFLOW] >= PERSIST_ROWS)
        if judged.warming:
            lasting &= False
        clipped = strong | much | lasting
        if not clipped.any():
            return
        for signal, mine in (
            ("clipping", clipped & ~columns.backward),
            ("clipping_grad", clipped & columns.backward),
        ):
            if mine.any():
                worst = float(np.nanmax(over[mine])) if np.isfinite(over[mine]).any() else 0.0
                onset = int(np.where(lasting, levels.since[OVERFLOW], row.step)[mine].min())
                row.hit(
                    signal,
                    mask=mine,
                    values=np.where(np.isnan(share), 0.0, share),
                    onset=onset,
                    gap_rows=2,
                    extra={"sat_log2": worst},
                )

    def _emit_flushed(self, row: StatRow, x: Float64, away: Float64, alarm: Bool, limits: Limits) -> None:
        levels, lost, unused = self.levels, away[UNDERFLOW], away[HEADROOM]
        with np.errstate(invalid="ignore"):
            much = lost > limits["underflow_at_once"]
            much |= (lost > limits["underflow_idle"]) & (unused > IDLE_LOG2)
            slow = (levels.rows[UNDERFLOW] >= PERSIST_ROWS) & (lost > limits["underflow_lasting"])
        self._hit(row, "underflow", UNDERFLOW, alarm[UNDERFLOW] & (much | slow), x[UNDERFLOW], gap_rows=2)
        level, known = levels.tracker.center[UNDERFLOW], levels.tracker.count[UNDERFLOW] >= READY_ROWS
        with np.errstate(invalid="ignore"):
            always = row.columns.backward & known & (level > CHRONIC_PCT) & (x[UNDERFLOW] > CHRONIC_PCT)
        self._hit(row, "underflow_always", -1, always, x[UNDERFLOW], gap_rows=4)
        idle = alarm[HEADROOM] & (levels.rows[HEADROOM] >= 2)
        with np.errstate(invalid="ignore"):
            spare = unused > limits.spare_log2
        idle |= spare & (row.index - self.spiked <= SPIKE_ROWS) & ~alarm[AMAX] & (row.index > self.spiked)
        if row.log.is_open("headroom_up", row=row.index):
            idle |= spare & self.idle
        self.idle = idle
        self._hit(row, "headroom_up", HEADROOM, idle, unused, gap_rows=2)

    def _emit_precision(self, row: StatRow, away: Float64, alarm: Bool, limits: Limits) -> None:
        lost = alarm[SQNR]
        if not lost.any():
            return
        columns = row.columns
        judged = ~np.isnan(row.frame.signals[row.d][SQNR])
        lasting = self.levels.rows[SQNR] >= PERSIST_ROWS
        moved = alarm[[AMAX, HEADROOM, UNDERFLOW, OVERFLOW]].any(axis=0)
        shares, whole_class = [], False
        for role in ("input", "weight", "grad_output"):
            mine = judged & (columns.role == ROLE_CODES[role])
            if mine.sum() < 2:
                continue
            shares.append(float((lost & mine).sum() / mine.sum()))
            if (
                role != "grad_output" and mine.sum() >= CLASS_TENSORS
            ):  # gradients differ in shape by the batch
                still = float((lost & lasting & mine).sum() / mine.sum())
                whole_class |= still >= ALL_SHARE and not (moved & mine).any()
        if shares and (min(shares) >= ALL_SHARE or whole_class) and (lost & lasting).any():
            self._hit(row, "sqnr_drop_all", SQNR, lost & lasting, -away[SQNR], gap_rows=3)
            return
        deep = lost & lasting & (away[SQNR] < -limits["sqnr_drop"])
        self._hit(row, "sqnr_drop", SQNR, deep, -away[SQNR], gap_rows=2)

    def _emit_updates(self, row: StatRow, away: Float64) -> None:
        levels, x = self.levels, row.frame.signals[row.d]
        still = (levels.rows[UNCHANGED] >= PERSIST_ROWS) & ~np.isnan(x[UNCHANGED])
        self._hit(row, "unchanged", UNCHANGED, still, x[UNCHANGED], gap_rows=3)
        ready = levels.tracker.count[UPDATE] >= READY_ROWS
        moved = away[UPDATE][ready & ~np.isnan(away[UPDATE])]
        if len(moved) < 1:
            return
        by_rate = levels.lr_shift(row.scalars)
        shift = _middle(moved) - by_rate
        spread = _middle(levels.tracker.deviation()[UPDATE][ready])
        far = float((moved - by_rate > UPDATE_LEAP_LOG2).mean())
        if abs(shift) <= max(UPDATE_STEP_LOG2, UNUSUAL * spread) and far < UPDATE_LEAP_SHARE:
            return
        signal = "update_jump" if shift > 0 or far >= UPDATE_LEAP_SHARE else "update_fall"
        sense = 1.0 if signal == "update_jump" else -1.0
        if far < UPDATE_LEAP_SHARE and sense * _middle(moved) < UPDATE_STEP_LOG2 / 2:
            return  # the rate alone moved: updates follow a warm-up late
        with np.errstate(invalid="ignore"):
            mask = ready & (sense * away[UPDATE] > UPDATE_STEP_LOG2 / 2)
        self._hit(row, signal, -1, mask, np.abs(away[UPDATE]))

    def state(self) -> dict[str, Any]:
        return {"levels": self.levels.state(), "spiked": self.spiked, "idle": self.idle}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> TensorChanges:
        out = cls(len(state["idle"]))
        out.levels = TensorLevels.load(state["levels"])
        out.spiked, out.idle = state["spiked"], state["idle"]
        return out


def _values(row: StatRow) -> Float64:
    """The row's signals (SIGNAL_COUNT, S), without those of an update that was dropped."""
    x: Float64 = row.frame.signals[row.d]
    if skipped_by_scaler(row.scalars):
        x = x.copy()
        x[[UPDATE, GRAD, UNCHANGED]] = np.nan  # nothing was updated
    return x


def _without_gradient(row: StatRow, x: Float64, count: Int32) -> Bool:
    """Weights (S,) with nothing to learn in this row, frozen or not used: their gradient is 0, or they
    had one before and have none where others do. That they stay as they are is no loss.
    """
    known = ~np.isnan(x[GRAD])
    dropped = ~known & (count[GRAD] > 0) & bool(known.any())
    nothing: Bool = dropped | (row.stat("grad_norm") == 0.0)
    return nothing


def _middle(values: Float64) -> float:
    """The upper median: one of the values, so that it does not depend on how they are added up."""
    k = len(values) // 2
    return float(np.partition(values, k)[k])

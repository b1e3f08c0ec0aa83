"""Change detection per tensor, on whole arrays: jumps, clipping, flushing to zero, lost precision, updates
that stop.

Each signal of a tensor is compared with its own running level (``tracker``); limits differ by tensor class,
because a healthy
gradient's amax jumps by 28 times in one step and a weight's by 1.03. Limits are in the signal's own unit, far
outside what
healthy runs showed (measured on emulated FP8: 22 runs of 64 to 130 steps, 48 tensors), and a deviation must
also be unusual for
this tensor. Levels are frozen while an alarm is open.

Signals: ``amax_jump``, ``amax_zero``, ``clipping``, ``clipping_grad``, ``underflow``, ``underflow_always``,
``headroom_up``,
``sqnr_drop``,
``sqnr_drop_all``,
``update_jump``, ``update_fall``, ``unchanged``, ``amax_trend``, ``underflow_trend``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES, Columns
from floatscope_diagnostics.detectors.row import JudgedRow, StatRow, skipped_by_scaler
from floatscope_diagnostics.frame import (
    AMAX,
    GRAD,
    HEADROOM,
    OVERFLOW,
    SIGNAL_COUNT,
    SQNR,
    UNCHANGED,
    UNDERFLOW,
    UPDATE,
)
from floatscope_diagnostics.tracker import MAD_TO_SIGMA, Tracker

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

READY_ROWS = 12  # rows before a level counts as known; the shortest healthy stretch in the tuning logs is 64
RELEASE_ROWS = 24  # a jump that stays this long is the new level; T04 and T05 need at most a few rows
PERSIST_ROWS = 3  # rows in a row for a signal that is not proof by itself
UNUSUAL = 6.0  # deviations of this tensor; never turned into a probability (tails are heavy)
# Smallest spread by signal in its unit: below it a deviation is the last printed digit or ordinary rounding.
FLOORS = (0.05, 0.03, 0.05, 0.02, 0.3, 0.15, 0.05, 0.2, 0.3)

# Limits by class (forward, weight, backward). Healthy extremes in brackets.
AMAX_JUMP_LOG2 = (1.8, 0.6, 8.0)  # one-step rise [1.1, 0.2, 6.0]
CLIP_LOG2 = (1.8, 0.6, 8.0)  # sat in octaves above 1, proof in one step [0.9, 0.1, 6.0]
CLIP_PCT = (0.4, 0.4, 2.5)  # share clipped, proof when it lasts PERSIST_ROWS [0.2, 0.02, 1.7 in one step]
CLIP_PCT_WITH_SAT = (1.0, 0.4, 5.0)  # share clipped beside CLIP_LOG2: a few outliers clip in every run [0.4]
CLIP_PCT_AT_ONCE = (8.0, 4.0, 101.0)  # proof in one step [4.1, 0.02, 1.7]; never for gradients: heavy tails
UNDERFLOW_RISE_PCT = (2.5, 1.0, 12.0)  # percentage points above the tensor's level [1.4, 0.06, 6.4]
UNDERFLOW_RISE_AT_ONCE_PCT = (15.0, 10.0, 40.0)
CHRONIC_PCT = 90.0  # of a gradient, at every step since the first: healthy ones lose up to 45 %
HEADROOM_UP_LOG2 = (6.0, 4.0, 14.0)  # bits of unused range above the level [1.2, 0.2, 5.0]
SPIKE_HEADROOM_LOG2 = 3.0  # unused right after a spike of amax: the history holds the outlier
SPIKE_ROWS = 2
FAR_BACK = -(1 << 40)
SQNR_DROP_DB = (4.0, 1.2, 6.0)  # lasting, one tensor [one-step 16, 0.3, 24]
SQNR_DROP_ALL_DB = (1.5, 1.0, 2.0)  # lasting, median over a class [0.3, 0.05, 0.6]
UPDATE_STEP_LOG2 = (
    1.6  # change of update_ratio beyond the change of lr, median over weights [0.5; 2.2 in warm-up]
)
NEAR_LIMIT_LOG2 = -0.1  # amax of an FP16 activation within 7 % of 65,504
UPDATE_LEAP_LOG2 = 3.0  # a part of the weights may be enough when they leap
UPDATE_LEAP_SHARE = 0.15
UNCHANGED_RISE_PCT = 8.0  # [0.06]
ALL_SHARE = 0.7  # of the tensors of a class
MAX_BLOCK_ROWS = 64
BLOCK_SERIES = 1 << 15  # series times rows judged together: they stay in the processor's cache


class TensorChanges:
    """Levels and persistence counters of one rank's tensors."""

    def __init__(self, size: int = 0) -> None:
        self.tracker = Tracker(np.array(FLOORS)[:, None], size)
        self.rows = np.zeros((SIGNAL_COUNT, size), np.int32)  # rows in a row with a deviation
        self.since = np.full((SIGNAL_COUNT, size), -1, np.int64)  # step at which it began
        self.spiked = np.full(size, FAR_BACK, np.int64)  # row index of the last jump of amax
        self.idle = np.zeros(size, bool)  # the scale leaves range unused since such a spike
        self.lr_level: float | None = None
        self._version = -1
        self._limits: dict[Any, Float64] = {}
        self._stretch = MAX_BLOCK_ROWS  # rows to try together next; no part of what is known about the run

    def resize(self, size: int) -> None:
        have = self.rows.shape[1]
        if have == size:
            return
        self.tracker.resize(size)
        rows, since = self.rows, self.since
        self.rows = np.zeros((SIGNAL_COUNT, size), np.int32)
        self.since = np.full((SIGNAL_COUNT, size), -1, np.int64)
        self.rows[:, :have], self.since[:, :have] = rows, since
        self.spiked = np.concatenate([self.spiked, np.full(size - have, FAR_BACK, np.int64)])
        self.idle = np.concatenate([self.idle, np.zeros(size - have, bool)])

    def seam(self) -> None:
        self.tracker.restart()
        self.rows[:] = 0
        self.since[:] = -1
        self.lr_level = None
        self.spiked[:] = FAR_BACK
        self.idle[:] = False

    def rows_in_order(self, judged: Sequence[JudgedRow]) -> None:
        """Judges rows of one segment, in order, that all know the same columns.

        Most rows of a healthy run have nothing to say, so a block of rows is first taken as if none had: the
        levels are carried through it and all conditions are looked at together. From the first row that
        might have something to say the block is taken back and that row is judged by itself.
        """
        at = 0
        while at < len(judged):
            size = min(self._stretch, len(judged) - at, max(1, BLOCK_SERIES // max(1, self.rows.size)))
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
        first = judged[0].row
        self.resize(len(first.columns))
        if self.rows.any() or self.idle.any() or first.log.is_open("headroom_up", row=first.index):
            return 0
        if first.index - int(self.spiked.max(initial=FAR_BACK)) <= SPIKE_ROWS:
            return 0
        x = np.stack([_values(j.row) for j in judged])
        use = ~np.isnan(x)
        excluded = np.stack([j.excluded for j in judged])
        held = excluded | np.stack([j.frozen for j in judged])
        if held.any():
            use &= ~held[:, None]
        track, rate = self.tracker, self.lr_level
        center, spread = np.empty_like(x), np.empty_like(x)
        count = np.empty(x.shape, np.int32)
        away, shift = np.empty_like(x), np.zeros(len(judged))
        for k, j in enumerate(judged):
            center[k], spread[k], count[k] = track.center, track.spread, track.count
            np.subtract(x[k], track.center, out=away[k])
            track.take(away[k], use[k])
            shift[k] = self._lr_shift(j.row)
            self._learn_lr(j.row)
        speaks = self._speaks(judged, x, away, spread, count, shift, excluded)
        quiet = int(np.argmax(speaks)) if speaks.any() else len(judged)
        if quiet < len(judged):
            track.center, track.spread, track.count = center[quiet], spread[quiet], count[quiet]
            self.lr_level = rate
            for j in judged[:quiet]:
                self._learn_lr(j.row)
        return quiet

    def _speaks(
        self,
        judged: Sequence[JudgedRow],
        x: Float64,
        away: Float64,
        spread: Float64,
        count: NDArray[np.int32],
        shift: Float64,
        excluded: Bool,
    ) -> Bool:
        """Rows (n,) that might have something to say; every one that has is among them.

        x, away, spread, count: (n, SIGNAL_COUNT, S), the levels as they were before each row.
        """
        columns = judged[0].row.columns
        limits = self._limits_of(columns)
        alarm = self._alarms(x, away, spread, count, columns, excluded)
        with np.errstate(invalid="ignore"):
            tensor = (columns.scaled & (-x[:, HEADROOM] > limits[CLIP_LOG2])) | (
                ~columns.scaled & ~columns.backward & (-x[:, HEADROOM] > NEAR_LIMIT_LOG2)
            )
            tensor |= columns.backward & (x[:, UNDERFLOW] > CHRONIC_PCT)
            moved = np.abs(away[:, UPDATE]) + np.abs(shift)[:, None] > UPDATE_STEP_LOG2
            tensor |= moved & (count[:, UPDATE] >= READY_ROWS)
        amax = [j.row.frame.row("amax", j.row.d) for j in judged]
        zero = np.array([a is not None and bool((a == 0).any()) for a in amax])
        return alarm.any(axis=(1, 2)) | tensor.any(axis=1) | zero

    def _alarms(
        self,
        x: Float64,
        away: Float64,
        spread: Float64,
        count: NDArray[np.int32],
        columns: Columns,
        excluded: Bool,
    ) -> Bool:
        """Where a signal is off its level, arrays (..., SIGNAL_COUNT, S); excluded (..., S)."""
        limits = self._limits_of(columns)
        alarm = np.zeros(x.shape, bool)
        with np.errstate(invalid="ignore"):
            unusual = np.abs(away) > UNUSUAL * np.maximum(spread * MAD_TO_SIGMA, self.tracker.floor)
            unusual &= count >= READY_ROWS
            for k, limit in (
                (AMAX, limits[AMAX_JUMP_LOG2]),
                (HEADROOM, limits[HEADROOM_UP_LOG2]),
                (UNDERFLOW, limits[UNDERFLOW_RISE_PCT]),
                (UNCHANGED, UNCHANGED_RISE_PCT),
            ):
                alarm[..., k, :] = unusual[..., k, :] & (away[..., k, :] > limit)
            alarm[..., SQNR, :] = unusual[..., SQNR, :] & (away[..., SQNR, :] < -limits[SQNR_DROP_ALL_DB])
            clipped = x[..., OVERFLOW, :] > limits[CLIP_PCT]
            clipped &= away[..., OVERFLOW, :] > limits[CLIP_PCT] / 2
            alarm[..., OVERFLOW, :] = columns.scaled & clipped
        alarm &= ~excluded[..., None, :]
        return alarm

    def _limits_of(self, columns: Columns) -> dict[Any, Float64]:
        if self._version != columns.version:
            self._version, self._limits = columns.version, _class_limits(columns)
        return self._limits

    def _step(self, judged: JudgedRow) -> bool:
        """Judges one row by itself; whether it had something to say."""
        row, excluded, frozen = judged.row, judged.excluded, judged.frozen
        self.resize(len(row.columns))
        x = _values(row)
        away = x - self.tracker.center
        limits = self._limits_of(row.columns)
        alarm = self._alarms(x, away, self.tracker.spread, self.tracker.count, row.columns, excluded)
        self._count(alarm, row.step)
        broken = bool((excluded & ~row.columns.backward).any())
        self._emit_jumps(row, x, away, alarm, limits, warming=judged.warming, broken=broken)
        self._emit_flushed(row, x, away, alarm, limits)
        self._emit_precision(row, away, alarm, limits)
        self._emit_updates(row, away, alarm)
        hold = (alarm & (self.rows <= RELEASE_ROWS)) | excluded | frozen
        for k in (UNDERFLOW, SQNR, UNCHANGED):
            hold[k] |= alarm[k]
        self.tracker.take(away, ~(np.isnan(x) | hold))
        self._learn_lr(row)
        return bool(alarm.any())

    def _count(self, alarm: Bool, step: int) -> None:
        begins = alarm & (self.rows == 0)
        self.since = np.where(begins, step, self.since)
        self.rows = np.where(alarm, self.rows + 1, 0).astype(np.int32)

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
        onset = int(np.where(self.rows[k] > 0, self.since[k], row.step)[mask].min()) if k >= 0 else row.step
        row.log.hit(
            signal,
            step=row.step,
            row=row.index,
            segment=row.segment,
            mask=mask,
            values=values,
            onset=onset,
            gap_rows=gap_rows,
            extra=extra,
        )

    def _emit_jumps(
        self,
        row: StatRow,
        x: Float64,
        away: Float64,
        alarm: Bool,
        limits: dict[Any, Float64],
        *,
        warming: bool,
        broken: bool,
    ) -> None:
        fresh = alarm[AMAX] & (self.rows[AMAX] <= RELEASE_ROWS)
        self.spiked[fresh] = row.index
        self._hit(row, "amax_jump", AMAX, fresh, away[AMAX], extra={"warming": 1.0} if warming else None)
        amax = row.stat("amax")
        zero = (amax == 0) & (self.tracker.count[AMAX] > 0) & ~row.frame.nan[row.d]
        self._hit(row, "amax_zero", -1, zero, np.ones(len(zero)))
        over = -x[HEADROOM]
        with np.errstate(invalid="ignore"):
            near = ~row.columns.scaled & ~row.columns.backward & (over > NEAR_LIMIT_LOG2)
        self._hit(row, "near_limit", -1, near, amax, gap_rows=3)
        with np.errstate(invalid="ignore"):
            strong = (
                row.columns.scaled & (over > limits[CLIP_LOG2]) & (self.tracker.count[AMAX] >= READY_ROWS)
            )
            if not broken:  # a cast that does not saturate makes NaN of a single element
                strong &= np.isnan(x[OVERFLOW]) | (x[OVERFLOW] > limits[CLIP_PCT_WITH_SAT])
            much = alarm[OVERFLOW] & (x[OVERFLOW] > limits[CLIP_PCT_AT_ONCE])
            much &= self.tracker.count[OVERFLOW] >= READY_ROWS
        lasting = self.rows[OVERFLOW] >= PERSIST_ROWS
        clipped = strong | much | lasting
        if not clipped.any():
            return
        for signal, mine in (
            ("clipping", clipped & ~row.columns.backward),
            ("clipping_grad", clipped & row.columns.backward),
        ):
            if mine.any():
                worst = float(np.nanmax(over[mine])) if np.isfinite(over[mine]).any() else 0.0
                row.log.hit(
                    signal,
                    step=row.step,
                    row=row.index,
                    segment=row.segment,
                    mask=mine,
                    values=np.where(np.isnan(x[OVERFLOW]), 0.0, x[OVERFLOW]),
                    onset=int(np.where(lasting, self.since[OVERFLOW], row.step)[mine].min()),
                    gap_rows=2,
                    extra={"sat_log2": worst},
                )

    def _emit_flushed(
        self, row: StatRow, x: Float64, away: Float64, alarm: Bool, limits: dict[Any, Float64]
    ) -> None:
        with np.errstate(invalid="ignore"):
            much = alarm[UNDERFLOW] & (away[UNDERFLOW] > limits[UNDERFLOW_RISE_AT_ONCE_PCT])
        flushed = much | (self.rows[UNDERFLOW] >= PERSIST_ROWS)
        self._hit(row, "underflow", UNDERFLOW, flushed, x[UNDERFLOW], gap_rows=2)
        level = self.tracker.center[UNDERFLOW]
        always = row.columns.backward & (self.tracker.count[UNDERFLOW] >= READY_ROWS) & (level > CHRONIC_PCT)
        with np.errstate(invalid="ignore"):
            always &= x[UNDERFLOW] > CHRONIC_PCT
        self._hit(row, "underflow_always", -1, always, x[UNDERFLOW], gap_rows=4)
        idle = self.rows[HEADROOM] >= 2
        with np.errstate(invalid="ignore"):
            left_idle = (away[HEADROOM] > SPIKE_HEADROOM_LOG2) & (row.index - self.spiked <= SPIKE_ROWS)
        idle |= left_idle & ~alarm[AMAX] & (row.index > self.spiked)
        held = row.log.is_open("headroom_up", row=row.index) & (away[HEADROOM] > SPIKE_HEADROOM_LOG2)
        idle |= held & self.idle
        self.idle = idle
        self._hit(row, "headroom_up", HEADROOM, idle, away[HEADROOM], gap_rows=2)

    def _emit_precision(self, row: StatRow, away: Float64, alarm: Bool, limits: dict[Any, Float64]) -> None:
        lost = alarm[SQNR]
        if not lost.any():
            return
        columns = row.columns
        judged = ~np.isnan(row.frame.signals[row.d][SQNR])
        shares = []
        for code in (ROLE_CODES["input"], ROLE_CODES["weight"], ROLE_CODES["grad_output"]):
            mine = judged & (columns.role == code)
            if mine.sum() >= 2:
                shares.append(float((lost & mine).sum() / mine.sum()))
        lasting = self.rows[SQNR] >= PERSIST_ROWS
        if shares and min(shares) >= ALL_SHARE and lasting.any():
            self._hit(row, "sqnr_drop_all", SQNR, lost & lasting, -away[SQNR], gap_rows=3)
            return
        with np.errstate(invalid="ignore"):
            deep = lasting & (away[SQNR] < -limits[SQNR_DROP_DB])
        self._hit(row, "sqnr_drop", SQNR, deep, -away[SQNR], gap_rows=2)

    def _emit_updates(self, row: StatRow, away: Float64, alarm: Bool) -> None:
        still = self.rows[UNCHANGED] >= PERSIST_ROWS
        self._hit(row, "unchanged", UNCHANGED, still, row.frame.signals[row.d][UNCHANGED], gap_rows=3)
        ready = self.tracker.count[UPDATE] >= READY_ROWS
        moved = away[UPDATE][ready & ~np.isnan(away[UPDATE])]
        if len(moved) < 1:
            return
        shift = _middle(moved) - self._lr_shift(row)
        spread = _middle(self.tracker.deviation()[UPDATE][ready])
        far = float((moved - self._lr_shift(row) > UPDATE_LEAP_LOG2).mean())
        if abs(shift) <= max(UPDATE_STEP_LOG2, UNUSUAL * spread) and far < UPDATE_LEAP_SHARE:
            return
        signal = "update_jump" if shift > 0 or far >= UPDATE_LEAP_SHARE else "update_fall"
        itself = _middle(moved) * (1.0 if signal == "update_jump" else -1.0)
        if far < UPDATE_LEAP_SHARE and itself < UPDATE_STEP_LOG2 / 2:
            return  # the rate alone moved: updates follow a warm-up late
        mask = (
            ready
            & (np.sign(away[UPDATE]) == (1 if signal == "update_jump" else -1))
            & (np.abs(away[UPDATE]) > UPDATE_STEP_LOG2 / 2)
        )
        row.log.hit(
            signal, step=row.step, row=row.index, segment=row.segment, mask=mask, values=np.abs(away[UPDATE])
        )

    def _lr_shift(self, row: StatRow) -> float:
        """How far the learning rate is above its level, in octaves; 0 when it is not logged."""
        lr = row.scalars.get("lr")
        if lr is None or not np.isfinite(lr) or lr <= 0 or self.lr_level is None:
            return 0.0
        return float(np.log2(lr)) - self.lr_level

    def _learn_lr(self, row: StatRow) -> None:
        lr = row.scalars.get("lr")
        if lr is None or not np.isfinite(lr) or lr <= 0:
            return
        level = float(np.log2(lr))
        self.lr_level = level if self.lr_level is None else self.lr_level + (level - self.lr_level) / 32.0

    def state(self) -> dict[str, Any]:
        return {
            "tracker": self.tracker.state(),
            "rows": self.rows,
            "since": self.since,
            "spiked": self.spiked,
            "idle": self.idle,
            "lr_level": self.lr_level,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> TensorChanges:
        out = cls(state["rows"].shape[1])
        out.tracker.load(state["tracker"])
        for name in ("rows", "since", "spiked", "idle", "lr_level"):
            setattr(out, name, state[name])
        return out


def _values(row: StatRow) -> Float64:
    """The row's signals (SIGNAL_COUNT, S), without those of an update that was dropped."""
    x: Float64 = row.frame.signals[row.d]
    if skipped_by_scaler(row.scalars):
        x = x.copy()
        x[[UPDATE, GRAD, UNCHANGED]] = np.nan  # nothing was updated
    return x


def _middle(values: Float64) -> float:
    """The upper median: one of the values, so that it does not depend on how they are added up."""
    k = len(values) // 2
    return float(np.partition(values, k)[k])


def _class_limits(columns: Columns) -> dict[Any, Float64]:
    """Every limit as an array (S,) by tensor class."""
    kind = np.where(columns.role == ROLE_CODES["weight"], 1, np.where(columns.backward, 2, 0))
    table = (
        AMAX_JUMP_LOG2, CLIP_LOG2, CLIP_PCT, CLIP_PCT_AT_ONCE, CLIP_PCT_WITH_SAT, UNDERFLOW_RISE_PCT,
        UNDERFLOW_RISE_AT_ONCE_PCT, HEADROOM_UP_LOG2, SQNR_DROP_DB, SQNR_DROP_ALL_DB,
    )  # fmt: skip
    return {limits: np.array(limits)[kind] for limits in table}

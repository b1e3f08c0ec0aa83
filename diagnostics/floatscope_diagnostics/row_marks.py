"""Rows that stand out, found on whole columns of scalars.

Each mark asks a little less than the row-by-row detector (``run_changes``, ``run_trends``,
``run_invariants``) that it must not miss: lower limits, and the beginning and the end of a condition that
lasts, not each of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch

Bool = NDArray[np.bool_]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

CONTEXT_ROWS = 96  # rows kept before those looked at: LONG + SHORT, and a row to compare with
SHORT, LONG = 16, 64  # rows of a mean
# Every scalar that a row-by-row detector of the run reads.
JUDGED_SCALARS = (
    "loss", "grad_norm", "update_norm", "param_norm", "local_grad_norm", "lr", "loss_scale", "eval_loss",
    "zero_grad_pct", "step_time_s", "data_time_s", "gpu_throttle", "gpu_util_pct", "resumed", "label_tokens",
    "label_tokens_min_microbatch", "input_ids_out_of_range", "input_id_max", "input_id_min",
)  # fmt: skip


@dataclass(frozen=True)
class SeriesKind:
    """floor: smallest spread, that of the detector's level.  log2: judged as a ratio."""

    floor: float
    log2: bool = False


SERIES: Mapping[str, SeriesKind] = {
    "loss": SeriesKind(0.02),
    "grad_norm": SeriesKind(0.2, log2=True),
    "update_norm": SeriesKind(0.05, log2=True),
    "step_time_s": SeriesKind(0.08, log2=True),
    "zero_grad_pct": SeriesKind(0.3),
    "eval_loss": SeriesKind(0.01),
    "lr": SeriesKind(0.02, log2=True),
}

# A row is noticed from (sigmas, units) above the mean of the rows before it, whichever is more.
LOSS_NOTICE = (4.5, 0.25)  # a detector's jump: 7 and 0.4 nats; its sum takes single rows of 8
LOSS_WATCH = (6.0, 0.35)
LOSS_SHIFT_SIGMA = 1.25  # mean of SHORT rows over the LONG before: white noise stays within 1.25 in 10^5 rows
GRAD_NOTICE = (5.0, 2.5)  # 6 and 3 in log2
GRAD_SHIFT_SIGMA = 2.5  # mean of four rows
NORM_NOTICE = (5.0, 0.8)  # 6 and 1 in log2
WEIGHTS_LOG2 = 0.015  # 0.02
LR_JUMP_LOG2 = 1.2  # 1.5
LR_RISING = 1.001  # from one row to the next, as in the detector of ramps
ZERO_NOTICE = (6.0, 2.0)  # 8 and 2.5 percentage points
SLOW_NOTICE = (5.0, 0.6)  # 6 and 0.8 in log2, two rows in a row
WAIT_SECONDS, WAIT_STEPS = 8.0, 15.0  # 10 and 20
EVAL_SIGMA = 5.0


@dataclass(frozen=True)
class Columns:
    """Judged scalars of N rows.

    step: int64 [N].  values[name]: float64 [N], NaN where missing.  present[name]: bool [N].  filled[name]:
    float64 [N], of a series: the last finite value, in the unit it is judged in.
    """

    step: Int64
    values: Mapping[str, Float64]
    present: Mapping[str, Bool]
    filled: Mapping[str, Float64]

    @classmethod
    def blank(cls) -> Columns:
        """CONTEXT_ROWS rows without any scalar."""
        return cls(np.full(CONTEXT_ROWS, -1), {}, {}, {})

    @classmethod
    def of(cls, batch: Batch) -> Columns:
        names = [n for n in batch.scalar_names if n in JUDGED_SCALARS]
        present = {n: batch.scalar(n)[1] for n in names}
        values = {n: np.where(present[n], batch.scalar(n)[0], np.nan) for n in names}
        return cls(batch.step, values, present, {})

    def followed_by(self, new: Columns) -> Columns:
        """Both, one after the other; a scalar that only one of them has is missing in the other."""
        values, present, filled = {}, {}, {}
        old_rows, new_rows = len(self.step), len(new.step)
        for name in (*self.values, *(n for n in new.values if n not in self.values)):
            a = self.values.get(name, np.full(old_rows, np.nan))
            b = new.values.get(name, np.full(new_rows, np.nan))
            values[name] = np.concatenate([a, b])
            p = self.present.get(name, np.zeros(old_rows, bool))
            q = new.present.get(name, np.zeros(new_rows, bool))
            present[name] = np.concatenate([p, q])
            if name in SERIES:
                before = self.filled.get(name, np.zeros(old_rows))
                filled[name] = np.concatenate([before, _filled(b, SERIES[name], float(before[-1]))])
        return Columns(np.concatenate([self.step, new.step]), values, present, filled)

    def last(self, rows: int) -> Columns:
        """The last rows; scalars that none of them has are forgotten, but for the level of a series."""
        kept = [n for n in self.values if n in self.filled or self.present[n][-rows:].any()]
        return Columns(
            self.step[-rows:].copy(),
            {n: self.values[n][-rows:].copy() for n in kept},
            {n: self.present[n][-rows:].copy() for n in kept},
            {n: self.filled[n][-rows:].copy() for n in kept if n in self.filled},
        )

    def row(self, i: int) -> dict[str, float]:
        """The scalars of one row; a missing one has no key."""
        return {n: float(self.values[n][i]) for n, here in self.present.items() if here[i]}

    def get(self, name: str) -> tuple[Float64, Bool]:
        """Values float64 [N], NaN where missing, and presence bool [N]."""
        if name in self.values:
            return self.values[name], self.present[name]
        return np.full(len(self.step), np.nan), np.zeros(len(self.step), bool)

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "values": dict(self.values),
            "present": dict(self.present),
            "filled": dict(self.filled),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Columns:
        return cls(state["step"], state["values"], state["present"], state["filled"])


@dataclass(frozen=True)
class Series:
    """Running means of one series, float64 [N] each, at row i of the rows up to and with i.

    away: the value less the mean of the SHORT rows before it.  shift4, shift16: mean of the last 4 or 16 rows
    less that of the LONG rows before.  long: of the last LONG rows.  newest: of the last 8.
    """

    away: Float64
    shift4: Float64
    shift16: Float64
    long: Float64
    newest: Float64


def series_of(name: str, columns: Columns) -> Series:
    """Means of doubling windows: each is a fixed sum of the same values, however the rows were cut."""
    x = columns.filled[name]
    sums = {1: x}
    for rows in (1, 2, 4, 8, 16, 32):
        wider = sums[rows].copy()
        wider[rows:] += sums[rows][:-rows]
        sums[2 * rows] = wider
    short, long = sums[SHORT] / SHORT, sums[LONG] / LONG
    four = sums[4] / 4
    return Series(
        away=x - _late(short, 1),
        shift4=four - _late(long, 4),
        shift16=short - _late(long, SHORT),
        long=long,
        newest=sums[8] / 8,
    )


def marks(
    columns: Columns, series: Mapping[str, Series], sigma: Mapping[str, Float64], vocab_size: int | None
) -> tuple[Bool, Bool, Bool]:
    """Rows to watch for long, to notice for a while, and to judge by themselves, bool [T] each."""
    size = len(columns.step)
    watch, notice, alone = (np.zeros(size - CONTEXT_ROWS, bool) for _ in range(3))
    with np.errstate(all="ignore"):
        _mark_loss(columns, series, sigma, watch, notice)
        _mark_norms(columns, series, sigma, notice)
        _mark_rates(columns, watch, notice)
        _mark_shares(columns, series, sigma, notice)
        _mark_input(columns, vocab_size, notice)
        evals, here = columns.get("eval_loss")
        if here.any():
            alone |= here[CONTEXT_ROWS:] & ~_late(here, 1)[CONTEXT_ROWS:]
            high = here & (np.abs(series["eval_loss"].away) > EVAL_SIGMA * sigma["eval_loss"])
            notice |= (high & _late(here, 1))[CONTEXT_ROWS:]
            notice |= _turned(here & ~np.isfinite(evals))
        resumed, _ = columns.get("resumed")
        watch |= (resumed == 1.0)[CONTEXT_ROWS:]
    return watch, notice, alone


def _mark_loss(
    columns: Columns, series: Mapping[str, Series], sigma: Mapping[str, Float64], watch: Bool, notice: Bool
) -> None:
    loss, here = columns.get("loss")
    if not here.any():
        return
    s, spread = series["loss"], sigma["loss"]
    watch |= _turned(here & ~np.isfinite(loss))
    notice |= _turned(loss == 0.0)
    notice |= _turned((loss == _late(loss, 1)) & (loss == _late(loss, 2)))
    watch |= _above(s.away, spread, LOSS_WATCH)
    notice |= _above(s.away, spread, LOSS_NOTICE)
    notice |= (s.shift16 > LOSS_SHIFT_SIGMA * spread)[CONTEXT_ROWS:]
    gone = ~here & (columns.get("grad_norm")[1] | columns.get("lr")[1])
    notice |= _turned(gone & _late(gone, 1) & _late(gone, 2))


def _mark_norms(
    columns: Columns, series: Mapping[str, Series], sigma: Mapping[str, Float64], notice: Bool
) -> None:
    grad, here = columns.get("grad_norm")
    if here.any():
        s, spread = series["grad_norm"], sigma["grad_norm"]
        notice |= _turned(here & ~np.isfinite(grad))
        notice |= _turned(grad == 0.0)
        same = grad == _late(grad, 1)
        notice |= _turned(same & _late(same, 1) & _late(same, 2) & _late(same, 3))
        notice |= _above(s.away, spread, GRAD_NOTICE)
        notice |= (s.shift4 > GRAD_SHIFT_SIGMA * spread)[CONTEXT_ROWS:]
    update, here = columns.get("update_norm")
    if here.any():
        away = series["update_norm"].away
        if "lr" in series:
            away = away - series["lr"].away
        notice |= _turned(update == 0.0)
        notice |= _above(np.abs(away), sigma["update_norm"], NORM_NOTICE)
    param, here = columns.get("param_norm")
    if here.any():
        notice |= (np.abs(np.log2(param / _late(param, 1))) > WEIGHTS_LOG2)[CONTEXT_ROWS:]


def _mark_rates(columns: Columns, watch: Bool, notice: Bool) -> None:
    lr, here = columns.get("lr")
    if here.any():
        rise = lr / _late(lr, 1)
        watch |= _turned(lr == 0.0)
        watch |= (rise > 2.0**LR_JUMP_LOG2)[CONTEXT_ROWS:]
        notice |= _turned(rise > LR_RISING)
    scale, here = columns.get("loss_scale")
    if here.any():
        before = _late(scale, 1)
        notice |= ((scale != before) & ~np.isnan(scale) & ~np.isnan(before))[CONTEXT_ROWS:]
        notice |= _turned(here)


def _mark_shares(
    columns: Columns, series: Mapping[str, Series], sigma: Mapping[str, Float64], notice: Bool
) -> None:
    if columns.get("zero_grad_pct")[1].any():
        notice |= _above(series["zero_grad_pct"].away, sigma["zero_grad_pct"], ZERO_NOTICE)
    if not columns.get("step_time_s")[1].any():
        return
    s, spread = series["step_time_s"], sigma["step_time_s"]
    slow = s.away > np.maximum(SLOW_NOTICE[0] * spread, SLOW_NOTICE[1])
    notice |= (slow & _late(slow, 1))[CONTEXT_ROWS:]
    wait, _ = columns.get("data_time_s")
    notice |= _turned((wait > WAIT_SECONDS) & (wait > WAIT_STEPS * 2.0**s.long))


def _mark_input(columns: Columns, vocab_size: int | None, notice: Bool) -> None:
    for name in ("label_tokens", "label_tokens_min_microbatch"):
        notice |= _turned(columns.get(name)[0] == 0.0)
    notice |= _turned(columns.get("input_ids_out_of_range")[0] > 0)
    notice |= _turned(columns.get("input_id_min")[0] < 0)
    if vocab_size is not None:
        notice |= _turned(columns.get("input_id_max")[0] >= vocab_size)


def _late(x: NDArray[Any], rows: int) -> NDArray[Any]:
    """The array some rows later; its first rows repeat the first value."""
    return np.concatenate([np.repeat(x[:1], rows), x[:-rows]])


def _turned(condition: Bool) -> Bool:
    """Rows behind the context at which a condition begins or has ended."""
    return np.asarray(condition[CONTEXT_ROWS:] != condition[CONTEXT_ROWS - 1 : -1], bool)


def _above(away: Float64, sigma: Float64, limit: tuple[float, float]) -> Bool:
    """Rows behind the context that lie more than limit[0] sigmas and limit[1] units above."""
    return np.asarray((away > np.maximum(limit[0] * sigma, limit[1]))[CONTEXT_ROWS:], bool)


def _filled(x: Float64, kind: SeriesKind, carry: float) -> Float64:
    """The series in its unit, float64 [T], each value that is missing or not finite like the one before."""
    with np.errstate(all="ignore"):
        value = np.log2(x) if kind.log2 else x
    good = np.isfinite(value)
    if good.all():
        return value
    last = np.maximum.accumulate(np.where(good, np.arange(len(x)), -1))
    return np.where(last >= 0, value[last], carry)

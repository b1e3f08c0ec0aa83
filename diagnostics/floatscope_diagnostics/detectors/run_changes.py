"""Change detection on the run's scalars: loss, gradient norm, update norm, parameter norm, learning rate,
step time.

Signals: ``loss_jump`` (far above its level), ``loss_shift`` (CUSUM: above its level step after step),
``loss_constant`` (the same digits again and again), ``loss_zero``, ``loss_missing`` (the other scalars go
on without it), ``grad_norm_constant``, ``grad_norm_jump``, ``grad_norm_shift``, ``grad_norm_zero``,
``norm_jump`` and ``norm_fall`` (update norm against its level, the learning rate's own change taken out),
``weights_jump`` (parameter norm), ``lr_jump``, ``lr_zero``, ``zero_grad_rise``, ``zero_grad_flicker``,
``slow_steps``, ``loader_wait``, ``resumed``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from floatscope_diagnostics.detectors.level import Level
from floatscope_diagnostics.detectors.row import ScalarRow, skipped_by_scaler
from floatscope_diagnostics.episodes import TOTAL

READY_ROWS = 12
LOSS_JUMP_SIGMA = 7.0  # SCIENCE 3.3: z > 8 never on 540 clean steps, z > 5 three times
LOSS_JUMP_NATS = 0.4
CUSUM_SLACK_SIGMA = 0.5  # SCIENCE 3.2: no alarm on 440 clean steps, delay 0 to 3 steps
CUSUM_ALARM_SIGMA = 12.0
HIGH_SIGMA = 2.0  # a step of a shift; between spikes the loss is back at its level
# Cumulative, each step at most GRAD_CLIP_SIGMA: three high steps in a row; support only.
GRAD_SHIFT_SIGMA = 9.0
GRAD_CLIP_SIGMA = 3.5
GRAD_JUMP_LOG2 = 3.0  # SCIENCE 3.3: log2 grad_norm passes z = 8 seven times in 540 clean steps: support only
NORM_STEP_LOG2 = 1.0  # update norm beyond the learning rate's change; clean runs stay within 0.5
WEIGHTS_STEP_LOG2 = 0.02  # one-step change of the parameter norm; clean runs move 0.001 a step
LR_JUMP_LOG2 = 1.5  # schedules do not multiply the rate by 2.8 in one step after warm-up
ZERO_GRAD_RISE_PCT = 2.5  # percentage points; clean runs, other domains and rates stay within 0.8
ZERO_GRAD_SIGMA = 8.0  # of the share's own wandering: with a large vocabulary it follows the data
ZERO_BACK_SHARE = 0.4  # of the limit: back at the level
ZERO_ALL_PCT = 95.0  # nothing left at all is no race
FLICKER_RISES, FLICKER_ROWS = 3, 16  # so many separate rises in so many rows
SLOW_LOG2 = 0.8  # 1.7 times the usual step time
SLOW_ROWS = 3
WAIT_SECONDS, WAIT_STEPS = 10.0, 20.0  # one wait for data this long, in seconds and in steps
RAMP_ROWS = 24  # a rate that triples this quickly after it had settled is no schedule
SAME_LOSS_ROWS = 3
SAME_NORM_ROWS = 5  # the same digits of a sum over millions of gradients
MISSING_ROWS = 3
SCRATCH_ROWS = 48  # a run from scratch: scales start at 1 and everything grows

_LOG_FLOORS = {"grad_norm": 0.2, "update_norm": 0.05, "step_time_s": 0.08, "data_time_s": 0.2}


class RunChanges:
    """Levels of one rank's scalars."""

    def __init__(self) -> None:
        self.loss = Level(0.02)
        self.logs = {name: Level(floor) for name, floor in _LOG_FLOORS.items()}
        self.zero_grad = Level(0.3)
        self.lr = Level(0.02)
        self.zero_up = False
        self.zero_rises: list[list[int]] = []  # (row, step) at which the share left its level, newest last
        self.last: dict[str, float] = {}
        self.cusum = 0.0
        self.cusum_since: int | None = None
        self.grad_cusum = 0.0
        self.same_loss = 0
        self.same_since = 0
        self.same_norm = 0
        self.same_norm_since = 0
        self.missing = 0
        self.missing_since = 0
        self.with_loss = 0  # rows in a row that had a loss beside their gradient norm
        self.slow = 0
        self.slow_since = 0
        self.lr_peak: float | None = None  # the rate when it last stood still or fell
        self.lr_top = 0.0  # the largest rate so far
        self.lr_settled = 0
        self.lr_ramp_since: int | None = None
        self.lr_ramp_rows = 0
        self.rows = 0
        self.lr_rising = 0  # rows in a row in which the learning rate rose: warm-up

    def seam(self) -> None:
        for level in (self.loss, self.zero_grad, self.lr, *self.logs.values()):
            level.restart()
        self.last = {}
        self.grad_cusum = 0.0
        self.zero_up, self.zero_rises = False, []
        self.same_norm, self.missing, self.with_loss = 0, 0, 0
        self.cusum, self.cusum_since, self.same_loss, self.slow, self.lr_rising = 0.0, None, 0, 0, 0

    def warming_up(self, first_step: int | None) -> bool:
        """Whether the learning rate still rises, or the run began less than SCRATCH_ROWS ago from scratch."""
        scratch = first_step is not None and first_step <= 1 and self.rows < SCRATCH_ROWS
        return self.lr_rising >= 3 or scratch

    def step(self, row: ScalarRow) -> None:
        """Judges one step."""
        self.rows += 1
        s = row.scalars
        self._learning_rate(row, s.get("lr"))
        self._loss(row, s.get("loss"))
        self._missing(row, s)
        self._same_norm(row, s.get("grad_norm"))
        self._norms(row, s)
        self._zero_grads(row, s.get("zero_grad_pct"))
        self._time(row, s.get("step_time_s"))
        if s.get("resumed", 0.0) == 1.0:
            _hit(row, "resumed", 1.0)
        self.last = {k: s[k] for k in ("loss", "lr", "param_norm") if k in s}
        if "grad_norm" in s:
            self.last["grad_norm"] = s["grad_norm"]

    def _learning_rate(self, row: ScalarRow, lr: float | None) -> None:
        before = self.last.get("lr")
        if lr is None or not math.isfinite(lr) or lr < 0:
            return
        if lr == 0.0:
            if before is not None and before > 0 and self.lr.count >= READY_ROWS:
                _hit(row, "lr_zero", before, expected=self.lr_top)
            elif row.log.is_open("lr_zero"):
                _hit(row, "lr_zero", 0.0)
            return
        self.lr_top = max(self.lr_top, lr)
        if before is not None and 0 < before < math.inf:
            rise = math.log2(lr / before)
            self.lr_rising = min(self.lr_rising + 1, 8) if rise > 0 else max(self.lr_rising - 1, 0)
            if rise > LR_JUMP_LOG2 and self.lr.count >= READY_ROWS:
                _hit(row, "lr_jump", rise, expected=before, extra={"factor": lr / before, "lr": lr})
            else:
                self._ramp(row, lr, before)
        self.lr.update(math.log2(lr))

    def _ramp(self, row: ScalarRow, lr: float, before: float) -> None:
        """A rate that had settled and climbs far above its peak within a few steps."""
        if lr <= before * 1.001:
            self.lr_settled += 1
            if self.lr_settled >= READY_ROWS:
                self.lr_peak = before
                self.lr_ramp_since = None
            return
        self.lr_settled = 0
        if self.lr_peak is None:
            return
        if self.lr_ramp_since is None and lr > 1.02 * self.lr_peak:
            self.lr_ramp_since = row.step
            self.lr_ramp_rows = 0
        if self.lr_ramp_since is None:
            return
        self.lr_ramp_rows += 1
        rise = math.log2(lr / self.lr_peak)
        if rise > LR_JUMP_LOG2 and self.lr_ramp_rows <= RAMP_ROWS:
            extra = {"factor": lr / self.lr_peak, "lr": lr}
            _hit(
                row, "lr_jump", rise, onset=self.lr_ramp_since, expected=self.lr_peak, extra=extra, gap_rows=2
            )

    def _loss(self, row: ScalarRow, loss: float | None) -> None:
        if loss is None or not math.isfinite(loss):
            return
        before = self.last.get("loss", loss)
        if loss == 0.0:
            _hit(row, "loss_zero", 0.0, expected=self.loss.center)
        if loss == self.last.get("loss"):
            self.same_loss += 1
            if self.same_loss + 1 >= SAME_LOSS_ROWS:
                log_v = math.log(row.vocab_size) if row.vocab_size else math.nan
                extra = {"loss": loss, "log_vocab": log_v}
                _hit(row, "loss_constant", loss, onset=self.same_since, extra=extra)
        else:
            self.same_loss = 0
            self.same_since = row.step
        away, sigma = self.loss.away(loss), self.loss.sigma()
        ready = self.loss.count >= READY_ROWS
        high = ready and away > max(LOSS_JUMP_SIGMA * sigma, LOSS_JUMP_NATS)
        if high or (ready and row.log.is_open("loss_jump") and away > max(4 * sigma, LOSS_JUMP_NATS)):
            extra = {"sigma": sigma, "step": loss - before}
            _hit(row, "loss_jump", away, expected=self.loss.center, extra=extra, gap_rows=2)
        if ready:
            self._cusum(row, min(away / sigma, 8.0), away)
        if not high and self.cusum < CUSUM_ALARM_SIGMA:
            self.loss.update(loss)

    def _cusum(self, row: ScalarRow, z: float, away: float) -> None:
        self.cusum = max(0.0, self.cusum + z - CUSUM_SLACK_SIGMA)
        self.cusum = min(self.cusum, 4 * CUSUM_ALARM_SIGMA)
        if self.cusum == 0.0:
            self.cusum_since = None
        elif self.cusum_since is None:
            self.cusum_since = row.step
        if self.cusum > CUSUM_ALARM_SIGMA:
            extra = {"total_high": float(z > HIGH_SIGMA)}
            since, center = self.cusum_since, self.loss.center
            _hit(row, "loss_shift", away, onset=since, expected=center, gap_rows=4, extra=extra)

    def _missing(self, row: ScalarRow, s: Mapping[str, float]) -> None:
        """Loggers leave out a loss that is NaN or null; a run that never had one in each row is no sign."""
        if "grad_norm" not in s and "lr" not in s:
            return
        if "loss" in s:
            self.with_loss, self.missing = self.with_loss + 1, 0
            return
        if self.with_loss < READY_ROWS:
            self.with_loss = 0
            return
        if self.missing == 0:
            self.missing_since = row.step
        self.missing += 1
        if self.missing >= MISSING_ROWS:
            _hit(row, "loss_missing", 1.0, onset=self.missing_since, gap_rows=2)

    def _same_norm(self, row: ScalarRow, norm: float | None) -> None:
        if norm is None or not math.isfinite(norm) or norm == 0.0:
            self.same_norm = 0
            return
        if norm != self.last.get("grad_norm"):
            self.same_norm, self.same_norm_since = 0, row.step
            return
        self.same_norm += 1
        if self.same_norm + 1 >= SAME_NORM_ROWS and self.logs["grad_norm"].count >= READY_ROWS:
            _hit(row, "grad_norm_constant", norm, onset=self.same_norm_since)

    def _norms(self, row: ScalarRow, s: Mapping[str, float]) -> None:
        grad = s.get("grad_norm")
        if grad == 0.0:
            _hit(row, "grad_norm_zero", 1.0)
        if grad is not None and math.isfinite(grad) and grad > 0:
            level = self.logs["grad_norm"]
            away = level.away(math.log2(grad))
            if level.count >= READY_ROWS:
                z = min(away / level.sigma(), GRAD_CLIP_SIGMA)
                self.grad_cusum = min(max(0.0, self.grad_cusum + z - CUSUM_SLACK_SIGMA), 2 * GRAD_SHIFT_SIGMA)
                if self.grad_cusum > GRAD_SHIFT_SIGMA:
                    _hit(row, "grad_norm_shift", away, expected=2.0**level.center, gap_rows=4)
            if level.count >= READY_ROWS and away > max(GRAD_JUMP_LOG2, 6 * level.sigma()):
                _hit(row, "grad_norm_jump", away, expected=2.0**level.center)
            else:
                level.update(math.log2(grad))
        self._update_norm(row, s.get("update_norm"), s.get("lr"))
        param, before = s.get("param_norm"), self.last.get("param_norm")
        if param is None or before is None or not 0 < param < math.inf or not 0 < before < math.inf:
            return
        change = math.log2(param / before)
        if abs(change) > WEIGHTS_STEP_LOG2:
            _hit(row, "weights_jump", abs(change), expected=before, extra={"log2": change})

    def _update_norm(self, row: ScalarRow, update: float | None, lr: float | None) -> None:
        if update is None or not math.isfinite(update) or update <= 0:
            return
        level = self.logs["update_norm"]
        value = math.log2(update)
        shift = level.away(value)
        if lr is not None and lr > 0 and math.isfinite(lr) and self.lr.count > 1:
            shift -= math.log2(lr) - self.lr.center
        limit = max(NORM_STEP_LOG2, 6 * level.sigma())
        itself = math.copysign(1.0, shift) * level.away(value)  # Adam's updates follow a warm-up late
        scratch = row.step < SCRATCH_ROWS
        if level.count >= READY_ROWS and abs(shift) > limit and itself > NORM_STEP_LOG2 / 2 and not scratch:
            _hit(row, "norm_jump" if shift > 0 else "norm_fall", abs(shift), expected=2.0**level.center)
        else:
            level.update(value)

    def _zero_grads(self, row: ScalarRow, share: float | None) -> None:
        if share is None or not math.isfinite(share) or skipped_by_scaler(row.scalars):
            return
        level = self.zero_grad
        away, limit = level.away(share), max(ZERO_GRAD_RISE_PCT, ZERO_GRAD_SIGMA * level.sigma())
        up = level.count >= READY_ROWS and away > limit
        if up and not self.zero_up and share < ZERO_ALL_PCT:
            self.zero_rises = [*self.zero_rises, [row.index, row.step]][-FLICKER_RISES:]
            first = self.zero_rises[0]
            if len(self.zero_rises) == FLICKER_RISES and row.index - first[0] < FLICKER_ROWS:
                _hit(
                    row,
                    "zero_grad_flicker",
                    share,
                    onset=first[1],
                    expected=level.center,
                    gap_rows=FLICKER_ROWS,
                )
        self.zero_up = up or (self.zero_up and away > ZERO_BACK_SHARE * limit)
        if up:
            _hit(row, "zero_grad_rise", share, expected=level.center, gap_rows=2)
        else:
            level.update(share)

    def _time(self, row: ScalarRow, seconds: float | None) -> None:
        if seconds is None or not math.isfinite(seconds) or seconds <= 0:
            return
        level = self.logs["step_time_s"]
        away = level.away(math.log2(seconds))
        wait = row.scalars.get("data_time_s", 0.0)
        if level.count >= READY_ROWS and wait > max(WAIT_SECONDS, WAIT_STEPS * 2.0**level.center):
            _hit(row, "loader_wait", wait, expected=2.0**level.center)
        if level.count >= READY_ROWS and away > max(SLOW_LOG2, 6 * level.sigma()):
            if self.slow == 0:
                self.slow_since = row.step
            self.slow += 1
            if self.slow >= SLOW_ROWS:
                extra = {
                    k: row.scalars[k]
                    for k in ("data_time_s", "gpu_throttle", "gpu_util_pct")
                    if k in row.scalars
                } | {"sigma": level.sigma()}
                _hit(
                    row, "slow_steps", seconds, onset=self.slow_since, expected=2.0**level.center, gap_rows=3,
                    extra=extra,
                )  # fmt: skip
        else:
            self.slow = 0
            level.update(math.log2(seconds))

    def state(self) -> dict[str, Any]:
        return {
            "loss": self.loss.state(),
            "zero_grad": self.zero_grad.state(),
            "lr": self.lr.state(),
            "logs": {name: level.state() for name, level in self.logs.items()},
            "plain": {name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> RunChanges:
        out = cls()
        out.loss.load(state["loss"])
        out.zero_grad.load(state["zero_grad"])
        out.lr.load(state["lr"])
        for name, saved in state["logs"].items():
            out.logs[name].load(saved)
        for name in _PLAIN:
            setattr(out, name, state["plain"][name])
        return out


_PLAIN = (
    "last",
    "grad_cusum",
    "cusum",
    "cusum_since",
    "same_loss",
    "same_since",
    "slow",
    "slow_since",
    "lr_rising",
    "lr_peak",
    "lr_top",
    "lr_settled",
    "lr_ramp_since",
    "lr_ramp_rows",
    "rows",
    "zero_up",
    "zero_rises",
    "same_norm",
    "same_norm_since",
    "missing",
    "missing_since",
    "with_loss",
)


def _added(extra: Mapping[str, float] | None) -> Mapping[str, float] | None:
    """The numbers that are added up over an episode; the others are of its first step."""
    return None if extra is None else {k: v for k, v in extra.items() if k.startswith(TOTAL)}


def _hit(
    row: ScalarRow,
    signal: str,
    value: float,
    *,
    onset: int | None = None,
    expected: float | None = None,
    gap_rows: int = 1,
    extra: Mapping[str, float] | None = None,
) -> None:
    kept = extra if not row.log.is_open(signal) else _added(extra)
    row.hit(signal, value, onset=onset, expected=expected, gap_rows=gap_rows, extra=kept)

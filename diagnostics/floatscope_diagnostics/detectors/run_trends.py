"""Slow changes of the run's scalars: a loss that turns, held-out loss that parts from it, the loss scale,
zero gradients.

Signals: ``loss_climb``, ``evaluated``, ``eval_jump``, ``eval_parts``, ``loss_scale_cut``,
``loss_scale_search``, ``loss_scale_falls``, ``zero_grad_trend``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from floatscope_diagnostics.detectors.level import Level
from floatscope_diagnostics.detectors.row import ScalarRow, skipped_by_scaler

FAST_ROWS = 6
READY_ROWS = 16
# The fast average of white noise wanders by 2 of the noise's standard deviations over 1,000 steps.
CLIMB_SIGMA = 4.5
CLIMB_NATS = 0.5
EVAL_READY = 4
EVAL_JUMP_NATS = 0.1
EVAL_JUMP_SIZES = 5.0  # of the usual change from one evaluation to the next
EVAL_MEMORY = 8  # evaluations; the loss of a young run falls by less and less
EVAL_RISE_NATS = 0.25  # clean held-out losses on a fixed batch wander by 0.15 from one evaluation to another
EVAL_RISE_SIGMA = 6.0  # of the evaluations' own noise
EVAL_CREEP_SHARE = 0.4  # of the limit, passed for good: the onset
EVAL_ROWS = 3
TRAIN_FALL_NATS = 0.15
SETTLED_ROWS = 20  # rows without a halving that end the search at the start
FALLS = 5.0  # halvings in a row without growth; dynamic scaling loses one or two at a time
CREEP_PCT = 20.0


class RunTrends:
    """Slow state of one rank's scalars."""

    def __init__(self) -> None:
        self.fast: float | None = None
        self.last_loss = 0.0
        self.low = math.inf
        self.low_step = 0
        self.noise = Level(0.02)
        self.count = 0
        self.evaluation = Level(0.01)
        self.eval_last: float | None = None
        self.eval_change = 0.0  # mean absolute change from one evaluation to the next
        self.eval_jumped: float | None = None  # the value right after a jump
        self.eval_low = math.inf
        self.eval_low_step = 0
        self.train_at_low = math.inf
        self.eval_rises = 0
        self.scale: float | None = None
        self.falls = 0.0
        self.falls_since = 0
        self.quiet_rows = 0
        self.settled = False
        self.zero_fast: float | None = None
        self.zero_low = math.inf

    def seam(self) -> None:
        fresh = RunTrends()
        for name in _PLAIN:
            if name != "settled":
                setattr(self, name, getattr(fresh, name))
        self.noise, self.evaluation = fresh.noise, fresh.evaluation

    def step(self, row: ScalarRow) -> None:
        """Judges one step."""
        self._loss(row, row.scalars.get("loss"))
        self._evaluation(row, row.scalars.get("eval_loss"))
        self._loss_scale(row, row.scalars.get("loss_scale"))
        self._zero_grads(row, row.scalars.get("zero_grad_pct"))

    def _loss(self, row: ScalarRow, loss: float | None) -> None:
        if loss is None or not math.isfinite(loss):
            return
        self.count += 1
        if self.fast is None:
            self.fast = self.last_loss = loss
            return
        self.noise.update((loss - self.last_loss) / math.sqrt(2.0))
        self.last_loss = loss
        self.fast += (loss - self.fast) / min(self.count, FAST_ROWS)
        if self.fast < self.low and self.count >= FAST_ROWS:
            self.low, self.low_step = self.fast, row.step
        climb = self.fast - self.low
        if self.count >= READY_ROWS and climb > max(CLIMB_NATS, CLIMB_SIGMA * self.noise.sigma()):
            row.hit("loss_climb", climb, onset=self.low_step, expected=self.low, gap_rows=6)

    def _evaluation(self, row: ScalarRow, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            return
        level = self.evaluation
        row.hit("evaluated", value, gap_rows=1 << 40)
        self._eval_jump(row, value)
        level.update(value)
        train = self.fast if self.fast is not None else math.inf
        if value < self.eval_low:
            self.eval_low, self.eval_low_step, self.train_at_low = value, row.step, train
            self.eval_rises = 0
            return
        rise = value - self.eval_low
        limit = max(EVAL_RISE_NATS, EVAL_RISE_SIGMA * level.sigma())
        if rise <= limit * EVAL_CREEP_SHARE:
            self.eval_low_step = row.step
        if rise <= limit:
            self.eval_rises = 0
            return
        self.eval_rises += 1
        fallen = self.train_at_low - train
        if self.eval_rises >= EVAL_ROWS and fallen > TRAIN_FALL_NATS:
            row.hit("eval_parts", rise, onset=self.eval_low_step, expected=self.eval_low, gap_rows=512)

    def _eval_jump(self, row: ScalarRow, value: float) -> None:
        """A step between two evaluations, and with it, in ``next``, how the one after them went on."""
        last, self.eval_last = self.eval_last, value
        if self.eval_jumped is not None and row.log.is_open("eval_jump"):
            row.hit("eval_jump", 0.0, gap_rows=64, extra={"next": value - self.eval_jumped})
        self.eval_jumped = None
        if last is None:
            return
        change = value - last
        if self.evaluation.count >= EVAL_READY and change > max(
            EVAL_JUMP_NATS, EVAL_JUMP_SIZES * self.eval_change
        ):
            if not row.log.is_open("eval_jump"):
                row.hit("eval_jump", change, expected=last, gap_rows=64)
                self.eval_jumped = value
            return
        self.eval_change += (abs(change) - self.eval_change) / min(self.evaluation.count, EVAL_MEMORY)

    def _loss_scale(self, row: ScalarRow, scale: float | None) -> None:
        if scale is None or not math.isfinite(scale) or scale <= 0:
            return
        before, self.scale = self.scale, scale
        if before is None:
            return
        if scale > before:
            self.falls, self.settled = 0.0, True
        if scale >= before:
            self.quiet_rows += 1
            if self.quiet_rows >= SETTLED_ROWS:
                self.settled, self.falls = True, 0.0
            return
        self.quiet_rows = 0
        drop = math.log2(before / scale)
        if self.falls == 0.0 or drop >= FALLS:
            self.falls_since = row.step
        self.falls += drop
        row.hit("loss_scale_cut", drop, gap_rows=8)
        if not self.settled:
            row.hit("loss_scale_search", self.falls, gap_rows=SETTLED_ROWS, extra={"scale": scale})
        elif self.falls >= FALLS or scale < 1.0:
            extra = {"scale": scale}
            row.hit("loss_scale_falls", self.falls, onset=self.falls_since, gap_rows=1024, extra=extra)

    def _zero_grads(self, row: ScalarRow, share: float | None) -> None:
        if share is None or not math.isfinite(share) or skipped_by_scaler(row.scalars):
            return
        self.zero_fast = (
            share if self.zero_fast is None else self.zero_fast + (share - self.zero_fast) / FAST_ROWS
        )
        self.zero_low = min(self.zero_low, self.zero_fast)
        if self.zero_fast - self.zero_low > CREEP_PCT:
            row.hit("zero_grad_trend", share, expected=self.zero_low, gap_rows=16)

    def state(self) -> dict[str, Any]:
        return {
            "noise": self.noise.state(),
            "evaluation": self.evaluation.state(),
            "plain": {name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> RunTrends:
        out = cls()
        out.noise.load(state["noise"])
        out.evaluation.load(state["evaluation"])
        for name in _PLAIN:
            setattr(out, name, state["plain"][name])
        return out


_PLAIN = (
    "fast", "last_loss", "low", "low_step", "count", "eval_last", "eval_change", "eval_jumped", "eval_low",
    "eval_low_step", "train_at_low",
    "eval_rises", "scale", "falls",
    "falls_since", "quiet_rows", "settled", "zero_fast", "zero_low",
)  # fmt: skip

"""Rows that the detectors of the run's scalars did not see one by one, since nothing in them stood out.

Their levels go on from where the rows have got to, as if they had followed; a detector that holds an alarm
keeps the level it froze.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from floatscope_diagnostics.detectors import run_changes
from floatscope_diagnostics.detectors.level import Level
from floatscope_diagnostics.detectors.run_changes import RunChanges
from floatscope_diagnostics.detectors.run_trends import SETTLED_ROWS, RunTrends

JUMP_SIGMA = 6.0  # of the levels in ``run_changes`` that are judged in log2
_JUMPS_LOG2 = {
    "grad_norm": run_changes.GRAD_JUMP_LOG2,
    "update_norm": run_changes.NORM_STEP_LOG2,
    "step_time_s": run_changes.SLOW_LOG2,
}


@dataclass(frozen=True)
class Passed:
    """Consecutive rows that were passed over.

    last: scalars of the last of them.  mean, newest: by series, over the last 64 and the last 8 rows, in the
    unit the series is judged in (log2 for norms, times and rates).
    """

    rows: int
    last: Mapping[str, float]
    mean: Mapping[str, float]
    newest: Mapping[str, float]


def pass_over(changes: RunChanges, trends: RunTrends, passed: Passed) -> None:
    """Brings both detectors to the row before the one they judge next."""
    _changes(changes, passed)
    _trends(trends, passed)


def _changes(c: RunChanges, passed: Passed) -> None:
    c.rows += passed.rows
    loss = passed.mean.get("loss")
    if loss is not None and c.cusum < run_changes.CUSUM_ALARM_SIGMA:
        c.cusum, c.cusum_since = 0.0, None
        _follow(c.loss, loss, run_changes.LOSS_JUMP_SIGMA, run_changes.LOSS_JUMP_NATS)
    if c.grad_cusum < run_changes.GRAD_SHIFT_SIGMA:
        c.grad_cusum = 0.0
    for name, units in _JUMPS_LOG2.items():
        if name in passed.mean and not (name == "step_time_s" and c.slow):
            _follow(c.logs[name], passed.mean[name], JUMP_SIGMA, units)
    if "zero_grad_pct" in passed.mean:
        mean = passed.mean["zero_grad_pct"]
        _follow(c.zero_grad, mean, run_changes.ZERO_GRAD_SIGMA, run_changes.ZERO_GRAD_RISE_PCT)
    if "lr" in passed.mean:
        c.lr.center = passed.mean["lr"]
    if passed.last.get("loss") != c.last.get("loss"):
        c.same_loss = 0
    if passed.last.get("grad_norm", math.nan) != c.last.get("grad_norm"):
        c.same_norm = 0
    c.last = {k: passed.last[k] for k in ("loss", "lr", "param_norm", "grad_norm") if k in passed.last}


def _trends(t: RunTrends, passed: Passed) -> None:
    newest, loss = passed.newest.get("loss"), passed.last.get("loss")
    if t.fast is not None and newest is not None:
        t.fast = newest
        t.count += passed.rows
    if loss is not None and math.isfinite(loss):
        t.last_loss = loss
    if t.scale is not None:
        t.quiet_rows += passed.rows
        if t.quiet_rows >= SETTLED_ROWS:
            t.settled, t.falls = True, 0.0
    if t.zero_fast is not None and "zero_grad_pct" in passed.newest:
        t.zero_fast = passed.newest["zero_grad_pct"]


def _follow(level: Level, mean: float, sigmas: float, units: float) -> None:
    """Moves a level to the mean of the rows passed, unless one row so far above would not have moved it."""
    if level.count and level.away(mean) <= max(sigmas * level.sigma(), units):
        level.center = mean

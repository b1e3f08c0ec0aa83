"""Phases of a run in which levels move by themselves, where the run does not say so.

A learning rate that is logged tells its warm-up (``run_changes``). Where it is not, the updates do: while the
rate rises, the size of the updates rises a little in every row, and an average over a few rows stays ahead of
one over many. An optimizer that goes wrong moves the updates by an octave or more in one row; that is no
warm-up, and for CALM_ROWS nothing is taken for one.

Another source of data (the scalar ``data_source`` or ``domain``, a number that stands for it) begins a new
phase: activations and gradients settle elsewhere, and their levels are learned afresh unless something is
wrong already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from floatscope_diagnostics.detectors.row import StatRow
from floatscope_diagnostics.frame import UPDATE

SOURCES = ("data_source", "domain")
FAST_ROWS, SLOW_ROWS = 6, 32  # SLOW_ROWS is the memory of the levels that are led astray
# A linear warm-up adds 1 / (n ln 2) octaves in its n-th row, so that the averages are 0.37 octaves apart at
# row 100 and 0.15 at row 250, after which nothing grows enough to matter. Settled updates: within 0.1.
RISING_LOG2, SETTLED_LOG2 = 0.15, 0.08
RISING_ROWS = 6
JUMP_LOG2 = 1.0
CALM_ROWS = 64


class Phases:
    """Averages of the updates' size, and the source last seen."""

    def __init__(self) -> None:
        self.fast = self.slow = self.last = math.nan
        self.rows = 0
        self.ahead = 0  # rows in a row in which the fast average leads
        self.calm = 0  # rows left in which nothing is taken for a warm-up
        self.source: float | None = None

    def seam(self) -> None:
        fresh = Phases()
        for name in _PLAIN:
            if name != "source":
                setattr(self, name, getattr(fresh, name))

    def rising(self, row: StatRow) -> bool:
        """Takes one row; whether a learning rate that is not logged still rises."""
        if "lr" in row.scalars:
            return False
        value = _update_log2(row)
        if math.isnan(value):
            return self.ahead >= RISING_ROWS
        self.calm = max(0, self.calm - 1)
        if abs(value - self.last) > JUMP_LOG2:
            self.calm, self.ahead = CALM_ROWS, 0
        self.last = value
        self.rows += 1
        if self.rows == 1:
            self.fast = self.slow = value
        self.fast += (value - self.fast) / min(self.rows, FAST_ROWS)
        self.slow += (value - self.slow) / min(self.rows, SLOW_ROWS)
        lead = self.fast - self.slow
        if lead > RISING_LOG2 and not self.calm:
            self.ahead = min(self.ahead + 1, RISING_ROWS)
        elif lead < SETTLED_LOG2 or self.calm:
            self.ahead = 0
        return self.ahead >= RISING_ROWS

    def other_source(self, scalars: Mapping[str, float]) -> bool:
        """Whether the data come from elsewhere from this row on."""
        named = next((scalars[s] for s in SOURCES if s in scalars), None)
        if named is None or not math.isfinite(named):
            return False
        before, self.source = self.source, named
        return before is not None and before != named

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PLAIN}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Phases:
        out = cls()
        for name in _PLAIN:
            setattr(out, name, state[name])
        return out


def _update_log2(row: StatRow) -> float:
    """log2 of the updates' size: the median ratio over weights, else the norm of all; NaN if not logged."""
    ratios = row.frame.signals[row.d][UPDATE]
    ratios = ratios[~np.isnan(ratios)]
    if len(ratios):
        return float(np.partition(ratios, len(ratios) // 2)[len(ratios) // 2])
    norm = row.scalars.get("update_norm", math.nan)
    return math.log2(norm) if math.isfinite(norm) and norm > 0 else math.nan


_PLAIN = ("fast", "slow", "last", "rows", "ahead", "calm", "source")

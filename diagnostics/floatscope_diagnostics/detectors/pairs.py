"""Paired loss difference against a baseline on the same steps (and, if both log it, the same ``data_id``).

Pairing takes the noise of the data out of the comparison: on the same batches from the same checkpoint the
difference of two runs
is 10 to 300 times quieter than the loss. Own steps wait until the baseline has passed them, so it does not
matter which came first.
Signal: ``paired_gap``, a cumulative sum of the difference above its level in the pairs before it; ``slope``
tells a gap that widens
from a constant offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.detectors.level import Level
from floatscope_diagnostics.episodes import EpisodeLog

READY_PAIRS = 24
SLACK_SIGMA = 0.75
ALARM_SIGMA = 15.0
CLIP_SIGMA = 4.0  # one hard batch must not prove a gap
GAP_FLOOR_NATS = 0.0005  # printed digits and reduction order; clean pairs at low learning rate: 0.0008
MAX_WAITING = 1 << 18  # own or baseline steps that wait for their partner: 4 MiB
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class PairedLoss:
    """Own steps, baseline steps, and the running difference of those that met."""

    def __init__(self) -> None:
        self.own: dict[int, tuple[float, float]] = {}
        self.base: dict[int, tuple[float, float]] = {}
        self.base_last: int | None = None
        self.level = Level(GAP_FLOOR_NATS)
        self.pairs = 0
        self.total = 0.0
        self.mismatched = 0
        self.cusum = 0.0
        self.since: int | None = None
        self.since_sum = 0.0
        self.since_count = 0
        self.early_sum = 0.0
        self.early_count = 0
        self.last: int | None = None
        self.log = EpisodeLog()

    @property
    def used(self) -> bool:
        return self.pairs > 0 or bool(self.base)

    def add_baseline(self, step: Int64, loss: Float64, data_id: Float64 | None) -> None:
        """Takes steps of the baseline, ascending."""
        ids = np.full(len(step), np.nan) if data_id is None else data_id
        for s, value, ident in zip(step.tolist(), loss.tolist(), ids.tolist(), strict=True):
            self.base_last = s if self.base_last is None else max(self.base_last, s)
            if (self.last is None or s > self.last) and len(self.base) < MAX_WAITING:
                self.base[s] = (value, ident)
        self._meet()

    def add_own(self, step: int, loss: float, data_id: float, ref_loss: float | None) -> None:
        """Takes one own step; with ref_loss in the log the pair is complete."""
        if ref_loss is not None:
            self._pair(step, loss - ref_loss)
            return
        if self.base_last is None and len(self.own) >= MAX_WAITING:
            return
        if self.last is None or step > self.last:
            self.own[step] = (loss, data_id)
            if self.base:
                self._meet()

    def _meet(self) -> None:
        if self.base_last is None:
            return
        for step in sorted(s for s in self.own if s <= self.base_last):
            loss, ident = self.own.pop(step)
            partner = self.base.get(step)
            self.last = step
            if partner is None:
                continue
            if not math.isnan(ident) and not math.isnan(partner[1]) and ident != partner[1]:
                self.mismatched += 1
                continue
            self._pair(step, loss - partner[0])
        if self.last is not None:
            for old in [s for s in self.base if s <= self.last]:
                del self.base[old]

    def _pair(self, step: int, gap: float) -> None:
        if not math.isfinite(gap):
            return
        self.pairs += 1
        self.total += gap
        ready = self.level.count >= READY_PAIRS
        z = (gap - self.level.center) / self.level.sigma()
        if not ready or self.cusum < ALARM_SIGMA / 3:
            self.level.update(gap)
        if not ready:
            return
        self.cusum = min(max(0.0, self.cusum + min(z, CLIP_SIGMA) - SLACK_SIGMA), 4 * ALARM_SIGMA)
        if self.cusum == 0.0:
            self.since, self.since_sum, self.since_count = None, 0.0, 0
            self.early_sum, self.early_count = 0.0, 0
            self.log.close(row=self.pairs)
            return
        if self.since is None:
            self.since = step
        self.since_sum += gap - self.level.center
        self.since_count += 1
        if self.since_count <= 16:
            self.early_sum, self.early_count = self.since_sum, self.since_count
        if self.cusum > ALARM_SIGMA:
            mean = self.since_sum / self.since_count
            late = self.since_count - self.early_count
            slope = (
                (self.since_sum - self.early_sum) / late - self.early_sum / self.early_count
                if late >= 16
                else 0.0
            )
            self.log.hit(
                "paired_gap",
                step=step,
                row=self.pairs,
                segment=0,
                values=mean,
                onset=self.since,
                expected=self.level.center,
                gap_rows=8,
                extra={"slope": slope, "mean": mean},
            )
        self.log.close(row=self.pairs)

    def state(self) -> dict[str, Any]:
        return {
            "own": _table(self.own),
            "base": _table(self.base),
            "level": self.level.state(),
            "log": self.log.state(),
            "plain": {name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> PairedLoss:
        out = cls()
        out.own, out.base = _untable(state["own"]), _untable(state["base"])
        out.level.load(state["level"])
        out.log = EpisodeLog.load(state["log"])
        for name in _PLAIN:
            setattr(out, name, state["plain"][name])
        return out


_PLAIN = (
    "base_last", "pairs", "total", "mismatched", "cusum", "since", "since_sum", "since_count", "early_sum",
    "early_count", "last",
)  # fmt: skip


def _table(rows: Mapping[int, tuple[float, float]]) -> dict[str, Any]:
    steps = sorted(rows)
    values = np.array([rows[s] for s in steps], np.float64).reshape(len(steps), 2)
    return {"step": np.array(steps, np.int64), "values": values}


def _untable(saved: Mapping[str, Any]) -> dict[int, tuple[float, float]]:
    pairs = zip(saved["step"].tolist(), saved["values"].tolist(), strict=True)
    return {s: (float(v[0]), float(v[1])) for s, v in pairs}

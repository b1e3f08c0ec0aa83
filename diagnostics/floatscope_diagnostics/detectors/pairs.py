"""Paired loss difference against a baseline on the same steps (and, if both log it, the same ``data_id``).

Pairing takes the noise of the data out of the comparison: on the same batches from the same checkpoint the
difference of two runs is 10 to 300 times quieter than the loss. A pair whose learning rates differ says
nothing about the precision and is left out. Own steps wait until the baseline has passed
them, so it does not matter which came first.
Signals: ``paired_gap``, a difference that stays above what healthy runs differ by (``paired_gap``), and
``paired_break``, runs that were alike part from one step to the next (``paired_break``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.detectors.paired_break import BreakWatch
from floatscope_diagnostics.detectors.paired_gap import GapWatch
from floatscope_diagnostics.episodes import Symptom

MAX_WAITING = 1 << 18  # own or baseline steps that wait for their partner: 4 MiB
MAX_WAITING_UNASKED = 4096  # own steps kept while no baseline is declared: it may still be named
PRUNE_EVERY = 1024  # own steps
LR_DIGITS = 0.01  # relative; loggers print three digits
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Row = tuple[float, float, float]  # loss, data_id, learning rate; NaN where not logged


class Waiting:
    """Steps that wait for their partner, in any order; the lowest is taken first."""

    def __init__(self, rows: dict[int, Row] | None = None) -> None:
        self.rows = {} if rows is None else rows
        self._heap = list(self.rows)  # a run that goes back to an older checkpoint adds lower steps
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, step: int, row: Row) -> None:
        """Adds a step, or replaces it."""
        if step not in self.rows:
            heappush(self._heap, step)
        self.rows[step] = row

    def reaches(self, step: int) -> bool:
        """Whether some step is not above this one."""
        return bool(self._heap) and self._heap[0] <= step

    def take(self) -> tuple[int, Row]:
        """Takes the lowest step out."""
        step = heappop(self._heap)
        return step, self.rows.pop(step)


class PairedLoss:
    """Own steps, baseline steps, and the running difference of those that met."""

    def __init__(self) -> None:
        self.own = Waiting()
        self.base: dict[int, Row] = {}
        self.base_last: int | None = None
        self.pairs = 0
        self.mismatched = 0  # pairs left out: other data, or another learning rate
        self.last: int | None = None
        self._late: tuple[NDArray[Any], ...] | None = None  # own steps not in ``own`` yet, as columns
        self._behind = 0  # own steps paired since steps of the baseline were last forgotten
        self.gap = GapWatch()
        self.breaks = BreakWatch()

    @property
    def used(self) -> bool:
        return self.pairs > 0 or bool(self.base)

    def add_baseline(
        self, step: Int64, loss: Float64, data_id: Float64 | None, lr: Float64 | None = None
    ) -> None:
        """Takes steps of the baseline, ascending."""
        self._settle()
        absent = np.full(len(step), np.nan)
        ids, rates = (absent if column is None else column for column in (data_id, lr))
        for s, *row in zip(step.tolist(), loss.tolist(), ids.tolist(), rates.tolist(), strict=True):
            self.base_last = s if self.base_last is None else max(self.base_last, s)
            if len(self.base) >= MAX_WAITING and self._behind:
                self._prune()
            if (self.last is None or s > self.last) and len(self.base) < MAX_WAITING:
                self.base[s] = (row[0], row[1], row[2])
        self._meet()

    def add_own(
        self,
        step: int,
        loss: float,
        data_id: float,
        ref_loss: float | None,
        *,
        declared: bool,
        lr: float = math.nan,
    ) -> None:
        """Takes one own step; with ref_loss in the log the pair is complete. declared: the run names a
        baseline."""
        self._settle()
        if ref_loss is not None:
            self._pair(step, loss - ref_loss)
            return
        limit = MAX_WAITING if declared or self.base_last is not None else MAX_WAITING_UNASKED
        if len(self.own) >= limit:
            self.own.take()
        if self.last is None or step > self.last:
            self.own.add(step, (loss, data_id, lr))
            if self.base:
                self._meet()

    def add_own_rows(self, step: Int64, rows: Mapping[str, tuple[Float64, Bool]], *, declared: bool) -> None:
        """Takes own steps int64 [T]. rows: by scalar, values float64 [T] and presence bool [T]."""
        loss, here = rows["loss"]
        ref, has_ref = rows["ref_loss"]
        ident, lr = (np.where(rows[n][1], rows[n][0], np.nan) for n in ("data_id", "lr"))
        index = np.flatnonzero(here)
        alone = not declared and self.base_last is None and self.last is None and not has_ref.any()
        if alone and len(index) >= MAX_WAITING_UNASKED and self._below(step):
            index = index[-MAX_WAITING_UNASKED:]  # they push out all before them
            self._late = tuple(x[index].copy() for x in (step, loss, ident, lr))
            self.own = Waiting()
            return
        self._settle()
        for t in index.tolist():
            partner = float(ref[t]) if has_ref[t] else None
            self.add_own(
                int(step[t]), float(loss[t]), float(ident[t]), partner, declared=declared, lr=float(lr[t])
            )

    def _below(self, step: Int64) -> bool:
        """Whether the steps ascend and lie above all that wait."""
        last = max(self.own.rows, default=None) if self._late is None else int(self._late[0][-1])
        return bool((np.diff(step) > 0).all()) and (last is None or last < step[0])

    def _settle(self) -> None:
        """Own steps that are still columns become rows: somebody asks for them."""
        if self._late is not None:
            step, *rows = (x.tolist() for x in self._late)
            self.own = Waiting(dict(zip(step, zip(*rows, strict=True), strict=True)))
            self._late = None

    def _meet(self) -> None:
        """Pairs the own steps that the baseline has passed, and forgets what nothing waits for any more."""
        if self.base_last is None:
            return
        while self.own.reaches(self.base_last):
            step, own = self.own.take()
            self._behind += 1
            partner = self.base.pop(step, None)
            self.last = step
            if partner is None:
                continue
            if _differ(own[1], partner[1], 0.0) or _differ(own[2], partner[2], LR_DIGITS):
                self.mismatched += 1
                continue
            self._pair(step, own[0] - partner[0])
        if self._behind >= PRUNE_EVERY:
            self._prune()

    def _prune(self) -> None:
        """Forgets steps of the baseline that the own run has passed without logging them."""
        self._behind = 0
        if self.last is not None:
            self.base = {step: row for step, row in self.base.items() if step > self.last}

    def _pair(self, step: int, gap: float) -> None:
        if not math.isfinite(gap):
            return
        self.pairs += 1
        self.breaks.add(step, gap)
        self.gap.add(step, gap)

    def symptoms(self, columns: Columns) -> list[Symptom]:
        """Of both logs; rank -1 means: of the run as a whole."""
        return [
            *self.gap.log.symptoms(columns, rank=-1, row=self.gap.blocks),
            *self.breaks.log.symptoms(columns, rank=-1, row=self.pairs),
        ]

    def state(self) -> dict[str, Any]:
        self._settle()
        self._prune()
        return {
            "own": _table(self.own.rows),
            "base": _table(self.base),
            "gap": self.gap.state(),
            "breaks": self.breaks.state(),
            "plain": {name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> PairedLoss:
        out = cls()
        out.own, out.base = Waiting(_untable(state["own"])), _untable(state["base"])
        out.gap = GapWatch.load(state["gap"])
        out.breaks = BreakWatch.load(state["breaks"])
        for name in _PLAIN:
            setattr(out, name, state["plain"][name])
        return out


_PLAIN = ("base_last", "pairs", "mismatched", "last")


def _differ(a: float, b: float, digits: float) -> bool:
    """Whether both are known and differ by more than the share ``digits``."""
    return not (math.isnan(a) or math.isnan(b)) and abs(a - b) > digits * max(abs(a), abs(b))


def _table(rows: Mapping[int, Row]) -> dict[str, Any]:
    steps = sorted(rows)
    values = np.array([rows[s] for s in steps], np.float64).reshape(len(steps), 3)
    return {"step": np.array(steps, np.int64), "values": values}


def _untable(saved: Mapping[str, Any]) -> dict[int, Row]:
    pairs = zip(saved["step"].tolist(), saved["values"].tolist(), strict=True)
    return {s: (float(v[0]), float(v[1]), float(v[2])) for s, v in pairs}

"""Invariant over ranks: what was equal on all ranks stays equal.

Data-parallel ranks hold the same weights and, with a reduced amax, use the same scales. Whether a tensor is
shared is learned: it
must have been equal on all ranks for EQUAL_ROWS rows. A step is judged when all ranks have sent it or one is
WAIT_ROWS rows ahead.
Signals: ``weights_part`` (weight amax, update or parameter norm), ``scales_part``; and, by level,
``rank_outlier`` (a rank's gradient norm before the reduction). The shadow scale of the reduced amax gives the
signals
of ``scale_state`` here, since one rank alone cannot know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES, Columns
from floatscope_diagnostics.detectors.level import Level
from floatscope_diagnostics.detectors.row import StatRow
from floatscope_diagnostics.detectors.scale_state import ScaleState
from floatscope_diagnostics.episodes import EpisodeLog, Symptom
from floatscope_diagnostics.frame import Frame, bare_frame

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

WAIT_ROWS = 64  # the design's limit for a rank that lags
EQUAL_ROWS = 8
PART_ROWS = 2  # rows apart before it counts
TOLERANCE = 1e-3  # relative; logs print five digits, real parting grows from step to step
_KEPT = ("scale", "amax", "update_ratio")
_NORM = "param_norm"
_LOCAL = "local_grad_norm"
LOCAL_READY_ROWS = 16
LOCAL_LOG2 = 2.0  # a rank's own gradient norm away from the others' beyond their usual spread; batches differ
LOCAL_ROWS = 4
_Row = tuple[int, Float32, float, float]


class RankBoard:
    """Rows of each rank that wait for the others, and how often each tensor agreed."""

    def __init__(self) -> None:
        self.waiting: dict[int, dict[int, _Row]] = {}
        self.equal: Int32 = np.zeros((len(_KEPT), 0), np.int32)
        self.apart: Int32 = np.zeros((len(_KEPT), 0), np.int32)
        self.scales = ScaleState()
        self.local = Level(0.25)
        self.local_rows = 0
        self.local_since = 0
        self.norm_equal = 0
        self.norm_apart = 0
        self.rows = 0
        self.judged: int | None = None
        self.log = EpisodeLog()

    def add(
        self,
        rank: int,
        step: int,
        segment: int,
        frame: Frame | None,
        d: int | None,
        scalars: Mapping[str, float],
        columns: Columns,
    ) -> None:
        """Takes one row of one rank and judges every step that is complete."""
        rows = self.waiting.setdefault(rank, {})
        size = len(columns)
        values = np.full((len(_KEPT), size), np.nan, np.float32)
        if frame is not None and d is not None:
            weight = columns.role == ROLE_CODES["weight"]
            for k, stat in enumerate(_KEPT):
                got = frame.row(stat, d)
                if got is not None:
                    values[k] = got if k <= 1 else np.where(weight, got, np.nan)
        rows[step] = (segment, values, scalars.get(_NORM, np.nan), scalars.get(_LOCAL, np.nan))
        if len(self.waiting) > 1:
            self._judge(columns)
        self._trim()

    def _trim(self) -> None:
        for rows in self.waiting.values():
            while len(rows) > WAIT_ROWS:
                del rows[min(rows)]

    def _judge(self, columns: Columns) -> None:
        ranks = sorted(self.waiting)
        common = set(self.waiting[ranks[0]]).intersection(*(self.waiting[r] for r in ranks[1:]))
        for step in sorted(common):
            rows = [self.waiting[r].pop(step) for r in ranks]
            self._compare(step, ranks, rows, columns)
            for waiting in self.waiting.values():
                for old in [s for s in waiting if s < step]:
                    del waiting[old]

    def _compare(self, step: int, ranks: Sequence[int], rows: Sequence[_Row], columns: Columns) -> None:
        self._resize(len(columns))
        segment = rows[0][0]
        index = self.rows
        self.rows += 1
        weight = columns.role == ROLE_CODES["weight"]
        stack = np.stack([_wide(v, len(columns)) for _, v, _, _ in rows]).astype(np.float64)
        with np.errstate(all="ignore"):
            spread = stack.max(axis=0) / stack.min(axis=0) - 1.0
        known = ~np.isnan(stack).any(axis=0) & np.isfinite(spread)
        known[1] &= weight  # activations differ between ranks
        self._shadow(step, segment, index, stack, columns)
        same = known & (spread <= TOLERANCE)
        shared = self.equal >= EQUAL_ROWS
        self.apart = np.where(known & shared & ~same, self.apart + 1, np.where(same, 0, self.apart)).astype(
            np.int32
        )
        self.equal = np.where(same, self.equal + 1, np.where(known & ~shared, 0, self.equal)).astype(np.int32)
        parted = (self.apart[1] >= 1) | (self.apart[2] >= 1)
        proven = bool((self.apart[1:] >= PART_ROWS).any())
        norm = np.array([n for _, _, n, _ in rows])
        if not np.isnan(norm).any() and np.isfinite(norm).all() and norm.min() > 0:
            off = norm.max() / norm.min() - 1.0 > 1e-6
            if off and self.norm_equal >= EQUAL_ROWS:
                self.norm_apart += 1
                proven = proven or self.norm_apart >= PART_ROWS
            else:
                self.norm_apart = 0
                self.norm_equal = 0 if off else self.norm_equal + 1
        if parted.any() or self.norm_apart >= 1:
            values = np.nan_to_num(np.fmax(spread[1], spread[2]))
            self.log.hit(
                "weights_part",
                step=step,
                row=index,
                segment=segment,
                mask=parted,
                values=values,
                proven=proven,
            )
        if (self.apart[0] >= 1).any():
            self.log.hit(
                "scales_part",
                step=step,
                row=index,
                segment=segment,
                mask=self.apart[0] >= 1,
                values=np.nan_to_num(spread[0]),
                proven=bool((self.apart[0] >= PART_ROWS).any()),
            )
        self._local(step, segment, index, ranks, np.array([x for _, _, _, x in rows]))
        self.log.close(row=index)
        self.judged = step

    def _shadow(
        self, step: int, segment: int, index: int, stack: NDArray[np.float64], columns: Columns
    ) -> None:
        """The scale that the amaxes of all ranks together give, where the recipe reduces them over the
        ranks."""
        if columns.run.recipe.get("reduce_amax") is False:
            return
        with np.errstate(invalid="ignore"):
            values = {"scale": stack[0][0], "amax": stack[:, 1].max(axis=0)}
        table = {name: row[None].astype(np.float32) for name, row in values.items()}
        frame = bare_frame(step, table, len(columns))
        row = StatRow(
            step=step,
            index=index,
            segment=segment,
            frame=frame,
            d=0,
            scalars={},
            columns=columns,
            log=self.log,
        )
        finite = np.isfinite(stack[:, 0]).all(axis=0) & np.isfinite(stack[:, 1]).all(axis=0)
        self.scales.step(row, broken=np.logical_not(finite))

    def _local(
        self, step: int, segment: int, index: int, ranks: Sequence[int], norms: NDArray[np.float64]
    ) -> None:
        """One rank's gradient before the reduction is out of line with the others, step after step."""
        if not (np.isfinite(norms).all() and (norms > 0).all()):
            return
        logs = np.log2(norms)
        away = logs - np.sort(logs)[(len(logs) - 1) // 2]
        spread = float(np.ptp(logs))
        beyond = self.local.away(spread)
        if self.local.count < LOCAL_READY_ROWS or beyond <= max(LOCAL_LOG2, 6 * self.local.sigma()):
            self.local_rows = 0
            self.local.update(spread)
            return
        self.local_since = step if self.local_rows == 0 else self.local_since
        self.local_rows += 1
        if self.local_rows >= LOCAL_ROWS:
            worst = int(np.argmax(np.abs(away)))
            self.log.hit(
                "rank_outlier",
                step=step,
                row=index,
                segment=segment,
                values=beyond,
                onset=self.local_since,
                expected=self.local.center,
                gap_rows=3,
                extra={"rank": float(ranks[worst])},
            )

    def _resize(self, size: int) -> None:
        for name in ("equal", "apart"):
            old = getattr(self, name)
            if old.shape[1] < size:
                new = np.zeros((len(_KEPT), size), np.int32)
                new[:, : old.shape[1]] = old
                setattr(self, name, new)

    def symptoms(self, columns: Columns) -> list[Symptom]:
        return self.log.symptoms(columns, rank=-1, row=self.rows)

    def state(self) -> dict[str, Any]:
        waiting = {
            str(rank): [[step, *row] for step, row in sorted(rows.items())]
            for rank, rows in sorted(self.waiting.items())
        }
        plain = {
            name: getattr(self, name)
            for name in ("norm_equal", "norm_apart", "rows", "judged", "local_rows", "local_since")
        }
        return {
            "waiting": waiting,
            "equal": self.equal,
            "apart": self.apart,
            "plain": plain,
            "scales": self.scales.state(),
            "local": self.local.state(),
            "log": self.log.state(),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> RankBoard:
        out = cls()
        for rank, rows in state["waiting"].items():
            out.waiting[int(rank)] = {int(s): (int(g), v, float(n), float(x)) for s, g, v, n, x in rows}
        out.equal, out.apart = state["equal"], state["apart"]
        for name, value in state["plain"].items():
            setattr(out, name, value)
        out.scales = ScaleState.load(state["scales"])
        out.local.load(state["local"])
        out.log = EpisodeLog.load(state["log"])
        return out


def _wide(values: Float32, size: int) -> Float32:
    if values.shape[1] == size:
        return values
    out = np.full((values.shape[0], size), np.nan, np.float32)
    out[:, : values.shape[1]] = values
    return out

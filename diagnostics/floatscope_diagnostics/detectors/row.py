"""What a detector gets for one step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.episodes import EpisodeLog
from floatscope_diagnostics.frame import Frame


def skipped_by_scaler(scalars: Mapping[str, float]) -> bool:
    """Whether a dynamic loss scaler dropped the step: the loss is finite and the update exactly 0.

    It raises its scale until a gradient overflows, drops that step and halves the scale: then a gradient
    that is not finite is routine. A log without update_norm shows it one row later, as ``loss_scale_cut``.
    """
    finite = math.isfinite(scalars.get("loss", 0.0))
    return "loss_scale" in scalars and finite and scalars.get("update_norm") == 0.0


@dataclass(frozen=True)
class StatRow:
    """One row of tensor statistics: row ``d`` of ``frame``.

    index: counts the rank's rows with statistics.  scalars: of the same step.
    """

    step: int
    index: int
    segment: int
    frame: Frame
    d: int
    scalars: Mapping[str, float]
    columns: Columns
    log: EpisodeLog

    def stat(self, name: str) -> NDArray[np.float64]:
        """The stat (S,) as float64, NaN where it is missing or NaN."""
        values = self.frame.row(name, self.d)
        if values is None:
            return np.full(len(self.columns), np.nan)
        return values.astype(np.float64)

    def has(self, name: str) -> NDArray[np.bool_]:
        mask = self.frame.present.get(name)
        return np.zeros(len(self.columns), bool) if mask is None else mask[self.d]

    def hit(
        self,
        signal: str,
        *,
        mask: NDArray[np.bool_],
        values: NDArray[np.floating[Any]],
        onset: int | None = None,
        expected: float | None = None,
        proven: bool = True,
        gap_rows: int = 1,
        extra: Mapping[str, float] | None = None,
    ) -> None:
        """Notes in the log that ``signal`` misbehaves on the tensors of ``mask``; see ``EpisodeLog.hit``."""
        self.log.hit(
            signal,
            step=self.step,
            row=self.index,
            segment=self.segment,
            mask=mask,
            values=values,
            onset=onset,
            expected=expected,
            proven=proven,
            gap_rows=gap_rows,
            extra=extra,
        )


@dataclass(frozen=True)
class JudgedRow:
    """A row and what the detectors before found in it.

    excluded: tensors (S,) that hold NaN or Inf and are not judged.  frozen: tensors whose scale breaks its
    recipe; they are judged, but their levels are not updated.  warming: the learning rate still rises or the
    run has just begun from scratch, so levels move by themselves.
    """

    row: StatRow
    excluded: NDArray[np.bool_]
    frozen: NDArray[np.bool_]
    warming: bool


@dataclass(frozen=True)
class ScalarRow:
    """The scalars of one step. index: counts the rank's steps. A missing scalar has no key."""

    step: int
    index: int
    segment: int
    scalars: Mapping[str, float]
    log: EpisodeLog
    vocab_size: int | None

    def hit(
        self,
        signal: str,
        value: float,
        *,
        onset: int | None = None,
        expected: float | None = None,
        gap_rows: int = 1,
        extra: Mapping[str, float] | None = None,
    ) -> None:
        """Notes in the log that ``signal`` misbehaves at this step; see ``EpisodeLog.hit``."""
        self.log.hit(
            signal,
            step=self.step,
            row=self.index,
            segment=self.segment,
            values=value,
            onset=onset,
            expected=expected,
            gap_rows=gap_rows,
            extra=extra,
        )

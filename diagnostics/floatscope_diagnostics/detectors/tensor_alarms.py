"""Which signals of which tensors are off their level: the conditions of ``tensor_changes`` on whole arrays.

A rise is judged twice: what a tensor has beyond its class against the tensor's limit, and what the class
has in common (``common_shift``) against the class's. Limits come from healthy tails (``limits``); a deviation
must also be unusual for this tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.detectors.common_shift import common_rise
from floatscope_diagnostics.detectors.limits import CLASSES, classes_of, limits_of
from floatscope_diagnostics.frame import AMAX, HEADROOM, OVERFLOW, SQNR, UNCHANGED, UNDERFLOW

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]

UNUSUAL = 6.0  # deviations of this tensor; never turned into a probability (tails are heavy)
READY_ROWS = 12  # rows before a level counts as known; the shortest healthy stretch in the tuning logs is 64
UNCHANGED_RISE_PCT = 8.0  # [0.06]
IDLE_LOG2 = 1.5  # bits a scale leaves unused beyond its level, beside underflow
OVER_LOG2 = (1.0, 1.0, 3.0)  # octaves above the format's maximum, by class, beside clipping
# bits unused right after a spike of amax, by class: the history holds the outlier. A gradient's healthy
# spikes leave up to 5, and with 31 binades it does not miss 6
SPARE_LOG2 = (3.0, 3.0, 6.0)
COMMON = (
    (AMAX, 1.0, "amax_jump", "amax_common"),
    (HEADROOM, 1.0, "headroom_up", "headroom_common"),
    (SQNR, -1.0, "sqnr_all", "sqnr_all"),
)
"""Signals whose class has a part in common: the direction that counts, the tensor's and the class's limit."""


@dataclass(frozen=True)
class Limits:
    """What follows from the columns alone.

    value[sign], over_log2, spare_log2: (S,).  classes: columns of each class.  place: class of each column.
    """

    value: Mapping[str, Float64]
    classes: Sequence[Int64]
    place: Int64
    over_log2: Float64
    spare_log2: Float64

    @classmethod
    def of(cls, columns: Columns) -> Limits:
        place = classes_of(columns)
        members = [np.flatnonzero(place == c) for c in range(len(CLASSES))]
        over, spare = np.array(OVER_LOG2)[place], np.array(SPARE_LOG2)[place]
        return cls(limits_of(columns), members, place, over, spare)

    def __getitem__(self, sign: str) -> Float64:
        return self.value[sign]


def may_alarm(
    x: Float64, away: Float64, sigma: Float64, count: NDArray[np.int32], columns: Columns, limits: Limits
) -> Bool:
    """Where a signal may be off its level, whatever its class does: every alarm is among them.

    x, away, sigma, count: (..., SIGNAL_COUNT, S), the values, their distance from the level, its deviation
    and the rows it was learned from.
    """
    off = np.zeros(x.shape, bool)
    with np.errstate(invalid="ignore"):
        unusual = np.abs(away) > UNUSUAL * sigma
        unusual &= count >= READY_ROWS
        for k, sense, own, shared in COMMON:
            least = np.minimum(limits[own], limits[shared])
            off[..., k, :] = unusual[..., k, :] & (sense * away[..., k, :] > least)
        least = np.minimum(limits["underflow_lasting"], limits["underflow_idle"])
        off[..., UNDERFLOW, :] = unusual[..., UNDERFLOW, :] & (away[..., UNDERFLOW, :] > least)
        off[..., UNCHANGED, :] = unusual[..., UNCHANGED, :] & (away[..., UNCHANGED, :] > UNCHANGED_RISE_PCT)
        clipped = x[..., OVERFLOW, :] > limits["clip_lasting"]
        clipped &= away[..., OVERFLOW, :] > limits["clip_lasting"] / 2
        off[..., OVERFLOW, :] = columns.scaled & clipped
    return off


def alarms(off: Bool, away: Float64, count: NDArray[np.int32], limits: Limits) -> Bool:
    """One row's alarms (SIGNAL_COUNT, S) that may be: beyond what the class does, or all of it."""
    alarm = off.copy()
    for k, sense, own, together in COMMON:
        if not off[k].any():
            continue
        rise = sense * away[k]
        common = common_rise(rise, count[k] >= READY_ROWS, limits.classes)[limits.place]
        with np.errstate(invalid="ignore"):
            beyond = rise - common > limits[own]
            all_of_it = (common > limits[together]) & (rise > limits[together])
        alarm[k] &= beyond | all_of_it
    return alarm

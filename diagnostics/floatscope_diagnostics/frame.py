"""A batch laid out for the detectors:

statistics as float32 [D, S] over the run's columns, scalars as plain rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.columns import Columns

Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]

FP16_MAX = 65504.0
# Statistics whose value is NaN or Inf only when something in the tensor is; sqnr_db and sat may be Inf in a
# healthy tensor.
FINITE_VALUES = ("amax", "rms")
JUDGED_STATS = (
    "amax", "amax_min_block", "rms", "scale", "sat", "nan_count", "inf_count", "overflow_pct",
    "underflow_pct", "zero_pct", "sqnr_db", "grad_norm", "update_ratio", "unchanged_pct",
)  # fmt: skip


# Rows of ``Frame.signals``: what the change detectors watch. Logarithms are base 2, headroom is -log2(sat).
AMAX, RMS, HEADROOM, OVERFLOW, UNDERFLOW, SQNR, UPDATE, GRAD, UNCHANGED = range(9)
SIGNAL_COUNT = 9


@dataclass(frozen=True)
class Frame:
    """D rows with tensor statistics.

    step: int64 [D].
    values[stat]: float32 [D, S], NaN where the stat is missing *or* NaN.  present[stat]: bool [D, S].
    nan, inf: bool [D, S], a non-finite value was counted in the tensor or shows in its statistics.
    bad_grad, bad_update: bool [D, S], the gradient norm of a weight, or its update, is not finite.
    broken: bool [D], some tensor of the row is set in one of the four.
    sat: float32 [D, S], amax * scale / format maximum, as logged or computed; NaN where unknown.
    signals: float64 [D, SIGNAL_COUNT, S], NaN where missing, not finite, or the logarithm of 0.
    """

    step: NDArray[np.int64]
    values: Mapping[str, Float32]
    present: Mapping[str, Bool]
    nan: Bool
    inf: Bool
    bad_grad: Bool
    bad_update: Bool
    broken: Bool
    sat: Float32
    signals: NDArray[np.float64]

    def row(self, stat: str, d: int) -> Float32 | None:
        """One row (S,) of a stat, NaN where missing; None if no tensor of the batch carries it."""
        values = self.values.get(stat)
        return None if values is None else values[d]


def frame_of(batch: Batch, columns: Columns) -> Frame | None:
    """The batch's statistics over all columns, or None when it carries none. Adds columns not seen before."""
    rows = len(batch.stat_row)
    if rows == 0 or not batch.tensor_names:
        return None
    columns.add(batch.tensor_names)
    size = len(columns)
    where = np.array([columns.index[n] for n in batch.tensor_names])
    aligned = len(where) == size and bool((where == np.arange(size)).all())
    values: dict[str, Float32] = {}
    present: dict[str, Bool] = {}
    for stat in JUDGED_STATS:
        got = batch.stats.get(stat)
        if got is None:
            continue
        mask = batch.stats_present[stat]
        filled = np.where(mask, got, np.float32(np.nan)).astype(np.float32, copy=False)
        if aligned:
            values[stat], present[stat] = filled, mask
        else:
            wide = np.full((rows, size), np.nan, np.float32)
            wide[:, where] = filled
            wide_mask = np.zeros((rows, size), bool)
            wide_mask[:, where] = mask
            values[stat], present[stat] = wide, wide_mask
    return _finish(batch.step[batch.stat_row], values, present, rows, columns)


def _finish(
    step: NDArray[np.int64], values: dict[str, Float32], present: dict[str, Bool], rows: int, columns: Columns
) -> Frame:
    shape = (rows, len(columns))
    nan = np.zeros(shape, bool)
    inf = np.zeros(shape, bool)
    for stat, mask in (("nan_count", nan), ("inf_count", inf)):
        if stat in values:
            mask |= values[stat] > 0  # NaN (missing) compares false
    for stat in FINITE_VALUES:
        if stat in values:
            nan |= np.isnan(values[stat]) & present[stat]
            inf |= np.isinf(values[stat])
    sat = np.full(shape, np.nan, np.float32)
    with np.errstate(all="ignore"):
        if "amax" in values and "scale" in values:
            sat = (values["amax"].astype(np.float64) * values["scale"] / columns.fmax).astype(np.float32)
        if "amax" in values:
            plain = ~columns.scaled & (columns.fmax <= FP16_MAX)
            sat[:, plain] = values["amax"][:, plain] / FP16_MAX
        if "sat" in values:
            sat = np.where(present["sat"], values["sat"], sat)
        signals = _signals(values, sat)
    bad_grad = _not_finite("grad_norm", values, present, shape)
    bad_update = _not_finite("update_ratio", values, present, shape)
    return Frame(
        step=step,
        values=values,
        present=present,
        nan=nan,
        inf=inf,
        bad_grad=bad_grad,
        bad_update=bad_update,
        broken=np.asarray((nan | inf | bad_grad | bad_update).any(axis=1), bool),
        sat=sat,
        signals=signals,
    )


def _not_finite(
    stat: str, values: Mapping[str, Float32], present: Mapping[str, Bool], shape: tuple[int, int]
) -> Bool:
    if stat not in values:
        return np.zeros(shape, bool)
    return ~np.isfinite(values[stat]) & present[stat]


def bare_frame(step: int, values: Mapping[str, Float32], size: int) -> Frame:
    """One row that carries only the given statistics, arrays (1, S)."""
    shape = (1, size)
    no = np.zeros(shape, bool)
    unknown = np.full(shape, np.nan, np.float32)
    return Frame(
        step=np.array([step]),
        values=values,
        present={name: ~np.isnan(v) for name, v in values.items()},
        nan=no,
        inf=no,
        bad_grad=no,
        bad_update=no,
        broken=np.zeros(len(no), bool),
        sat=unknown,
        signals=np.full((1, SIGNAL_COUNT, size), np.nan),
    )


def _signals(values: Mapping[str, Float32], sat: Float32) -> NDArray[np.float64]:
    out = np.full((sat.shape[0], SIGNAL_COUNT, sat.shape[1]), np.nan)
    for k, stat in ((AMAX, "amax"), (RMS, "rms"), (UPDATE, "update_ratio"), (GRAD, "grad_norm")):
        if stat in values:
            out[:, k] = np.log2(values[stat].astype(np.float64))
    out[:, HEADROOM] = -np.log2(sat.astype(np.float64))
    for k, stat in (
        (OVERFLOW, "overflow_pct"),
        (UNDERFLOW, "underflow_pct"),
        (SQNR, "sqnr_db"),
        (UNCHANGED, "unchanged_pct"),
    ):
        if stat in values:
            out[:, k] = values[stat]
    out[~np.isfinite(out)] = np.nan
    return out


def rows_at(batch: Batch, index: NDArray[np.int64]) -> list[dict[str, float]]:
    """The scalars of the rows ``index`` [N] as plain dicts; a missing one has no key, NaN and Inf stay."""
    rows: list[dict[str, float]] = [{} for _ in range(len(index))]
    if not rows:
        return rows
    values, present = batch.scalars[index], batch.scalars_present[index]
    for k, name in enumerate(batch.scalar_names):
        column = values[:, k].tolist()
        for t, here in enumerate(present[:, k].tolist()):
            if here:
                rows[t][name] = column[t]
    return rows

"""Which steps of the two runs belong together, and whether they saw the same data.

On the same batches most of the noise of the loss is common to both runs and cancels in the difference: sd
0.02 instead of 0.2 nats, a hundred times fewer steps. Whether the batches are the same is told by ``data_id``
where both runs log it, else by the losses themselves: on the same batches they rise and fall together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.side import Side

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

MIN_TOGETHER = 0.3  # correlation of the losses' short-term ups and downs; same batches: above 0.8 measured
MIN_FOR_TOGETHER = 40  # pairs: chance reaches 0.3 in fewer than 3 of 100 unrelated series
MAX_MISMATCHED_SHARE = 0.5


class NotComparable(Exception):
    """The two runs have nothing that could be compared. The message says why and what to do."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """What is compared.

    paired: the same steps on (as far as can be told) the same batches.  step: int64 [n], ascending.
    gap: float64 [n], loss of the run minus that of the baseline; NaN where one of them is not finite.
    run_bad, base_bad: bool [n], that run's loss is not finite there.  common: steps both log.  mismatched: of
    them with different data.  only_run, only_base: steps the other lacks.  together: correlation of the
    losses' ups and downs, None where it cannot be told.  why: in words.  other_data: common steps left out.
    """

    paired: bool
    step: Int64
    gap: Float64
    run_bad: NDArray[np.bool_]
    base_bad: NDArray[np.bool_]
    common: int
    mismatched: int
    only_run: int
    only_base: int
    data_known: bool
    together: float | None
    why: str
    other_data: frozenset[int] = frozenset()

    @property
    def stride(self) -> int:
        """Steps from one pair to the next, most of the time."""
        return 1 if len(self.step) < 2 else max(int(np.median(np.diff(self.step))), 1)


def pair(run: Side, base: Side) -> Pairs:
    """Pairs the runs by step. Raises NotComparable when they share no stretch of steps."""
    step, a, b = np.intersect1d(run.step, base.step, assume_unique=True, return_indices=True)
    common = len(step)
    if common == 0:
        return _interpolated(run, base)
    ids_run, ids_base = run.data_id[a], base.data_id[b]
    both = ~np.isnan(ids_run) & ~np.isnan(ids_base)
    differ = both & (ids_run != ids_base)
    mismatched = int(differ.sum())
    known = bool(both.any())
    loss_run, loss_base = run.loss[a], base.loss[b]
    together = _together(loss_run, loss_base)
    if mismatched > MAX_MISMATCHED_SHARE * common:
        paired, keep = False, np.ones(common, bool)
        why = f"the data differ on {mismatched:,} of {common:,} common steps (data_id)"
    elif known:
        paired, keep = True, ~differ
        why = "same steps, same data_id"
    elif together is not None and together < MIN_TOGETHER:
        paired, keep = False, np.ones(common, bool)
        why = (
            f"the steps match, but the losses do not rise and fall together (correlation {together:.2f}): "
            "the batches are not the same"
        )
    else:
        paired, keep = True, np.ones(common, bool)
        why = "same steps; no data_id in both logs" + (
            f", but the losses rise and fall together (correlation {together:.2f})"
            if together is not None
            else ", that the batches are the same is assumed"
        )
    return _pairs(
        paired, step[keep], loss_run[keep], loss_base[keep], why,
        common=common, mismatched=mismatched, only_run=len(run.step) - common,
        only_base=len(base.step) - common, known=known, together=together,
        other_data=frozenset(step[~keep].tolist()),
    )  # fmt: skip


def _interpolated(run: Side, base: Side) -> Pairs:
    """No common step: the baseline's loss is read between its steps where the two stretches overlap."""
    inside = (run.step >= base.step[0]) & (run.step <= base.step[-1])
    finite = np.isfinite(base.loss)
    if not inside.any() or finite.sum() < 2:
        raise NotComparable(
            f"{run.label} has steps {run.step[0]:,} to {run.step[-1]:,}, {base.label} has "
            f"{base.step[0]:,} to {base.step[-1]:,}: they share no stretch of steps, and losses of different "
            "stages of training say nothing about each other. Compare runs that cover the same steps."
        )
    step = run.step[inside]
    with np.errstate(over="ignore", invalid="ignore"):
        loss = np.interp(step, base.step[finite], base.loss[finite])
    return _pairs(
        False, step, run.loss[inside], loss,
        "no step is in both logs; the baseline is read between its steps",
        common=0, mismatched=0, only_run=len(run.step), only_base=len(base.step), known=False, together=None,
    )  # fmt: skip


def _pairs(
    paired: bool, step: Int64, run: Float64, base: Float64, why: str,
    *, common: int, mismatched: int, only_run: int, only_base: int, known: bool, together: float | None,
    other_data: frozenset[int] = frozenset(),
) -> Pairs:  # fmt: skip
    run_bad, base_bad = ~np.isfinite(run), ~np.isfinite(base)
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.where(run_bad | base_bad, np.nan, run - base)
    return Pairs(
        paired, step, np.where(np.isfinite(gap), gap, np.nan), run_bad, base_bad,
        common, mismatched, only_run, only_base, known, together, why, other_data,
    )  # fmt: skip


def _together(run: Float64, base: Float64) -> float | None:
    """Correlation of the changes from one common step to the next, or None for too few or too flat losses.

    Changes that are off the scale (a spike of one run) are cut at six times the median size.
    """
    good = np.isfinite(run) & np.isfinite(base)
    if good.sum() < MIN_FOR_TOGETHER + 1:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        changes = [np.diff(x[good]) for x in (run, base)]
    cut = []
    for change in changes:
        typical = float(np.median(np.abs(change)))
        if not 0.0 < typical < math.inf or not np.isfinite(change).all():
            return None
        cut.append(np.clip(change / typical, -6.0, 6.0))
    x, y = (c - c.mean() for c in cut)
    return float((x @ y) / math.sqrt(float(x @ x) * float(y @ y)))

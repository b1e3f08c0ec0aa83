"""Which statistics of which tensors are beyond their limits, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.advisor.advice import Limits, Problem, What, Window
from floatscope_diagnostics.advisor.evidence import Evidence, TensorEvidence
from floatscope_diagnostics.advisor.limits import ideal_sqnr_db

Float64 = NDArray[np.float64]

WINDOW_STEPS = 100
WORST_SHARE = 0.2
"""A statistic counts by its mean over WINDOW_STEPS steps without the worst fifth of them. Single steps are
noise, and with delayed scaling the scale follows one step late: in a healthy run with small batches gradients
clip in some steps of a hundred (plain means: overflow 0.7 %, SQNR 5 dB low; benchmarks/advisor)."""
MOST_WINDOWS = 64  # of a run, evenly over it; the last one always
START_STEPS = 20
"""Steps of a run that do not count: delayed scaling begins with scale 1 and an empty history, so the first
casts lose most of their values (72 % of a gradient at step 0 of healthy runs)."""
MIN_ROWS = 5
MOST_EXCESS = 3.0
"""Times the limit that a row counts for where the first one is looked for: one bad row in four still holds
against three good ones, a single one not against more."""
SQNR_RANGE_DB = (-60.0, 120.0)  # beyond it a ratio says nothing more; an all-zero tensor has an infinite one


@dataclass(frozen=True)
class Found:
    """current: problems that last to the end of the run.  passed: those that ended before its last window."""

    current: tuple[Problem, ...]
    passed: tuple[Problem, ...]


def problems_of(evidence: Evidence, limits: Limits) -> Found:
    """Every statistic beyond its limit, worst share of the limit first."""
    current: list[Problem] = []
    passed: list[Problem] = []
    if len(evidence.steps) < MIN_ROWS:
        return Found((), ())
    end = int(evidence.steps[-1]) - WINDOW_STEPS
    for tensor in evidence.tensors:
        for problem in _of(evidence, tensor, limits):
            (passed if problem.last_step <= end else current).append(problem)

    def key(p: Problem) -> tuple[float, str, str]:
        return -p.value / max(p.limit, 1e-9), p.tensor, p.what

    return Found(tuple(sorted(current, key=key)), tuple(sorted(passed, key=key)))


def sqnr_loss_db(tensor: TensorEvidence) -> Float64:
    """By row, how far the SQNR lies below what the format reaches; NaN where not logged or not known."""
    ideal = ideal_sqnr_db(tensor.format)
    if ideal is None:
        return np.full(len(tensor.sqnr_db), np.nan)
    with np.errstate(invalid="ignore"):
        return ideal - np.clip(tensor.sqnr_db, *SQNR_RANGE_DB)


def window_ends(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows at which a whole window has passed; of a shorter run the last row. At most MOST_WINDOWS."""
    if not len(steps):
        return np.empty(0, np.int64)
    ends = np.flatnonzero(steps - steps[0] >= min(WINDOW_STEPS - 1, int(steps[-1] - steps[0])))
    if len(ends) > MOST_WINDOWS:
        ends = ends[np.linspace(0, len(ends) - 1, MOST_WINDOWS).astype(np.int64)]
    return ends


def window_means(steps: NDArray[np.int64], values: Float64, ends: NDArray[np.int64]) -> Float64:
    """For each end the ``steady_mean`` of the rows of the last WINDOW_STEPS steps up to it."""
    if not len(ends):
        return np.empty(0)
    first = np.searchsorted(steps, steps[ends] - WINDOW_STEPS, side="right")
    rows = first[:, None] + np.arange(int((ends - first).max()) + 1)
    inside = rows <= ends[:, None]
    return _steady_means(np.where(inside, values[np.where(inside, rows, 0)], np.nan))


def steady_mean(values: Float64) -> float:
    """Mean of the finite values without the largest fifth; NaN without any."""
    return float(_steady_means(values[None, :])[0])


def _steady_means(table: Float64) -> Float64:
    """``steady_mean`` of each row: all windows of a tensor at once."""
    finite = np.isfinite(table)
    ascending = np.sort(np.where(finite, table, np.inf), axis=1)
    good = finite.sum(axis=1)
    kept = good - (WORST_SHARE * good).astype(np.int64)
    total = np.where(np.arange(table.shape[1]) < kept[:, None], ascending, 0.0).sum(axis=1)
    means: Float64 = np.divide(total, kept, out=np.full(len(kept), np.nan), where=kept > 0)
    return means


def _onset(excess: Float64, most: float) -> int:
    """The row from which on most is beyond the limit up to the end: the best start of a cumulative sum (E. S.
    Page 1954), so that a single noisy row long before is none. most: that a row counts for.
    """
    return int(np.argmax(np.cumsum(np.nan_to_num(np.minimum(excess, most))[::-1])[::-1]))


def _of(evidence: Evidence, tensor: TensorEvidence, limits: Limits) -> Iterator[Problem]:
    series: tuple[tuple[What, Float64, float, str], ...] = (
        ("underflow_pct", tensor.underflow_pct, limits.underflow_pct(tensor.role), "%"),
        ("overflow_pct", tensor.overflow_pct, limits.overflow_pct, "%"),
        ("sqnr_loss_db", sqnr_loss_db(tensor), limits.sqnr_loss_db, "dB"),
    )
    start = evidence.steps < START_STEPS
    ends = window_ends(evidence.steps)
    for what, given, limit, unit in series:
        values = np.where(start, np.nan, given)
        mean = window_means(evidence.steps, values, ends)
        with np.errstate(invalid="ignore"):
            beyond = mean > limit
            single = values > limit
        if not beyond.any():
            continue
        end = int(ends[np.argmax(beyond)])
        since = int(np.searchsorted(evidence.steps, evidence.steps[end] - WINDOW_STEPS, side="right"))
        own = since + np.flatnonzero(single[since:])
        if not len(own):
            continue
        first = since + _onset(values[since : end + 1] - limit, MOST_EXCESS * limit)
        yield Problem(
            layer=tensor.layer,
            role=tensor.role,
            tensor=tensor.name,
            what=what,
            value=float(np.nanmax(mean)),
            limit=limit,
            unit=unit,
            since_step=int(evidence.steps[first if single[first] else own[0]]),
            last_step=int(evidence.steps[own[-1]]),
            window=_window(evidence.steps, values, int(ends[np.nanargmax(mean)])),
        )


def _window(steps: NDArray[np.int64], values: Float64, end: int) -> Window:
    """The rows whose mean ``window_means`` gives for this end."""
    first = int(np.searchsorted(steps, steps[end] - WINDOW_STEPS, side="right"))
    given = first + np.flatnonzero(np.isfinite(values[first : end + 1]))
    rows = len(given) - int(WORST_SHARE * len(given))
    return Window(int(steps[given[0]]), int(steps[given[-1]]), rows)

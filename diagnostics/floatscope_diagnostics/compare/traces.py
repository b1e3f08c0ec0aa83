"""The scalars of a run that the decision looks at beside the loss, each on the steps on which it was logged.

A held-out loss often stands on steps of its own, a step time on steps that were logged without a loss: a
scalar keeps its own steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

TRACED = ("eval_loss", "step_time_s", "tokens", "label_tokens", "grad_norm", "skipped_steps")


@dataclass(frozen=True, eq=False)
class Trace:
    """step: int64 [N], ascending, each once.  value: float64 [N], may hold NaN and Inf as logged."""

    step: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    value: Float64 = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.step)

    def between(self, first: int, last: int) -> Trace:
        """The part from step ``first`` to ``last``."""
        inside = slice(*np.searchsorted(self.step, (first, last + 1)))
        return Trace(self.step[inside], self.value[inside])

    def finite(self) -> Trace:
        """Without NaN and Inf."""
        good = np.isfinite(self.value)
        return Trace(self.step[good], self.value[good])


NONE = Trace()


def trace_of(step: Int64, value: Float64, present: NDArray[np.bool_] | None = None) -> Trace:
    """A scalar's values at ``step`` [N] as logged, in any order; of a repeated step the last counts.

    present: bool [N], where it was logged; None: wherever the value is not NaN.
    """
    there = ~np.isnan(value) if present is None else present
    step, value = step[there], value[there]
    order = np.argsort(step, kind="stable")
    newest = np.append(np.diff(step[order]) != 0, True) if len(step) else np.empty(0, bool)
    chosen = order[newest]
    return Trace(step[chosen], value[chosen])


def on_common_steps(run: Trace, base: Trace) -> tuple[Int64, Float64, Float64]:
    """Steps that both hold, and both values there."""
    step, a, b = np.intersect1d(run.step, base.step, assume_unique=True, return_indices=True)
    return step, run.value[a], base.value[b]


def tokens_a_step(traces: Mapping[str, Trace]) -> float | None:
    """Tokens of one step, most of the time; None if it was not logged.

    ``tokens`` counts from the start in most logs (it never falls and it grows), else it is of the step.
    """
    seen = traces.get("tokens", NONE).finite()
    if len(seen) >= 2:
        more, steps = np.diff(seen.value), np.diff(seen.step)
        if (more >= 0.0).all() and seen.value[-1] > seen.value[0]:
            return _positive(float(np.median(more / steps)))
        return _positive(float(np.median(seen.value)))
    labels = traces.get("label_tokens", NONE).finite()
    return _positive(float(np.median(labels.value))) if len(labels) else None


def counted(trace: Trace) -> float | None:
    """What a counter added over the trace (``skipped_steps``), None if it was not logged; restarts of the
    count are added up.
    """
    seen = trace.finite()
    if not len(seen):
        return None
    more = np.diff(seen.value)
    return float(seen.value[0] + np.where(more >= 0.0, more, seen.value[1:]).sum())


def names_of(wanted: Iterable[str], traces: Mapping[str, Trace]) -> tuple[str, ...]:
    """Those of ``wanted`` that hold a finite value."""
    return tuple(name for name in wanted if len(traces.get(name, NONE).finite()))


def _positive(value: float) -> float | None:
    return value if value > 0.0 else None

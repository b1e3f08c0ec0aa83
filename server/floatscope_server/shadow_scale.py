"""The shadow scale of one tensor: the scale that the recipe must give, from the amaxes that were sent.

Transformer Engine's rule (``common/recipe/delayed_scaling.cu``, ``kernel_bulk``), as in
``floatscope_diagnostics.shadow``: after each pass ``scale = format_max / 2^margin / amax``, where amax is the
largest of the last ``amax_history_len`` passes (``max``) or the newest one (``most_recent``); an amax of 0,
Inf or NaN keeps the old scale; an amax of 0 does not roll the history; a maximum drops NaN; an infinite scale
becomes FLT_MAX. The scale of a step was made from the passes before it. The diagnosis keeps an interval where
amaxes are missing; here a step has a shadow scale only where every amax that it is made from was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from floatscope.protocol.batch import Bool, Float64, Int64
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.columns import CURRENT, DELAYED_MAX, DELAYED_RECENT, OPEN, Columns
from floatscope_diagnostics.shadow import FLT_MAX

SHADOW = "shadow_scale"
FIRST_SCALE = 1.0  # of a run from scratch, until its first pass has ended
SCRATCH_STEPS = 1  # a run from scratch begins at step 0 or 1


@dataclass(frozen=True)
class ScaleRule:
    """How a tensor's scale follows from its amaxes. kind: OPEN (no rule is known), DELAYED_MAX,
    DELAYED_RECENT or CURRENT. top: format_max / 2^margin. history: in passes.
    """

    kind: int
    top: float
    history: int


def rule_of(described: RunInfo, tensor: str) -> ScaleRule:
    """The rule that the run's recipe declares for the tensor."""
    columns = Columns(replace(described, tensors={tensor: described.tensors.get(tensor, {})}))
    columns.add([tensor])
    top = float(columns.fmax[0] * 2.0 ** -columns.margin_log2[0])
    return ScaleRule(int(columns.rule[0]), top, int(columns.history[0]))


def shadow_scale(
    step: Int64, segment: Int64, amax: Float64, rule: ScaleRule, *, from_scratch: bool
) -> tuple[Float64, Bool]:
    """The shadow scale at each step, and where it is known.

    step: ascending, of every amax that was sent. segment: of each. from_scratch: the first step is the run's
    first, so nothing was in the history before it.
    """
    found, known = np.full(len(step), np.nan), np.zeros(len(step), bool)
    if rule.kind == OPEN or not len(step):
        return found, known
    if rule.kind == CURRENT:
        known = np.isfinite(amax) & (amax > 0)
        found[known] = np.minimum(rule.top / amax[known], FLT_MAX)
        return found, known
    breaks = np.flatnonzero((np.diff(step) != 1) | (np.diff(segment) != 0)) + 1
    for first, end in pairwise([0, *breaks.tolist(), len(step)]):
        fresh = from_scratch and first == 0 and int(step[0]) <= SCRATCH_STEPS
        here = slice(first, end)
        found[here], known[here] = _unbroken(amax[here], rule, fresh=fresh)
    return found, known


def _unbroken(amax: Float64, rule: ScaleRule, *, fresh: bool) -> tuple[Float64, Bool]:
    """The same of neighbouring steps. fresh: nothing came before them."""
    if rule.kind == DELAYED_RECENT:
        largest = np.concatenate([[0.0], np.where(np.isnan(amax[:-1]), 0.0, amax[:-1])])
        whole = np.arange(len(amax)) >= (0 if fresh else 1)
    else:
        assert rule.kind == DELAYED_MAX
        rolls = amax != 0
        count = np.concatenate([[0], np.cumsum(rolls)])[:-1]  # of passes in the history before each step
        largest = _largest(np.where(np.isnan(amax), 0.0, np.abs(amax))[rolls], rule.history)[count]
        whole = np.full(len(amax), True) if fresh else count >= rule.history
    told = whole & (largest > 0) & np.isfinite(largest)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(told, np.minimum(rule.top / largest, FLT_MAX), np.nan)
    at = np.maximum.accumulate(np.where(told, np.arange(len(amax)), -1))  # else the scale before it is kept
    found = np.where(at >= 0, scale[at], FIRST_SCALE if fresh else np.nan)
    return found, whole & ((at >= 0) | fresh)


def _largest(values: Float64, size: int) -> Float64:
    """The largest of the ``size`` values before each place, 0 to len(values); 0 where there is none.

    After van Herk: each window is the end of one block and the beginning of the next.
    """
    places = len(values) + 1
    padded = np.zeros(-(-(places + size - 1) // size) * size)
    padded[size : size + len(values)] = values[: len(padded) - size]
    blocks = padded.reshape(-1, size)
    from_left = np.maximum.accumulate(blocks, axis=1).ravel()
    from_right = np.maximum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.maximum(from_right[:places], from_left[size - 1 : size - 1 + places])

"""Which tensor parts first: step first, then the causal order inside the step.

Two healthy runs from one seed drift apart, as every difference in rounding is amplified; their tensors then
differ too, by so much and no more. LIMITS is beyond what any tensor of any healthy pair did for three rows in
a row. A tensor has parted when it is beyond its limit for PERSIST_ROWS rows, or SUDDEN_TIMES beyond it for
one, or leaves the deviation it had by JUMP_LIMITS, or is not finite while the other run's is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from floatscope.protocol.names import split_tensor
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.tensor_limits import (
    BEYOND_ALL,
    JUMP_LIMITS,
    JUMP_ROWS,
    JUMP_TENSORS,
    LIMITS,
    OCTAVES,
    OF_GRADIENTS,
    PERSIST_ROWS,
    SAME_FORMAT_ONLY,
    SEARCH_ROWS,
    SETTLED_ROWS,
    SHOWN,
    SUDDEN_TIMES,
    UNITS,
    UNPAIRED_TIMES,
)
from floatscope_diagnostics.compare.tensor_log import NONFINITE, NONFINITE_GRAD, plain_name

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

_GRADIENTS, _UPDATES = 1 << 40, 1 << 50  # places behind every activation, behind every gradient


@dataclass(frozen=True)
class Parted:
    """One tensor that parted.

    deviation: run against baseline in the statistic's unit, None for non-finite.  limit: of the deviation or,
    if it jumped, of its change from the rows before.
    """

    tensor: str
    step: int
    stat: str
    run: float
    base: float
    deviation: float | None
    limit: float | None
    order: str
    jumped: bool = False


@dataclass(frozen=True)
class TensorParting:
    """first: tensors that parted, first cause first.  parted: how many did in all.  common: tensors in both.

    only_run, only_base: how many the other lacks.  rows: common rows with statistics.  skipped: statistics
    that were not compared, and why.  nearest: the largest share of a limit that any tensor reached for
    PERSIST_ROWS rows.  why_not: why nothing could be compared, else None.
    """

    first: tuple[Parted, ...] = ()
    parted: int = 0
    common: int = 0
    only_run: int = 0
    only_base: int = 0
    rows: int = 0
    first_row: int | None = None
    last_row: int | None = None
    skipped: tuple[str, ...] = ()
    nearest: tuple[str, str, float] | None = None
    why_not: str | None = None


def compare_tensors(
    run: Side, base: Side, *, paired: bool, other_data: frozenset[int] = frozenset()
) -> TensorParting:
    """Compares what both logs have: the same tensors on the same steps.

    other_data: steps to leave out.  Not paired: gradients follow the data and are left out, and the limits
    are UNPAIRED_TIMES as wide.
    """
    for side, role in ((run, "RUN"), (base, "BASELINE")):
        if not side.tensors.names:
            return TensorParting(why_not=f"no tensor statistics in {role} ({side.label})")
    names = sorted(run.tensors.names & base.tensors.names)
    only_run, only_base = len(run.tensors.names) - len(names), len(base.tensors.names) - len(names)
    if not names:
        own, other = min(run.tensors.names), min(base.tensors.names)
        why = f"no tensor has the same name in both logs (RUN has {own}, BASELINE {other})"
        return TensorParting(only_run=only_run, only_base=only_base, why_not=why)
    stride = max(run.tensors.stride, base.tensors.stride)
    for side in (run, base):
        side.tensors.thin(stride)
    steps = sorted((run.tensors.steps() & base.tensors.steps()) - other_data)
    if len(steps) < PERSIST_ROWS:
        why = f"only {len(steps)} steps carry tensor statistics in both logs; {PERSIST_ROWS} are needed"
        return TensorParting(
            common=len(names), only_run=only_run, only_base=only_base, rows=len(steps), why_not=why
        )
    columns = Columns(_described(run.run))
    columns.add(names)
    tables = _Tables(run, base, steps, names, columns, paired)
    parted, nearest = _parted(tables)
    order = sorted(parted, key=lambda p: (p.step, tables.place(p.tensor, p.stat), p.tensor))
    return TensorParting(
        first=tuple(order[:SHOWN]),
        parted=len(parted),
        common=len(names),
        only_run=only_run,
        only_base=only_base,
        rows=len(steps),
        first_row=steps[0],
        last_row=steps[-1],
        skipped=tables.skipped,
        nearest=nearest,
    )


def _described(run: RunInfo) -> RunInfo:
    return RunInfo(recipe=run.recipe, tensors={plain_name(n): row for n, row in run.tensors.items()})


class _Tables:
    """Deviations by statistic, float64 [rows, tensors], NaN where one of the runs has no number."""

    def __init__(
        self,
        run: Side,
        base: Side,
        steps: Sequence[int],
        names: Sequence[str],
        columns: Columns,
        paired: bool,
    ) -> None:
        self.run, self.base = run, base
        self.steps, self.names = steps, names
        self.backward = columns.backward
        self._columns = columns
        self.paired = paired
        weight = np.array([split_tensor(n)[1] == "weight" for n in names])
        self.kind = np.where(self.backward, "backward", np.where(weight, "weight", "forward"))
        other = Columns(_described(base.run))
        other.add(names)
        self.same_format: Bool = np.array(
            [a is not None and a == b for a, b in zip(columns.fmt, other.fmt, strict=True)]
        )
        self.same_recipe = dict(run.run.recipe) == dict(base.run.recipe)
        in_both = (run.tensors.stats() & base.tensors.stats()) - {NONFINITE, NONFINITE_GRAD}
        self.stats = [s for s in UNITS if s in in_both and (self.same_format.any() or not self._bound(s))]
        self.stats = [s for s in self.stats if s != "scale" or self.same_recipe]
        if not paired:
            self.stats = [s for s in self.stats if s not in OF_GRADIENTS]
        self.skipped = self._why_skipped(in_both)
        self.scaled_by = _log2_ratio(_scale_at(run, steps), _scale_at(base, steps))  # of the loss, [rows]
        self.scaler = any(_scaler_moves(side) for side in (run, base))

    def place(self, tensor: str, stat: str) -> int:
        """Place in the causal order of a step: activations as they run, then gradients backward, that of a
        weight behind those of its layer, then the updates.
        """
        columns = self._columns
        at = columns.index[tensor]
        call = int(columns.call_order[at])
        if stat == "update_ratio":
            return _UPDATES + call
        if stat in OF_GRADIENTS:
            return _GRADIENTS + 4 * (int(columns.call_order.max()) - call) + 3
        if columns.backward[at]:
            return _GRADIENTS + 4 * (int(columns.call_order.max()) - call) + int(columns.role[at]) % 3
        return int(columns.position[at])

    def order(self, tensor: str, stat: str) -> str:
        return "forward" if self.place(tensor, stat) < _GRADIENTS else "backward"

    def pair(self, stat: str) -> tuple[Float64, Float64]:
        return (
            self.run.tensors.table(stat, self.steps, self.names).astype(np.float64),
            self.base.tensors.table(stat, self.steps, self.names).astype(np.float64),
        )

    def deviation(self, stat: str) -> tuple[Float64, Float64, Float64]:
        """Deviation, run, baseline."""
        run, base = self.pair(stat)
        if UNITS[stat] == OCTAVES:
            apart = _log2_ratio(run, base)
            if stat in ("amax", "rms", "scale"):
                sign = -1.0 if stat == "scale" else 1.0
                moved = np.where(np.isfinite(self.scaled_by), self.scaled_by, 0.0)
                apart[:, self.backward] -= sign * moved[:, None]  # a loss scale multiplies every gradient
            elif self.scaler:
                apart[(run == 0.0) | (base == 0.0)] = np.nan  # a step that the scaler dropped
        else:
            with np.errstate(invalid="ignore"):
                apart = run - base
            apart[~np.isfinite(apart)] = np.nan
        if not self.paired:
            apart[:, self.backward] = np.nan
        if self._bound(stat):
            apart[:, ~self.same_format] = np.nan
        return apart, run, base

    @staticmethod
    def _bound(stat: str) -> bool:
        return stat in SAME_FORMAT_ONLY

    def _why_skipped(self, in_both: set[str]) -> tuple[str, ...]:
        out = [] if self.paired else ["gradients: the data differ"]
        bound = [s for s in SAME_FORMAT_ONLY if s in in_both and s not in self.stats]
        if bound and not self.same_format.any():
            out.append(f"{', '.join(bound)}: the runs use different formats")
        elif bound:
            out.append(f"{', '.join(bound)}: the runs use different recipes")
        one = (self.run.tensors.stats() ^ self.base.tensors.stats()) - {NONFINITE, NONFINITE_GRAD}
        if one:
            out.append(f"{', '.join(sorted(one))}: only one run logs them")
        return tuple(out)


def _parted(tables: _Tables) -> tuple[list[Parted], tuple[str, str, float] | None]:
    """Every tensor that parted, at its first step, and the largest share of a limit that was reached."""
    found: dict[str, Parted] = {}
    nearest: tuple[str, str, float] | None = None

    def keep(new: Parted) -> None:
        old = found.get(new.tensor)
        if old is None or key(new) < key(old):
            found[new.tensor] = new

    def key(p: Parted) -> tuple[int, int]:
        return p.step, tables.place(p.tensor, p.stat)

    for stat in (NONFINITE, NONFINITE_GRAD):
        for tensor, row in _nonfinite(tables, stat):
            name = tables.names[tensor]
            order = tables.order(name, stat)
            run, base = (float(side[row, tensor]) for side in tables.pair(stat))
            keep(Parted(name, tables.steps[row], stat, run, base, None, None, order))
    for stat in tables.stats:
        apart, own, other = tables.deviation(stat)
        limits = np.array([LIMITS[stat][kind] for kind in tables.kind])
        limits *= 1.0 if tables.paired else UNPAIRED_TIMES
        with np.errstate(invalid="ignore"):
            share = np.abs(apart) / limits
        share[np.isnan(share)] = 0.0
        lasting = _lasting(share, PERSIST_ROWS)
        if stat in SUDDEN_TIMES and tables.paired:
            sudden = share[: len(lasting)] / SUDDEN_TIMES[stat]
            sudden[:SETTLED_ROWS] = 0.0
            lasting = np.maximum(lasting, sudden)
        least, jumped = limits, np.zeros(lasting.shape, bool)
        if tables.paired:
            least = np.array([JUMP_LIMITS[stat][kind] for kind in tables.kind])
            jumps = _jumps(apart) / least
            jumped = (jumps >= 1.0) & (lasting < 1.0)
            lasting = np.maximum(lasting, jumps)
        top = int(np.argmax(lasting.max(axis=0)))
        reached = float(lasting[:, top].max())
        if nearest is None or reached > nearest[2]:
            nearest = (tables.names[top], stat, reached)
        for k in np.flatnonzero((lasting >= 1.0).any(axis=0)).tolist():
            row = int(np.argmax(lasting[:, k] >= 1.0))
            name = tables.names[k]
            step = tables.steps[row]
            keep(
                Parted(
                    tensor=name,
                    step=step,
                    stat=stat,
                    run=float(own[row, k]),
                    base=float(other[row, k]),
                    deviation=float(apart[row, k]),
                    limit=float(least[k] if jumped[row, k] else limits[k]),
                    order=tables.order(name, stat),
                    jumped=bool(jumped[row, k]),
                )
            )
    return list(found.values()), nearest


def _nonfinite(tables: _Tables, stat: str) -> list[tuple[int, int]]:
    """(tensor, first row) of tensors that are not finite in one run only.

    With a dynamic loss scale a gradient that overflows is how it searches: activations count when they stay
    so for PERSIST_ROWS rows, gradients only after SEARCH_ROWS.
    """
    run, base = tables.pair(stat)
    only = ((run != base) & ~np.isnan(run) & ~np.isnan(base)).astype(np.float64)
    hits = only >= 1.0
    if tables.scaler:
        searching = tables.kind != "forward"
        hits = _lasting(only, PERSIST_ROWS) >= 1.0
        hits[:, searching] = False
        if len(only) >= SEARCH_ROWS:
            late = _lasting(only[:, searching], SEARCH_ROWS) >= 1.0
            hits[: len(late), searching] = late
    return [(k, int(np.argmax(hits[:, k]))) for k in np.flatnonzero(hits.any(axis=0)).tolist()]


def _jumps(apart: Float64) -> Float64:
    """[rows, tensors] -> [rows - PERSIST_ROWS + 1, tensors]: by how much the deviation has left its median
    over the JUMP_ROWS rows before, to the same side for PERSIST_ROWS rows; 0 where there are too few rows.
    """
    rows, size = apart.shape
    out = np.zeros((rows - PERSIST_ROWS + 1, size))
    if rows < JUMP_ROWS + PERSIST_ROWS:
        return out
    for first in range(0, size, JUMP_TENSORS):
        part = apart[:, first : first + JUMP_TENSORS]
        # NaN: a gap in the rows
        before = np.median(sliding_window_view(part, JUMP_ROWS, axis=0)[:-1], axis=-1)
        away = part[JUMP_ROWS:] - before
        away[np.isnan(away)] = 0.0
        up, down = (_lasting(np.maximum(sign * away, 0.0), PERSIST_ROWS) for sign in (1.0, -1.0))
        out[JUMP_ROWS:, first : first + JUMP_TENSORS] = np.maximum(up, down)
    return out


def _lasting(values: Float64, count: int) -> Float64:
    """[rows, tensors] -> [rows - count + 1, tensors]: what ``count`` rows from here on all reach."""
    rows = len(values) - count + 1
    out = values[:rows]
    for k in range(1, count):
        out = np.minimum(out, values[k : k + rows])
    return out


def _log2_ratio(a: Float64, b: Float64) -> Float64:
    """log2(a / b); BEYOND_ALL where only b is 0, its negative where only a is, 0 where both are, NaN where
    either is missing, negative or not finite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.log2(a) - np.log2(b)
    out = np.where((a == 0.0) & (b == 0.0), 0.0, np.clip(out, -BEYOND_ALL, BEYOND_ALL))
    return np.where(np.isfinite(a) & np.isfinite(b) & (a >= 0.0) & (b >= 0.0), out, np.nan)


def _scaler_moves(side: Side) -> bool:
    """Whether the run has a loss scale that changes; many loggers write a constant 1."""
    logged = side.loss_scale[np.isfinite(side.loss_scale)]
    return len(logged) > 0 and bool((logged != logged[0]).any())


def _scale_at(side: Side, steps: Sequence[int]) -> Float64:
    """The loss scale at the given steps, NaN where it is not logged; 1 for a run that has none."""
    if not np.isfinite(side.loss_scale).any():
        return np.ones(len(steps))
    at = np.searchsorted(side.step, np.array(steps)).clip(0, len(side.step) - 1)
    return np.where(side.step[at] == np.array(steps), side.loss_scale[at], math.nan)

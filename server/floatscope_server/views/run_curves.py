"""The scalars of a run as short curves, for its key numbers and what else its page knows. Read once per
arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.names import MAX_STEP
from floatscope_server.levels import Level
from floatscope_server.reduce import columns as columns_of
from floatscope_server.store import series_reads
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm
from floatscope_server.views.run_rows import rank

NAMES = (
    "loss",
    "grad_norm",
    "lr",
    "step_time_s",
    "tokens",
    "gpu_util_pct",
    "gpu_throttle",
    "resumed",
    "data_id",
)
POINTS = 60
CURVE_BYTES = 4_096  # about what one takes in memory


@dataclass(frozen=True)
class Curve:
    """A scalar in bins: steps where they begin, and of each bin the mean and last finite value (NaN without
    one), the highest finite value, the number of values, of NaN and of Inf.
    """

    step: tuple[int, ...]
    mean: tuple[float, ...]
    last: tuple[float, ...]
    high: tuple[float, ...]
    count: tuple[int, ...]
    nan: tuple[int, ...]
    inf: tuple[int, ...]
    width: int

    @property
    def broken(self) -> int:
        """Values that are NaN or Inf."""
        return sum(self.nan) + sum(self.inf)

    def shown(self) -> tuple[float, ...]:
        """For a sparkline: NaN or Inf where the bin has one, else its last value."""
        return tuple(
            np.nan if nan else np.inf if inf else value
            for value, nan, inf in zip(self.last, self.nan, self.inf, strict=True)
        )

    def first_broken(self) -> int | None:
        """Where the first bin with NaN or Inf begins."""
        found = (s for s, n, i in zip(self.step, self.nan, self.inf, strict=True) if n or i)
        return next(found, None)


Curves = Mapping[str, Curve]


def run_curves(c: Connection, run: RunRecord, objects: Objects | None, warm: Warm | None) -> Curves:
    """Every scalar of NAMES that the run's first rank logs. Raises Damaged or Unreachable."""
    key = ("run_curves", run.id, run.arrivals)
    known: Curves | None = None if warm is None else warm.get(key)
    if known is None:
        known = curves_within(c, run, Span(0, MAX_STEP), NAMES, POINTS, objects, warm)
        if warm is not None:
            warm.keep(key, known, CURVE_BYTES * max(1, len(known)))
    return known


def curves_within(
    c: Connection,
    run: RunRecord,
    span: Span,
    names: tuple[str, ...],
    points: int,
    objects: Objects | None,
    warm: Warm | None,
) -> Curves:
    """The same of a span of steps."""
    seen = series_reads.view(Source(c, run.id, rank(c, run), TensorTables(), objects, warm), span)
    found = series_reads.scalars(seen, names, points)
    return {name: _curve(level, seen.first) for name, level in found.items() if len(level.bins)}


def _curve(level: Level, first: int) -> Curve:
    columns = columns_of(level, first=first)

    def floats(name: str) -> tuple[float, ...]:
        return tuple(np.nan if value is None else float(value) for value in columns[name])

    def ints(name: str) -> tuple[int, ...]:
        return tuple(int(value) for value in columns[name])

    return Curve(
        step=ints("step"),
        mean=floats("mean"),
        last=floats("last"),
        high=floats("max"),
        count=ints("count"),
        nan=ints("nan"),
        inf=ints("inf"),
        width=level.width,
    )

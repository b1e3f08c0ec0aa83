"""Where values were first not finite: found from afar first, then step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_server.reduce import MAX_CELLS, HeatMap
from floatscope_server.store import heat_reads, series_reads
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span

COUNTS = frozenset({"nan_count", "inf_count"})
"""Statistics that are counts of elements which are not finite: a positive one is bad."""
COLUMNS = 64
WINDOW = 128
"""Steps after the first one in which it is looked what else is not finite."""


@dataclass(frozen=True, eq=False)
class Bad:
    """Tensors that a statistic says were not finite: where first, and its value there (a count)."""

    names: Sequence[str]
    step: NDArray[np.int64]
    value: NDArray[np.float64]


def first_step(
    source: Source, stats: Sequence[str], span: Span, *, tensors: Mapping[str, Mapping[str, Any]]
) -> int | None:
    """The first step of the span at which any of these statistics says that a tensor is not finite."""
    low, high = span.first, span.last
    found: int | None = None
    for stat in stats:
        at = _first_of(source, stat, low, high, tensors)
        if at is not None:
            found, high = at, at - 1
        if high < low:
            break
    return found


def _first_of(
    source: Source, stat: str, low: int, high: int, tensors: Mapping[str, Mapping[str, Any]]
) -> int | None:
    while low <= high:
        heat = _heat(source, stat, low, high, COLUMNS, tensors)
        columns = np.flatnonzero(_bad(heat).any(axis=0))
        if not len(columns):
            return None
        begin = (heat.first // heat.width + int(columns[0])) * heat.width
        if heat.width == 1:
            return begin
        low, high = max(low, begin), min(high, begin + heat.width - 1)
    return None


def after(
    source: Source, stat: str, first: int, last: int, *, tensors: Mapping[str, Mapping[str, Any]]
) -> Bad:
    """Every tensor that the statistic says was not finite in the window from ``first``, and where first."""
    end = min(last, first + WINDOW - 1)
    heat = _heat(source, stat, first, end, WINDOW, tensors)
    bad = _bad(heat)
    rows = np.flatnonzero(bad.any(axis=1))
    columns = bad[rows].argmax(axis=1)
    steps = np.maximum((heat.first // heat.width + columns) * heat.width, first)
    return Bad([heat.tensors[row] for row in rows.tolist()], steps, heat.cells[0][rows, columns])


def _heat(
    source: Source, stat: str, low: int, high: int, columns: int, tensors: Mapping[str, Mapping[str, Any]]
) -> HeatMap:
    seen = series_reads.view(source, Span(low, high), with_tensors=True)
    names = sorted(heat_reads.tensor_names(seen))
    most = max(1, min(columns, MAX_CELLS // max(1, len(names))))
    heat = HeatMap(stat, names, low, high, most)
    heat_reads.fill(seen, heat, stored=(stat,), tensors=tensors)
    return heat


def _bad(heat: HeatMap) -> NDArray[np.bool_]:
    worst, nan, inf = heat.cells
    odd = (nan > 0) | (inf > 0)
    return odd | (np.nan_to_num(worst) > 0) if heat.stat in COUNTS else odd

"""What a chart draws from one reduced series: line with gaps, band polygons, isolated points, non-finite
stretches.

A reduced series is the column arrays of the REST interface: `step`, `min`, `max`, `mean`, `last`, `count`,
`nan`, `inf`; a bin without finite values has None. NaN, Inf and missing stay three different things all the
way. static/js/bins.js does the same for live data; a browser test holds the two equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from floatscope_dashboards.wording import as_float, as_int

GAP_FACTOR = 4.0
"""A distance of more than this many usual ones between neighbouring bins is missing data, not sampling."""
MAX_STRETCHES = 40
"""Most shaded stretches of one kind: beyond it they could not be told apart anyway, and shapes cost time."""
OUTLIER_SPANS = 1.5
"""Values further than this many times the middle range (1 to 98 %) outside it do not set the vertical
scale."""
LOW_QUANTILE, HIGH_QUANTILE = 0.01, 0.98
PAD_SHARE = 0.06
SMOOTH_SHARE = 0.012
"""Half-life of the smoothed line as a share of what is shown: 12 steps of a run of 1,000."""
SMOOTH_FROM_BINS = 40
"""With fewer bins a smoothed line would say less than the values themselves."""


@dataclass(frozen=True)
class Bins:
    """One reduced series. `mean`, `low`, `high` are None where the bin has no finite value."""

    step: tuple[int, ...]
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    nan: tuple[int, ...]
    inf: tuple[int, ...]
    distance: float
    """Usual distance between neighbouring bins, in steps."""


@dataclass(frozen=True)
class Span:
    """Vertical range that keeps the curve readable, and what lies outside it."""

    low: float
    high: float
    above: int
    below: int
    largest: float
    smallest: float


def read_bins(series: Mapping[str, Any] | None) -> Bins:
    """The column arrays as `Bins`, steps ascending; rows that are not complete are left out, None is
    empty."""
    columns = series or {}
    steps = [as_int(value) for value in columns.get("step", ())]
    rows = []
    for index, step in enumerate(steps):
        if step is None:
            continue
        rows.append(
            (
                step,
                _finite(_at(columns, "mean", index)),
                _finite(_at(columns, "min", index)),
                _finite(_at(columns, "max", index)),
                as_int(_at(columns, "nan", index)) or 0,
                as_int(_at(columns, "inf", index)) or 0,
            )
        )
    rows.sort(key=lambda row: row[0])
    gaps = sorted(b[0] - a[0] for a, b in pairwise(rows))
    return Bins(
        step=tuple(row[0] for row in rows),
        mean=tuple(row[1] for row in rows),
        low=tuple(row[2] if row[2] is not None else row[1] for row in rows),
        high=tuple(row[3] if row[3] is not None else row[1] for row in rows),
        nan=tuple(row[4] for row in rows),
        inf=tuple(row[5] for row in rows),
        distance=float(gaps[len(gaps) // 2]) if gaps else 1.0,
    )


def _at(columns: Mapping[str, Any], name: str, index: int) -> Any:
    values = columns.get(name, ())
    return values[index] if index < len(values) else None


def _finite(value: Any) -> float | None:
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None


def finite_runs(bins: Bins) -> list[tuple[int, int]]:
    """Index ranges [start, end) of neighbouring bins with finite values and no hole in the steps between
    them."""
    runs: list[tuple[int, int]] = []
    start: int | None = None
    for index in range(len(bins.step) + 1):
        alive = index < len(bins.step) and bins.mean[index] is not None
        hole = alive and start is not None and _is_hole(bins, index)
        if start is not None and (not alive or hole):
            runs.append((start, index))
            start = None
        if alive and start is None:
            start = index
    return runs


def within(bins: Bins, shown: tuple[float, float] | None) -> Bins:
    """The bins inside the steps shown; all without a range."""
    if shown is None:
        return bins
    kept = [index for index, step in enumerate(bins.step) if shown[0] <= step <= shown[1]]
    return Bins(
        step=tuple(bins.step[index] for index in kept),
        mean=tuple(bins.mean[index] for index in kept),
        low=tuple(bins.low[index] for index in kept),
        high=tuple(bins.high[index] for index in kept),
        nan=tuple(bins.nan[index] for index in kept),
        inf=tuple(bins.inf[index] for index in kept),
        distance=bins.distance,
    )


def _is_hole(bins: Bins, index: int) -> bool:
    return bins.step[index] - bins.step[index - 1] > GAP_FACTOR * bins.distance


def line(bins: Bins) -> tuple[list[int | None], list[float | None]]:
    """x and y of the line through the means, with a None between runs, so that no gap is bridged."""
    x: list[int | None] = []
    y: list[float | None] = []
    for start, end in finite_runs(bins):
        x.extend(bins.step[start:end])
        y.extend(bins.mean[start:end])
        x.append(None)
        y.append(None)
    return x, y


def half_life_steps(bins: Bins) -> int:
    """Half-life of the smoothed line in steps that suits what is shown: a round number (1, 2 or 5 times a
    power of ten); 0 when there are too few bins to smooth.
    """
    if len(bins.step) < SMOOTH_FROM_BINS:
        return 0
    return round_number(max(2.0, len(bins.step) * SMOOTH_SHARE) * bins.distance)


def round_number(value: float) -> int:
    """The least of 1, 2, 5, 10, 20, ... that is not below `value`."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= value:
                return digit * power
        power *= 10


def smooth(bins: Bins, half_life: float) -> tuple[list[int | None], list[float | None]]:
    """x and y of the exponential average of the means, `half_life` in steps.

    Debiased, so that it starts at the first value and not at 0; begun anew after every gap, so that nothing
    is smoothed over a NaN. A bin counts by its distance from the one before.
    """
    x: list[int | None] = []
    y: list[float | None] = []
    for start, end in finite_runs(bins):
        total = weight = 0.0
        for index in range(start, end):
            mean = bins.mean[index]
            apart = bins.distance if index == start else float(bins.step[index] - bins.step[index - 1])
            keep = 0.5 ** (apart / half_life)
            total = keep * total + (1.0 - keep) * (mean if mean is not None else 0.0)
            weight = keep * weight + (1.0 - keep)
            x.append(bins.step[index])
            y.append(total / weight)
        x.append(None)
        y.append(None)
    return x, y


def whole_span(many: Sequence[Bins]) -> Span | None:
    """The vertical range that leaves nothing out; None without a value."""
    values = [value for bins in many for value in (*bins.low, *bins.high) if value is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    pad = (high - low) * PAD_SHARE or abs(high) * PAD_SHARE or 1.0
    return Span(low - pad, high + pad, above=0, below=0, largest=high, smallest=low)


def band(bins: Bins) -> tuple[list[int | None], list[float | None]]:
    """x and y of one closed polygon per finite run, from the highest to the lowest values and back.

    `fill: tonexty` between two lines draws a wrong polygon across a gap (plotly.js issue 2736).
    """
    x: list[int | None] = []
    y: list[float | None] = []
    for start, end in finite_runs(bins):
        if end - start < 2:
            continue
        steps = bins.step[start:end]
        x.extend([*steps, *reversed(steps), steps[0], None])
        y.extend([*bins.high[start:end], *reversed(bins.low[start:end]), bins.high[start], None])
    return x, y


def isolated(bins: Bins) -> tuple[list[int], list[float | None]]:
    """Points without a finite neighbour: a line would not show them."""
    alone = [start for start, end in finite_runs(bins) if end - start == 1]
    return [bins.step[index] for index in alone], [bins.mean[index] for index in alone]


def nonfinite(bins: Bins) -> tuple[list[int], list[int], list[int], list[int]]:
    """Steps and counts of the bins with NaN, then steps and counts of those with Inf."""
    nan = [index for index, count in enumerate(bins.nan) if count]
    inf = [index for index, count in enumerate(bins.inf) if count]
    return (
        [bins.step[index] for index in nan],
        [bins.nan[index] for index in nan],
        [bins.step[index] for index in inf],
        [bins.inf[index] for index in inf],
    )


def nonfinite_stretches(bins: Bins) -> list[tuple[float, float]]:
    """From and to (steps) of neighbouring bins that hold NaN or Inf, at most MAX_STRETCHES."""
    half = bins.distance / 2
    stretches: list[tuple[float, float]] = []
    for index, step in enumerate(bins.step):
        if not (bins.nan[index] or bins.inf[index]):
            continue
        if stretches and step - half <= stretches[-1][1] + bins.distance / 4:
            stretches[-1] = (stretches[-1][0], step + half)
        else:
            stretches.append((step - half, step + half))
    return stretches[:MAX_STRETCHES]


def missing_stretches(bins: Bins) -> list[tuple[float, float]]:
    """From and to (steps) of the holes between bins, at most MAX_STRETCHES."""
    holes = [
        (float(bins.step[index - 1]), float(bins.step[index]))
        for index in range(1, len(bins.step))
        if _is_hole(bins, index)
    ]
    return holes[:MAX_STRETCHES]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Value at `share` of an ascending sequence, linear between neighbours. Raises IndexError when it is
    empty."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def span(many: Sequence[Bins], *, positive: bool = False, robust: bool = True) -> Span | None:
    """The vertical range for these series together; None when they have no finite (and positive) value.

    robust: values far outside the middle do not set it.
    """
    values = sorted(
        value
        for bins in many
        for value in (*bins.low, *bins.high)
        if value is not None and (not positive or value > 0)
    )
    if not values:
        return None
    low, high = values[0], values[-1]
    inner_low, inner_high = quantile(values, LOW_QUANTILE), quantile(values, HIGH_QUANTILE)
    middle = inner_high - inner_low
    if robust and middle > 0 and high - inner_high > OUTLIER_SPANS * middle:
        high = inner_high + middle / 4
    if robust and middle > 0 and inner_low - low > OUTLIER_SPANS * middle:
        low = inner_low - middle / 4
    pad = (high - low) * PAD_SHARE or abs(high) * PAD_SHARE or 1.0
    return Span(
        low=low - pad,
        high=high + pad,
        above=sum(value is not None and value > high + pad for bins in many for value in bins.high),
        below=sum(value is not None and value < low - pad for bins in many for value in bins.low),
        largest=values[-1],
        smallest=values[0],
    )

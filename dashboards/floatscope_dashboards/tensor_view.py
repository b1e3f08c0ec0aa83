"""What the tensor pages show, as plain frozen objects: the server fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floatscope_dashboards.format_table import WhatIf

NONFINITE, CLIPS, FLUSHES, FITS, UNSCALED, NO_STATS = (
    "nonfinite",
    "clips",
    "flushes",
    "fits",
    "unscaled",
    "none",
)
TENSOR_STATES = (NONFINITE, CLIPS, FLUSHES, FITS, UNSCALED, NO_STATS)
"""How a tensor is doing at a step, worst first. Unscaled: it has statistics, but none of a cast."""
CLIPS_FROM_PCT = 0.1
"""Share of values above the format's maximum from which a tensor counts as clipping; less is what delayed
scaling does all the time."""
FLUSHES_FROM_PCT = 5.0
"""Share of values that become 0 in the cast from which a tensor counts as losing small values."""
WORST = "worst"
"""The order of the table unless another is asked for."""


@dataclass(frozen=True)
class TensorRun:
    """The run that a tensor belongs to. last_seen_s: age of the last data, None before the first."""

    run_id: str
    name: str
    project: str
    status: str
    first_step: int | None
    last_step: int | None
    last_seen_s: float | None


@dataclass(frozen=True)
class TensorLine:
    """One tensor at one step. values: statistic -> value; one that is absent was not sent."""

    name: str
    layer: str
    role: str
    format: str
    recipe: str
    state: str
    values: Mapping[str, float]
    named: str = ""
    """Severity of the worst open finding that names it, "" for none."""


@dataclass(frozen=True)
class TensorsAsked:
    """What the address asks for; corrected: what of it was not understood and is left out."""

    at: int | None = None
    rank: int | None = None
    q: str = ""
    role: str = ""
    layer: str = ""
    state: str = ""
    sort: str = WORST
    descending: bool = True
    page: int = 1
    corrected: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorsView:
    """The table of all tensors. lines: one page of those that match."""

    run: TensorRun
    asked: TensorsAsked
    lines: tuple[TensorLine, ...]
    total: int
    matching: int
    pages: int
    step: int | None
    """The step of the statistics; None where there are none."""
    rank: int
    ranks: tuple[int, ...]
    """Ranks with statistics, for the choice."""
    stats: tuple[str, ...]
    """Statistics that some tensor has at the step."""
    roles: Mapping[str, int]
    """Role -> tensors, of all that are not filtered by role."""
    states: Mapping[str, int]


@dataclass(frozen=True)
class RankSpread:
    """The largest and the smallest amax over the ranks at one step. left_out: ranks not looked at."""

    step: int
    low: float
    low_rank: int
    high: float
    high_rank: int
    ranks: int
    left_out: int


@dataclass(frozen=True)
class ScaleHistory:
    """How the recipe makes the scale. kind: max, most_recent, current or "" (no rule is known)."""

    kind: str
    length: int
    margin: float
    reduced: bool
    """Whether amaxes are reduced over ranks before the scale is made."""
    several: bool
    """Whether some step had several forward passes, of which only the largest amax is sent."""


@dataclass(frozen=True)
class TensorView:
    """The page of one tensor."""

    run: TensorRun
    line: TensorLine
    step: int | None
    """The step of the numbers."""
    asked_at: int | None
    call_order: int | None
    calls: int
    shape: tuple[int, ...]
    place: int | None
    """From 1, worst first, at the rank's last step."""
    of: int
    previous: str | None
    next: str | None
    rank: int
    ranks: tuple[int, ...]
    history: ScaleHistory
    every: Mapping[str, int]
    """Statistic -> steps between its newest values."""
    stats: tuple[str, ...]
    verdict: Mapping[str, Any]
    siblings: tuple[TensorLine, ...]
    spread: RankSpread | None
    what_if: WhatIf | None
    limits: Mapping[str, float] = field(default_factory=dict)
    """max, min_normal and min_subnormal of the format; empty where it takes no scale."""
    corrected: tuple[str, ...] = ()
    """What the address asks for and is not there."""

"""What a page shows, as plain frozen objects: the server fills them, `pages.Pages` turns them into HTML.

Nothing here knows HTTP, the database or Jinja. Times are timezone-aware UTC. A loss may be NaN (it happened)
or None (there is none yet); in a sparkline None is a gap and NaN is a value that was not a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class RunRow:
    """One run as a line of the overview and as the head of its own page."""

    run_id: str
    name: str
    project: str
    recipe: str
    """Display text of the recipe, for example "FP8 delayed scaling, hybrid"."""
    status: str
    """running, stalled, finished, failed or crashed."""
    health: str
    """Verdict status: healthy, watch, warning or critical."""
    headline: str
    """The verdict's summary sentence."""
    cause: str | None
    """Cause of the worst finding, None without one."""
    first_step: int | None
    last_step: int | None
    last_loss: float | None
    created: datetime
    last_seen: datetime | None
    """When the last batch arrived, None before the first one."""
    onset_step: int | None
    """Onset of the worst finding, None without one."""
    sparkline: tuple[float | None, ...]
    """At most 60 values of the loss, oldest first."""
    baseline: str | None
    """run_id of the baseline run, None without one."""
    confidence: float | None = None
    """Confidence of the worst finding, 0 to 1; None when there is none or it is not known."""
    remedy: str | None = None
    """First sentence of the worst finding's remedy; None when there is none or it is not known."""


@dataclass(frozen=True)
class RunsView:
    """The runs overview. `rows` in any order; the page sorts worst first."""

    rows: tuple[RunRow, ...]
    total: int
    """Number of runs in the store, which may be more than there are rows."""
    project: str | None
    """The project the list is limited to, None for all."""
    now: datetime
    version: str


@dataclass(frozen=True)
class Kpi:
    """One number of the strip above the charts."""

    name: str
    value: str
    unit: str
    note: str
    sparkline: tuple[float | None, ...]


@dataclass(frozen=True)
class RunView:
    """The page of one run."""

    row: RunRow
    info: dict[str, Any]
    """The run object as JSON (name, recipe, tensors, ranks, config, ...)."""
    verdict: dict[str, Any]
    """The verdict as JSON, schema floatscope.verdict/1."""
    kpis: tuple[Kpi, ...]
    heat_stats: tuple[str, ...]
    """Tensor statistics that have data, stored and derived ones."""
    at: int | None
    """Step the reader asked for in the address, None for none."""
    now: datetime
    version: str

"""What a page shows, as plain frozen objects: the server fills them, `pages.Pages` turns them into HTML.

Nothing here knows HTTP, the database or Jinja. Times are timezone-aware UTC. A loss may be NaN (it happened)
or None (there is none yet); in a sparkline None is a gap and NaN is a value that was not a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from floatscope_dashboards.pictures_view import PicturesView
from floatscope_dashboards.run_facts import RunFacts
from floatscope_dashboards.runs_query import RunsQuery


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
    ranks: int | None = None
    """Ranks that sent something; None where that was not looked up."""
    headroom: float | None = None
    """Least headroom of any tensor to its format's largest value in the newest batch that has it, binades."""
    clipped: float | None = None
    """Largest share of clipped values of any tensor in the newest batch that has it, %."""
    total_steps: int | None = None
    """Steps the run is to take, as its configuration says; None where it does not."""
    tokens_per_s: float | None = None
    """Tokens a second of one rank, from its tokens and step times; None where that is not known."""
    pace_s: float | None = None
    """Usual time between two batches, s; None before it is known."""
    damaged: str | None = None
    """What of the run's stored data cannot be read; None while nothing is known to be."""
    judged_steps: int | None = None
    """Steps the verdict rests on; None where that is not known."""
    onset_time: datetime | None = None
    """When the onset's step was trained; None where that was not looked up or is not known."""
    curve_follows: bool = False
    """The curve was not read in time for this answer; the next one has it."""


@dataclass(frozen=True)
class ProjectCount:
    """A project and how many runs of each group (see `runs_query.GROUPS`) match."""

    project: str
    groups: Mapping[str, int]

    @property
    def total(self) -> int:
        """Its runs."""
        return sum(self.groups.values())


@dataclass(frozen=True)
class RunsView:
    """The runs overview: one page of the runs asked for, in order, and counts over all runs."""

    query: RunsQuery
    """As answered: its page exists, and ``everything`` is decided."""
    rows: tuple[RunRow, ...]
    cards: tuple[RunRow, ...]
    """The worst that need somebody, worst first."""
    counts: Mapping[tuple[str, str], int]
    """(group, place) -> runs of the project, or of all. Places: "live"; "lately" ended early; "ended"."""
    matched: int
    """Runs that match the query, on all pages."""
    projects: tuple[ProjectCount, ...]
    """Of the rows, where they are shown by project."""
    total: int
    """Runs in the store."""
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
    pictures: PicturesView | None = None
    facts: RunFacts = field(default_factory=RunFacts)

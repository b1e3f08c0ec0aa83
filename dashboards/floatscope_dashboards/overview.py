"""The runs overview in words and order: headline sentence, counts, the cards that need attention, worst
first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from floatscope_dashboards import sparkline
from floatscope_dashboards.views import RunRow, RunsView
from floatscope_dashboards.wording import (
    LIVE_STATUS,
    RECOVERED_SIGN,
    SEVERITY_ORDER,
    Sign,
    count_text,
    duration_text,
    health_sign,
    status_sign,
)

MAX_CARDS = 3
MAX_ROWS = 200
"""Rows on the page: beyond it the page gets slow and nobody scrolls."""
RECENT_END_S = 2 * 86_400
"""A run that ended with a finding stays among the cards for two days, so that a weekend does not hide it."""


@dataclass(frozen=True)
class Filter:
    """One filter button with its count."""

    key: str
    label: str
    kind: str
    count: int


@dataclass(frozen=True)
class Overview:
    """What the overview says, in order. `shares` are (kind, word, count) of the health bar."""

    headline: str
    sub: str
    title_glyph: str
    shares: tuple[tuple[str, str, int], ...]
    filters: tuple[Filter, ...]
    cards: tuple[RunRow, ...]
    rows: tuple[RunRow, ...]


def overview(view: RunsView) -> Overview:
    """Everything the page prints besides the rows' own words."""
    rows = tuple(sorted(view.rows, key=_worst_first))
    live = [row for row in rows if is_live(row)]
    counts = {key: sum(group(row) == key for row in rows) for key in _GROUPS}
    shares = tuple((kind, word, counts[key]) for key, (kind, word) in _GROUPS.items() if counts[key])
    filters = (
        Filter("all", "All", "", len(rows)),
        *(Filter(key, word, kind, counts[key]) for key, (kind, word) in _GROUPS.items() if counts[key]),
        Filter("live", "Live", "run", len(live)),
    )
    worst = rows[0] if rows else None
    return Overview(
        headline=_headline(rows, live),
        sub=_sub(rows, live, view),
        title_glyph=row_sign(worst).glyph if worst else "",
        shares=shares,
        filters=filters,
        cards=tuple(row for row in rows if _needs_attention(row, view.now))[:MAX_CARDS],
        rows=rows[:MAX_ROWS],
    )


# Group of a row for counts and filters, with the icon and the word of the group. In order of urgency.
_GROUPS: dict[str, tuple[str, str]] = {
    "critical": ("crit", "Critical"),
    "warning": ("warn", "Warning"),
    "ended": ("no", "Ended early"),
    "stalled": ("stall", "Stalled"),
    "watch": ("info", "Watch"),
    "healthy": ("ok", "Healthy"),
}


def is_live(row: RunRow) -> bool:
    """Running, or silent but not ended."""
    return row.status in LIVE_STATUS


def group(row: RunRow) -> str:
    """The one group of a row: its finding first, then how it stands, then its health."""
    if row.health in ("critical", "warning"):
        return row.health
    if row.status in ("failed", "crashed"):
        return "ended"
    if row.status == "stalled":
        return "stalled"
    return "watch" if row.health == "watch" else "healthy"


def is_recovered(row: RunRow) -> bool:
    """Healthy now, but it had a finding; not while its loss is NaN or Inf."""
    broken = row.last_loss is not None and not math.isfinite(row.last_loss)
    return row.health == "healthy" and row.cause is not None and not broken


def row_sign(row: RunRow) -> Sign:
    """The sign that stands for the whole run: the finding's, else the status where that is the news."""
    if row.health in ("critical", "warning"):
        return health_sign(row.health)
    if row.status in ("failed", "crashed", "stalled"):
        return status_sign(row.status)
    return RECOVERED_SIGN if is_recovered(row) else health_sign(row.health)


def onset_share(row: RunRow) -> float | None:
    """Where the open finding began along the run, 0 to 1; None without one."""
    if is_recovered(row):
        return None
    return sparkline.onset_share(
        first_step=row.first_step, last_step=row.last_step, onset_step=row.onset_step
    )


def _worst_first(row: RunRow) -> tuple[int, int, float, str]:
    urgency = list(_GROUPS).index(group(row))
    newest = row.last_seen or row.created
    return (urgency, 0 if is_live(row) else 1, -newest.timestamp(), row.run_id)


def _needs_attention(row: RunRow, now: datetime) -> bool:
    if SEVERITY_ORDER.get(row.health, 9) > SEVERITY_ORDER["warning"]:
        return False
    newest = row.last_seen or row.created
    return is_live(row) or (now - newest).total_seconds() < RECENT_END_S


def _headline(rows: Sequence[RunRow], live: Sequence[RunRow]) -> str:
    if not rows:
        return "No runs yet"
    critical = sum(row.health == "critical" for row in live)
    warning = sum(row.health == "warning" for row in live)
    silent = sum(group(row) == "stalled" for row in live)
    parts = []
    if critical:
        parts.append(f"{count_text(critical, 'run')} {'needs' if critical == 1 else 'need'} you now")
    if warning:
        noun = count_text(warning, "run") if not parts else str(warning)
        parts.append(f"{noun} should be looked at")
    if silent:
        noun = count_text(silent, "run") if not parts else str(silent)
        parts.append(f"{noun} went silent")
    if parts:
        return ", ".join(parts)
    if live:
        return "The live run is healthy" if len(live) == 1 else f"All {len(live)} live runs are healthy"
    found = sum(row.health in ("critical", "warning") for row in rows)
    if found:
        return f"No run is live; {found} of {count_text(len(rows), 'ended run')} had a finding"
    return f"No run is live; {count_text(len(rows), 'ended run')}, no finding"


def _sub(rows: Sequence[RunRow], live: Sequence[RunRow], view: RunsView) -> str:
    parts = []
    if live:
        healthy = sum(group(row) in ("healthy", "watch") for row in live)
        parts.append(f"{healthy} of {count_text(len(live), 'live run')} healthy.")
    ended = len(rows) - len(live)
    if ended and live:
        parts.append(f"{count_text(ended, 'ended run')}.")
    if view.total > min(len(rows), MAX_ROWS):
        parts.append(f"Showing {min(len(rows), MAX_ROWS)} of {view.total:,} runs.")
    if view.project is not None:
        parts.append(f"Project {view.project} only.")
    return " ".join(parts)


def ago(now: datetime, then: datetime | None) -> str:
    """How long ago, in words; a dash when it never happened."""
    return "\u2013" if then is None else duration_text((now - then).total_seconds())

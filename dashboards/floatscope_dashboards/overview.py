"""The runs overview in words and order: headline sentence, counts, filters, what each run's sign is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from floatscope_dashboards import sparkline
from floatscope_dashboards.runs_query import GROUPS
from floatscope_dashboards.say import Say, later
from floatscope_dashboards.views import RunRow, RunsView
from floatscope_dashboards.warm_up import is_warming_up
from floatscope_dashboards.wording import LIVE_STATUS, RECOVERED_SIGN, Sign, health_sign, status_sign

WAITING_SIGN = Sign("dots", "\u2026", later("Waiting"))
WARMING_UP_SIGN = health_sign("warming_up")
GROUP_SIGNS: Mapping[str, Sign] = {
    "critical": health_sign("critical"),
    "warning": health_sign("warning"),
    "ended": Sign("no", "\u2715", later("Ended early")),
    "stalled": status_sign("stalled"),
    "watch": health_sign("watch"),
    "warming_up": WARMING_UP_SIGN,
    "healthy": health_sign("healthy"),
}
CURRENT_PLACES = ("live", "lately")
"""What is shown while nobody asks for runs that ended: live ones, and those that ended early of late."""


@dataclass(frozen=True)
class Choice:
    """One link that changes the view. ``on``: it is how the view is now. count: None to show none."""

    label: str
    kind: str
    count: int | None
    on: bool
    href: str


@dataclass(frozen=True)
class Share:
    """One part of the health bar: width in % of it, 1 to 100."""

    kind: str
    said: str
    width: int


@dataclass(frozen=True)
class Overview:
    """What the page says above its table, in order."""

    headline: str
    sentences: tuple[str, ...]
    told: str
    """The sentences, and what is hidden."""
    hidden: str
    """That runs which ended are hidden and how many; "" where none is."""
    title_glyph: str
    shares: tuple[Share, ...]
    scopes: tuple[Choice, ...]
    filters: tuple[Choice, ...]


def overview(view: RunsView, say: Say) -> Overview:
    """Everything the page says besides its rows."""
    query = view.query
    places = (*CURRENT_PLACES, "ended") if query.everything else CURRENT_PLACES
    shown = _sums(view.counts, places)
    total = sum(shown.values())
    current, everything = sum(_sums(view.counts, CURRENT_PLACES).values()), sum(view.counts.values())
    sentences, hidden = _sentences(view, say), _hidden(everything - total, say)
    return Overview(
        headline=_headline(view, say),
        sentences=sentences,
        told=say.sentences((*sentences, hidden)),
        hidden=hidden,
        title_glyph=WAITING_SIGN.glyph
        if _all_early(view)
        else next((GROUP_SIGNS[key].glyph for key in GROUPS if shown[key]), ""),
        shares=tuple(_shares(shown, total, say)),
        scopes=(
            Choice(say("Current"), "", current, not query.everything, query.href(everything=False)),
            Choice(say("All"), "", everything, bool(query.everything), query.href(everything=True)),
        ),
        filters=(
            Choice(say("Any health"), "", total, not query.health, query.href(health=())),
            *(
                Choice(say(sign.word), sign.kind, shown[key], key in query.health, query.toggled(key))
                for key, sign in GROUP_SIGNS.items()
                if shown[key] or key in query.health
            ),
        ),
    )


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
    if row.health == "watch":
        return "watch"
    return "warming_up" if is_warming_up(row) else "healthy"


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
    if is_recovered(row):
        return RECOVERED_SIGN
    if is_warming_up(row):
        return WAITING_SIGN if row.last_step is None else WARMING_UP_SIGN
    return health_sign(row.health)


def onset_share(row: RunRow) -> float | None:
    """Where the open finding began along the run, 0 to 1; None without one."""
    if is_recovered(row):
        return None
    return sparkline.onset_share(
        first_step=row.first_step, last_step=row.last_step, onset_step=row.onset_step
    )


def _all_early(view: RunsView) -> bool:
    """Whether there are live runs, and all are too young to be called healthy."""
    live = _sums(view.counts, ("live",))
    return 0 < sum(live.values()) == live["warming_up"]


def _sums(counts: Mapping[tuple[str, str], int], places: tuple[str, ...]) -> dict[str, int]:
    return {key: sum(counts.get((key, place), 0) for place in places) for key in GROUPS}


def _shares(shown: Mapping[str, int], total: int, say: Say) -> list[Share]:
    return [
        Share(
            sign.kind,
            say("{count} {group}", count=say.step(shown[key]), group=say(sign.word)),
            max(1, round(100 * shown[key] / total)),
        )
        for key, sign in GROUP_SIGNS.items()
        if shown[key]
    ]


def _headline(view: RunsView, say: Say) -> str:
    live = _sums(view.counts, ("live",))
    everything = sum(view.counts.values())
    if not everything:
        return say("No runs yet")
    clauses = []
    if live["critical"]:
        clauses.append(say.plural("{n} run needs you now", "{n} runs need you now", live["critical"]))
    if live["warning"] and clauses:
        clauses.append(say.plural("{n} should be looked at", "{n} should be looked at", live["warning"]))
    elif live["warning"]:
        clauses.append(
            say.plural("{n} run should be looked at", "{n} runs should be looked at", live["warning"])
        )
    if live["stalled"] and clauses:
        clauses.append(say.plural("{n} went silent", "{n} went silent", live["stalled"]))
    elif live["stalled"]:
        clauses.append(say.plural("{n} run went silent", "{n} runs went silent", live["stalled"]))
    if clauses:
        return _enumerated(clauses, say)
    number = sum(live.values())
    if _all_early(view):
        return say.plural("The live run is warming up", "All {n} live runs are warming up", number)
    if number and live["warming_up"]:
        judged = say.plural(
            "{n} live run is healthy", "{n} live runs are healthy", number - live["warming_up"]
        )
        early = say.plural("{n} is warming up", "{n} are warming up", live["warming_up"])
        return _enumerated([judged, early], say)
    if number:
        return say.plural("The live run is healthy", "All {n} live runs are healthy", number)
    sums = _sums(view.counts, ("lately", "ended"))
    found = sums["critical"] + sums["warning"]
    if found:
        return say.plural(
            "No run is live. {found} of {n} ended run had a finding",
            "No run is live. {found} of {n} ended runs had a finding",
            everything,
            found=say.step(found),
        )
    return say.plural(
        "No run is live. {n} ended run had no finding",
        "No run is live. {n} ended runs had no finding",
        everything,
    )


def _enumerated(clauses: list[str], say: Say) -> str:
    if len(clauses) == 1:
        return clauses[0]
    if len(clauses) == 2:
        return say("{first}, {second}", first=clauses[0], second=clauses[1])
    return say("{first}, {second}, {third}", first=clauses[0], second=clauses[1], third=clauses[2])


def _sentences(view: RunsView, say: Say) -> tuple[str, ...]:
    live = _sums(view.counts, ("live",))
    number = sum(live.values())
    out = []
    if number and not _all_early(view):
        out.append(
            say.plural(
                "{healthy} of {n} live run is healthy.",
                "{healthy} of {n} live runs are healthy.",
                number,
                healthy=say.step(live["healthy"] + live["watch"]),
            )
        )
        if live["warming_up"]:
            out.append(
                say.plural(
                    "{n} has too few steps to be judged.",
                    "{n} have too few steps to be judged.",
                    live["warming_up"],
                )
            )
    lately = sum(_sums(view.counts, ("lately",)).values())
    if lately:
        out.append(
            say.plural(
                "{n} ended early in the last two days.", "{n} ended early in the last two days.", lately
            )
        )
    return tuple(out)


def _hidden(number: int, say: Say) -> str:
    if not number:
        return ""
    return say.plural("{n} run that ended is hidden.", "{n} runs that ended are hidden.", number)

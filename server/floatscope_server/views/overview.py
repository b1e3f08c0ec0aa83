"""Fills the view of the overview from the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from floatscope_dashboards.runs_query import PAGE_ROWS, RunsQuery
from floatscope_dashboards.views import ProjectCount, RunRow, RunsView
from floatscope_dashboards.wording import CAUSES
from floatscope_server.errors import Damaged, Unreachable
from floatscope_server.store import batches, run_lists, runs, verdicts
from floatscope_server.store.run_lists import Wanted, Word
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm
from floatscope_server.times import moment
from floatscope_server.views.run_figures import Figures, figures, totals
from floatscope_server.views.run_rows import RECIPE_WORDS, line, rank, row
from floatscope_server.views.run_tracks import known, track

LATELY_S = 2 * 86_400  # a run that ended early or with a finding stays in sight over a weekend
CARDS = 3
CURVES_S = 0.08  # so long an answer may read curves that are not remembered; the others follow
FRESH_ENOUGH_S = 10.0  # a remembered curve is not made anew before
_BY_FIGURE = {"headroom": "headroom", "clipped": "clipped"}


@dataclass(frozen=True)
class _Reader:
    """What reads batches."""

    c: Connection
    objects: Objects | None
    warm: Warm | None


def runs_view(
    c: Connection,
    *,
    query: RunsQuery,
    version: str,
    translated: Callable[[str], str] = str,
    objects: Objects | None = None,
    warm: Warm | None = None,
) -> RunsView:
    """One page of the runs that are asked for, and counts over all. A run of which something cannot be read
    says so; the others are as they are. translated: an English name in the reader's language.
    """
    now, reader = time.time(), _Reader(c, objects, warm)
    since = now - LATELY_S
    counts = run_lists.counts(c, project=query.project, since=since)
    query = _settled(query, counts)
    wanted = Wanted(
        project=query.project,
        groups=query.health,
        since=None if query.everything else since,
        words=tuple(_word(text, translated) for text in query.words.split()),
    )
    matched = run_lists.matched(c, wanted)
    query = replace(query, page=max(1, min(query.page, -(-matched // PAGE_ROWS))))
    found = _page(reader, wanted, query)
    rows = _rows(reader, found)
    projects = run_lists.of_projects(c, wanted, {run.project for run in found}) if query.by_project else {}
    return RunsView(
        query=query,
        rows=rows,
        cards=tuple(
            _card(reader, run) for run in run_lists.worst(c, project=query.project, since=since, limit=CARDS)
        ),
        counts=counts,
        matched=matched,
        projects=tuple(ProjectCount(name, groups) for name, groups in projects.items()),
        total=sum(counts.values()) if query.project is None else runs.count(c),
        now=moment(now),
        version=version,
    )


def _settled(query: RunsQuery, counts: dict[tuple[str, str], int]) -> RunsQuery:
    """Runs that ended are shown at once only where there are no others."""
    if query.everything is not None:
        return query
    return query if any(place == "live" for _group, place in counts) else replace(query, everything=True)


def _word(text: str, translated: Callable[[str], str]) -> Word:
    small = text.casefold()
    causes = [
        code
        for code, name in CAUSES.items()
        if small in name.casefold() or small in translated(name).casefold()
    ]
    recipes = [code for code, name in RECIPE_WORDS.items() if small in name.casefold()]
    return Word(text, tuple(causes), tuple(recipes))


def _page(reader: _Reader, wanted: Wanted, query: RunsQuery) -> list[RunRecord]:
    offset = (query.page - 1) * PAGE_ROWS
    by = _BY_FIGURE.get(query.sort.removeprefix("-"))
    if by is None:
        return run_lists.page(
            reader.c,
            wanted,
            sort=query.sort,
            by_project=query.by_project,
            limit=PAGE_ROWS,
            offset=offset,
        )
    every = run_lists.ids(reader.c, wanted, by_project=query.by_project)
    known_figures = figures(reader.c, {run: arrivals for run, arrivals, _project in every}, reader.warm)
    projects = {project: at for at, project in enumerate(dict.fromkeys(item[2] for item in every))}

    def place(item: tuple[int, int, str]) -> tuple[int, bool, float]:
        value = getattr(known_figures.get(item[0], Figures()), by)
        sign = -1 if query.sort.startswith("-") else 1
        return projects[item[2]] if query.by_project else 0, value is None, sign * (value or 0.0)

    ordered = sorted(every, key=place)[offset : offset + PAGE_ROWS]
    return run_lists.records(reader.c, [item[0] for item in ordered])


def _rows(reader: _Reader, found: Sequence[RunRecord]) -> tuple[RunRow, ...]:
    ids = [run.id for run in found]
    leads = run_lists.leads(reader.c, ids)
    known_figures = figures(reader.c, {run.id: run.arrivals for run in found}, reader.warm)
    steps = totals(reader.c, {run.id: run.described for run in found}, reader.warm)
    problems = _read_curves(reader, found, {run: lead for run, (lead, _ranks) in leads.items()})
    out = []
    for run in found:
        before = known(run, reader.warm)
        made = line(run, None if before is None else before.track)
        figure = known_figures.get(run.id, Figures())
        out.append(
            replace(
                made,
                ranks=leads[run.id][1] if run.id in leads else 0,
                headroom=figure.headroom,
                clipped=figure.clipped,
                total_steps=steps.get(run.id),
                curve_follows=before is None and run.id not in problems and run.arrivals > 0,
                damaged=problems.get(run.id) or made.damaged,
            )
        )
    return tuple(out)


def _read_curves(reader: _Reader, found: Sequence[RunRecord], leads: dict[int, int]) -> dict[int, str]:
    """Sees to it that curves are remembered: missing ones first, then the oldest, while there is time.

    Returns run -> what of it cannot be read, "" where the store of objects does not answer now.
    """
    begin, problems = time.monotonic(), {}
    due = []
    for run in found:
        before = known(run, reader.warm)
        if before is None:
            due.append((0.0, run))
        elif before.arrivals != run.arrivals and begin - before.made > FRESH_ENOUGH_S:
            due.append((before.made, run))
    for _made, run in sorted(due, key=lambda item: item[0]):
        if run.id not in leads:
            continue
        if time.monotonic() - begin > CURVES_S:
            break
        try:
            track(reader.c, run, leads[run.id], reader.objects, reader.warm)
        except Damaged as error:
            problems[run.id] = error.part
        except Unreachable:
            problems[run.id] = ""
    return problems


def _card(reader: _Reader, run: RunRecord) -> RunRow:
    verdict, damaged = None, None
    try:
        verdict = verdicts.find(reader.c, run.id)
    except Damaged as error:
        damaged = error.part
    found = row(reader.c, run, verdict, reader.objects, reader.warm)
    at = None
    if run.onset_step is not None:
        at = batches.time_of(reader.c, run.id, step=run.onset_step, rank=rank(reader.c, run))
    return replace(found, damaged=found.damaged or damaged, onset_time=None if at is None else moment(at))

"""The runs overview: headline, what needs attention, then one page of the runs, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floatscope_dashboards.overview import GROUP_SIGNS, Overview, overview
from floatscope_dashboards.page import Page
from floatscope_dashboards.row_words import RowWords, row_words
from floatscope_dashboards.runs_query import PAGE_ROWS, RunsQuery
from floatscope_dashboards.say import Say, later
from floatscope_dashboards.views import ProjectCount, RunRow, RunsView
from floatscope_dashboards.wording import Sign


@dataclass(frozen=True)
class Column:
    """A column of the table. key: its class is c-KEY.  sort: what a click on its head sorts by, "" nothing.
    help: on hover.  number: right-aligned.  fixed: it cannot be left out.
    """

    key: str
    label: str
    sort: str = ""
    help: str = ""
    number: bool = False
    fixed: bool = False


COLUMNS = (
    Column("health", later("Health"), sort="severity", fixed=True),
    Column("run", later("Run"), sort="name", fixed=True),
    Column("why", later("Diagnosis"), fixed=True),
    Column("loss", later("Loss")),
    Column("last", later("Last loss"), sort="loss", number=True),
    Column(
        "head",
        later("Headroom"),
        sort="headroom",
        help=later(
            "Least headroom of any tensor to its format's largest value, in binades, in the newest batch"
        ),
        number=True,
    ),
    Column(
        "clip",
        later("Clipped"),
        sort="clipped",
        help=later("Largest share of clipped values of any tensor, in the newest batch of steps"),
        number=True,
    ),
    Column("step", later("Progress"), sort="step", help=later("Last step, of the steps configured")),
    Column("rate", later("Tokens/s"), help=later("Tokens a second of one rank"), number=True),
    Column("status", later("Status")),
    Column("seen", later("Last data"), sort="seen", help=later("Age of the last batch"), number=True),
)


@dataclass(frozen=True)
class Head:
    """A column's head: its text, where a click leads ("" nowhere) and its aria-sort ("" none)."""

    column: Column
    href: str
    sorted: str


@dataclass(frozen=True)
class Line:
    """A run of the table."""

    row: RunRow
    words: RowWords


@dataclass(frozen=True)
class Block:
    """Rows under one head. project: None where they are not shown by project.  counts: (sign, runs)."""

    project: str | None
    total: int
    counts: tuple[tuple[Sign, int], ...]
    href: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Turn:
    """Where in all matching runs this page lies, and the pages beside it ("" where there is none)."""

    text: str
    before: str
    before_href: str
    after: str
    after_href: str


def runs_page(view: RunsView, say: Say) -> Page:
    """The page of all runs."""
    found = overview(view, say)
    query = view.query
    return Page(
        "runs.html",
        _title(found),
        section="runs",
        script="runs.js",
        styles=("runs.css",),
        values={
            "view": view,
            "query": query,
            "overview": found,
            "cards": [Line(row, row_words(row, say, now=view.now, card=True)) for row in view.cards],
            "blocks": _blocks(view, say),
            "heads": [
                Head(column, _head_href(column, query), _aria_sort(column, query)) for column in COLUMNS
            ],
            "columns": [column for column in COLUMNS if not column.fixed],
            "turn": _turn(view, say),
            "grouping": query.href(by_project=not query.by_project),
            "follow": any(row.curve_follows for row in view.rows),
        },
    )


def _title(found: Overview) -> str:
    glyph = f"{found.title_glyph} " if found.title_glyph else ""
    return f"{glyph}{found.headline} \u2013 floatscope"


def _head_href(column: Column, query: RunsQuery) -> str:
    return query.sorted_by(column.sort) if column.sort else ""


def _aria_sort(column: Column, query: RunsQuery) -> str:
    if not column.sort or query.sort.removeprefix("-") != column.sort:
        return ""
    return "descending" if query.sort.startswith("-") else "ascending"


def _blocks(view: RunsView, say: Say) -> list[Block]:
    lines = [Line(row, row_words(row, say, now=view.now)) for row in view.rows]
    if not view.query.by_project:
        return [Block(None, view.matched, (), "", tuple(lines))]
    of_project: dict[str, list[Line]] = {}
    for line in lines:
        of_project.setdefault(line.row.project, []).append(line)
    counts = {item.project: item for item in view.projects}
    return [_block(view, project, counts.get(project), some) for project, some in of_project.items()]


def _block(view: RunsView, project: str, count: ProjectCount | None, lines: Sequence[Line]) -> Block:
    groups = count.groups if count is not None else {}
    return Block(
        project=project,
        total=count.total if count is not None else len(lines),
        counts=tuple((sign, groups[key]) for key, sign in GROUP_SIGNS.items() if groups.get(key)),
        href=view.query.href(project=project, by_project=False),
        lines=tuple(lines),
    )


def _turn(view: RunsView, say: Say) -> Turn:
    query, rows = view.query, len(view.rows)
    first = (query.page - 1) * PAGE_ROWS + 1
    last = first + rows - 1
    rest = view.matched - last
    more = min(rest, PAGE_ROWS)
    if rows == view.matched:
        text = say.plural("{n} run", "{n} runs", rows)
    else:
        text = say(
            "{first} to {last} of {total} runs",
            first=say.step(first),
            last=say.step(last),
            total=say.step(view.matched),
        )
    return Turn(
        text=text,
        before=say("Show the {n} before", n=PAGE_ROWS) if query.page > 1 else "",
        before_href=query.href(page=query.page - 1),
        after=say.plural("Show {n} more run", "Show {n} more runs", more) if more > 0 else "",
        after_href=query.href(page=query.page + 1),
    )

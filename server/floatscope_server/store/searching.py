"""Finds runs and tensors by words of their names. Every word must be in what is looked through, in any order;
upper and lower case count as one.

What is read is bounded: the newest runs, their newest tensor tables, and a number of tensor names in all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from floatscope_server import tables
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.warm_up import WARMING_UP

SEARCHED_RUNS = 20_000  # newest; some 20 ms in SQLite
RANKED_RUNS = 200  # matches that are put in order of how well they match
TABLES_OF_RUN = 8  # newest; a run has more than one only if its model changed on the way
MOST_NAMES = 250_000  # tensor names looked at in one search: some 60 ms
LIVE_RUNS = 5  # whose tensors are searched where no run is named
LIVE = ("running", "stalled")
MOST_WORDS = 8
_STOPS = " ./_-:"


@dataclass(frozen=True)
class FoundRun:
    """A run as the search shows it."""

    id: int
    run_id: str
    name: str
    project: str
    status: str
    health: str
    cause: str | None
    warming_up: bool


@dataclass(frozen=True)
class FoundTensor:
    """A tensor of a run."""

    run: FoundRun
    name: str


def words_of(text: str) -> tuple[str, ...]:
    """The words to look for."""
    return tuple(text.split()[:MOST_WORDS])


def find_runs(c: Connection, words: Sequence[str], *, limit: int) -> tuple[list[FoundRun], bool]:
    """Runs whose name, id, project or cause has all words: best match first, live ones before the others that
    match as well, then the newest. The flag says whether there are more.
    """
    column = tables.run.c
    cause = func.coalesce(column.cause, "")
    whole = column.name + " " + column.run_id + " " + column.project
    whole = whole + " " + cause + " " + func.replace(cause, "_", " ")
    query = (
        _newest()
        .where(*(whole.icontains(word, autoescape=True) for word in words))
        .order_by(case((column.status.in_(LIVE), 0), else_=1), column.id.desc())
        .limit(RANKED_RUNS + 1)
    )
    found = [FoundRun(*row) for row in c.execute(query)]
    low = _lower(words)
    best = sorted(found, key=lambda run: (_run_rank(run, low), run.status not in LIVE, -run.id))
    return best[:limit], len(found) > limit


def find_tensors(
    c: Connection, known: TensorTables, of: Iterable[FoundRun], words: Sequence[str], *, limit: int
) -> tuple[list[FoundTensor], bool]:
    """Tensors of these runs whose name has all words: best match first, then the shortest name. The flag says
    whether there are more, or some were not looked at.
    """
    if not words:
        return [], False
    wanted, left, cut = _lower(words), MOST_NAMES, False
    matches: list[tuple[int, int, int, str, FoundRun]] = []
    for at, run in enumerate(of):
        for name in _names(c, known, run):
            left -= 1
            if left < 0:
                cut = True
                break
            low = name.lower()
            if all(word in low for word in wanted):
                matches.append((_rank(low, wanted), len(name), at, name, run))
    best = heapq.nsmallest(limit, matches, key=lambda match: match[:4])
    return [FoundTensor(run, name) for *_, name, run in best], cut or len(matches) > limit


def one_run(c: Connection, run_id: str) -> list[FoundRun]:
    """The run of this id, if there is one."""
    return [FoundRun(*row) for row in c.execute(_newest().where(tables.run.c.run_id == run_id))]


def live_runs(c: Connection) -> list[FoundRun]:
    """The newest runs that go on, then the newest of the others."""
    live = case((tables.run.c.status.in_(LIVE), 0), else_=1)
    query = _newest().order_by(live, tables.run.c.id.desc()).limit(LIVE_RUNS)
    return [FoundRun(*row) for row in c.execute(query)]


def _newest() -> Select[Any]:
    column = tables.run.c
    newest = select(func.max(column.id)).scalar_subquery()
    shown = (
        column.id,
        column.run_id,
        column.name,
        column.project,
        column.status,
        column.health,
        column.cause,
        WARMING_UP,
    )
    return select(*shown).where(column.deleted.is_(None), column.id > newest - SEARCHED_RUNS)


def _lower(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word.lower() for word in words)


def _names(c: Connection, known: TensorTables, run: FoundRun) -> Iterator[str]:
    """Names of the run's tensors, each once."""
    column = tables.tensor_table.c
    query = select(column.id).where(column.run == run.id).order_by(column.id.desc()).limit(TABLES_OF_RUN)
    seen: set[str] = set()
    for table_id in c.execute(query).scalars().all():
        names = known.get(c, table_id).names
        yield from (names if not seen else (name for name in names if name not in seen))
        seen.update(names)


def _run_rank(run: FoundRun, words: Sequence[str]) -> int:
    return min(_rank(text.lower(), words) for text in (run.name, run.run_id, f"{run.name} {run.project}"))


def _rank(low: str, words: Sequence[str]) -> int:
    """0: is the word. 1: begins with it. 2: a part of the name begins with it. 3: it is inside a part. The
    last word counts too, since names end with what tells them apart.
    """
    if not words:
        return 0
    first = words[0]
    if low == first or low == " ".join(words):
        return 0
    if low.startswith(first):
        return 1
    return 2 if all(_begins_a_part(low, word) for word in words) else 3


def _begins_a_part(low: str, word: str) -> bool:
    at = low.find(word)
    while at >= 0:
        if at == 0 or low[at - 1] in _STOPS:
            return True
        at = low.find(word, at + 1)
    return False

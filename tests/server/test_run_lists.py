"""Runs as the overview lists them, in both databases: groups, order, filters, pages, last numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, insert, update

from floatscope.protocol.runinfo import RunInfo
from floatscope_dashboards.overview import group
from floatscope_dashboards.runs_query import GROUPS, RunsQuery
from floatscope_server import tables
from floatscope_server.database import Database
from floatscope_server.levels import Level
from floatscope_server.store import run_lists, runs
from floatscope_server.store.run_lists import Wanted, Word
from floatscope_server.store.warm import Warm
from floatscope_server.views.overview import runs_view
from floatscope_server.views.run_figures import Figures, figures, totals
from floatscope_server.views.run_rows import line
from floatscope_server.views.run_tracks import tokens_per_s

HOUR_S = 3600.0


def add(c: Connection, run_id: str, *, config: dict[str, Any] | None = None, **values: Any) -> int:
    """A run with these columns."""
    described = RunInfo(
        name=values.pop("name", None), project=values.pop("project", "p"), config=config or {}
    )
    runs.create(
        c, run_id, described, summary=values.pop("summary", "No fault found."), now=values.pop("at", 1.0)
    )
    run = runs.get(c, run_id).id
    if values:
        runs.change(c, run, values)
    return run


def listed(c: Connection, *, sort: str = "-severity", by_project: bool = False, **wanted: Any) -> list[str]:
    found = run_lists.page(c, Wanted(**wanted), sort=sort, by_project=by_project, limit=100, offset=0)
    assert run_lists.matched(c, Wanted(**wanted)) == len(found)
    return [run.run_id for run in found]


def test_groups_are_those_of_the_pages_and_come_worst_first(database: Database) -> None:
    with database.write() as c:
        for health in ("healthy", "watch", "warning", "critical"):
            for status in ("finished", "running", "stalled", "failed", "crashed"):
                add(c, f"{health}-{status}", health=health, status=status)
        add(c, "critical-newer", health="critical", status="running", last_seen=5.0)
        found = run_lists.page(c, Wanted(), sort="-severity", by_project=False, limit=100, offset=0)
        groups = [group(line(run, None)) for run in found]
        assert groups == sorted(groups, key=GROUPS.index)
        assert [run.run_id for run in found[:3]] == ["critical-newer", "critical-running", "critical-stalled"]
        for name in GROUPS:
            assert listed(c, groups=(name,)) == [
                run.run_id for run, of in zip(found, groups, strict=True) if of == name
            ]
        counts = run_lists.counts(c, project=None, since=HOUR_S)
        assert sum(counts.values()) == len(found)
        assert counts[("critical", "live")] == 3
        assert counts[("ended", "ended")] == 4
        assert run_lists.counts(c, project=None, since=0.0)[("ended", "lately")] == 4
        assert run_lists.counts(c, project="other", since=0.0) == {}
        assert listed(c, sort="severity")[0].startswith("healthy")


@pytest.mark.parametrize("cause", [None, "lr_divergence"])
@pytest.mark.parametrize("status", ["running", "stalled", "finished"])
@pytest.mark.parametrize("judged", [None, 0, 63, 64])
def test_a_run_too_young_to_be_judged_is_not_healthy_anywhere(
    database: Database, judged: int | None, status: str, cause: str | None
) -> None:
    with database.write() as c:
        add(c, "judged", status=status, cause=cause, judged_steps=judged, first_step=100, last_step=199)
        add(c, "span", status=status, cause=cause, first_step=100, last_step=162)
        add(c, "new", status=status, cause=cause)
        for run in runs.listed(c, limit=9):
            of = group(line(run, None))
            assert listed(c, groups=("warming_up",)).count(run.run_id) == (of == "warming_up")
            young = [one.run_id for one in runs.listed(c, health=("warming_up",), limit=9)]
            assert (run.run_id in young) == (of == "warming_up")
            well = [one.run_id for one in runs.listed(c, health=("healthy", "critical"), limit=9)]
            assert (run.run_id in well) == (of != "warming_up")
        early = status == "running" and cause is None
        assert set(listed(c, groups=("warming_up",))) == (
            {"span", "new"} | ({"judged"} if judged in (0, 63) else set()) if early else set()
        )


def test_runs_that_ended_are_left_out_but_for_late_failures_and_deleted_ones_always(
    database: Database,
) -> None:
    with database.write() as c:
        add(c, "live", status="running")
        add(c, "done", status="finished", last_seen=2 * HOUR_S)
        add(c, "crashed-now", status="crashed", last_seen=2 * HOUR_S)
        add(c, "crashed-then", status="crashed", last_seen=0.5)
        gone = add(c, "gone", status="running")
        c.execute(update(tables.run).where(tables.run.c.id == gone).values(deleted=1.0))
        assert sorted(listed(c, since=HOUR_S)) == ["crashed-now", "live"]
        assert sorted(listed(c)) == ["crashed-now", "crashed-then", "done", "live"]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("-loss", ["nan", "inf", "high", "low", "none"]),
        ("loss", ["low", "high", "inf", "nan", "none"]),
        ("-step", ["low", "high", "nan", "inf", "none"]),
        ("seen", ["none", "low", "high", "inf", "nan"]),
        ("name", ["nan", "inf", "high", "low", "none"]),
    ],
)
def test_orders_put_what_is_missing_last(database: Database, sort: str, order: list[str]) -> None:
    losses = {"low": 2.5, "high": 1e30, "inf": -math.inf, "nan": math.nan, "none": None}
    names = {"nan": "A", "inf": "b", "high": "C", "low": "d", "none": "E"}
    with database.write() as c:
        for at, (run, loss) in enumerate(losses.items(), start=1):
            step = None if run == "none" else 100 - 10 * at
            heard = None if run == "none" else 10.0 + at
            add(c, run, name=names[run], last_loss=loss, last_step=step, last_seen=heard)
        add(c, "odd", name="z", last_step=1, last_seen=99.0)
        c.execute(update(tables.run).where(tables.run.c.run_id == "odd").values(last_loss_json="2x"))
        found = [run for run in listed(c, sort=sort) if run != "odd"]
    if sort in ("loss", "-loss"):  # NaN and Inf are both worse than any number, in no order of their own
        assert [{"nan": "inf"}.get(run, run) for run in found] == [
            {"nan": "inf"}.get(run, run) for run in order
        ]
    elif sort == "-step":
        assert found == ["low", "high", "inf", "nan", "none"]
    else:
        assert found == order


def test_words_are_looked_for_as_they_are(database: Database) -> None:
    with database.write() as c:
        add(c, "a", name="Llama 100%_\\ done", cause="stale_scale_saturation")
        add(c, "b", name="llama", project="Vision", summary="Gradients underflow.")
        add(c, "c", name="<b>x</b>")
        assert sorted(listed(c, words=(Word("LLAMA"),))) == ["a", "b"]
        assert listed(c, words=(Word("llama"), Word("vision"))) == ["b"]
        assert listed(c, words=(Word("100%_\\"),)) == ["a"]
        assert listed(c, words=(Word("%"),)) == ["a"]
        assert listed(c, words=(Word("<B>"),)) == ["c"]
        assert listed(c, words=(Word("clip", causes=("stale_scale_saturation",)),)) == ["a"]
        assert listed(c, words=(Word("underflow"),)) == ["b"]
        view = runs_view(c, query=RunsQuery(words="values clip"), version="1")
        assert [row.run_id for row in view.rows] == ["a"]


def test_projects_stand_together_the_one_with_the_worst_run_first(database: Database) -> None:
    with database.write() as c:
        add(c, "a", project="calm")
        add(c, "b", project="hot")
        add(c, "d", project="hot", health="critical")
        add(c, "e", project="calm")
        assert listed(c, by_project=True, sort="name") == ["b", "d", "a", "e"]
        assert run_lists.of_projects(c, Wanted(), {"hot"}) == {"hot": {"critical": 1, "warming_up": 1}}
        view = runs_view(c, query=RunsQuery(by_project=True, sort="headroom"), version="1")
        assert [row.run_id for row in view.rows] == ["d", "b", "a", "e"]
        assert {item.project: item.total for item in view.projects} == {"hot": 2, "calm": 2}


def test_a_page_that_is_not_there_is_the_last_one(database: Database) -> None:
    with database.write() as c:
        for number in range(3):
            add(c, f"r{number}")
        view = runs_view(c, query=RunsQuery(page=9), version="1")
        assert (view.query.page, len(view.rows), view.matched, view.total) == (1, 3, 3, 3)
        empty = runs_view(c, query=RunsQuery(project="other"), version="1")
        assert (empty.rows, empty.counts, empty.total, empty.query.page) == ((), {}, 3, 1)


def test_ended_runs_are_shown_at_once_only_where_there_are_no_others(database: Database) -> None:
    with database.write() as c:
        add(c, "done", status="finished")
        assert len(runs_view(c, query=RunsQuery(), version="1").rows) == 1
        assert runs_view(c, query=RunsQuery(everything=False), version="1").rows == ()
        add(c, "live")
        assert [row.run_id for row in runs_view(c, query=RunsQuery(), version="1").rows] == ["live"]


def _batch(c: Connection, run: int, rank: int, seq: int, **glance: Any) -> None:
    values = {"run": run, "rank": rank, "seq": seq, "arrival": 100 * rank + seq, "digest": b"", "segment": 0}
    values |= {"rows": 1, "first_step": seq, "last_step": seq, "lost": False, "received": 1.0, "judged": True}
    c.execute(insert(tables.batch).values(glance_json=json.dumps(glance), **values))


def test_the_last_sample_of_the_lowest_rank_speaks_for_the_run(database: Database) -> None:
    with database.write() as c:
        run, other, none = add(c, "a"), add(c, "b"), add(c, "n")
        for one, rank in ((run, 0), (run, 1), (other, 3)):
            for seq in range(12):
                value = 10 * rank + seq
                more = {"headroom_log2": value} if seq % 5 == 0 else {}
                _batch(c, one, rank, seq, loss="NaN", overflow_pct="NaN" if seq == 11 else value, **more)
            runs.place(c, one, runs.RankPosition(rank, 12, 0, 11, 1.0), rows=1)
        warm = Warm()
        found = figures(c, {run: 1, other: 1, none: 0}, warm)
        assert found == {run: Figures(10.0, 10.0), other: Figures(40.0, 40.0), none: Figures()}
        c.execute(update(tables.batch).values(glance_json='{"overflow_pct": 7}'))
        assert figures(c, {run: 1}, warm)[run] == Figures(10.0, 10.0)
        assert figures(c, {run: 2}, warm)[run] == Figures(None, 7.0)
        assert run_lists.leads(c, [run, other, none]) == {run: (0, 2), other: (3, 1)}


@pytest.mark.parametrize(
    ("config", "total"),
    [
        ({"steps": 300}, 300),
        ({"training": {"steps": 10}}, 10),
        ({"max_steps": -1, "args": {"max_steps": 500}}, 500),
        ({"max_steps": True, "steps": "9"}, None),
        ({"train": 5}, None),
        ({}, None),
    ],
)
def test_the_steps_a_run_is_to_take_are_those_of_its_configuration(
    sqlite_database: Database, config: dict[str, Any], total: int | None
) -> None:
    with sqlite_database.write() as c:
        run = add(c, "a", config=config)
        assert totals(c, {run: 0}, None).get(run) == total


def _level(values: list[float], width: int = 1) -> Level:
    last = np.array([values])
    zero = np.zeros_like(last, dtype=np.int64)
    return Level(width, np.arange(len(values)), last, last, zero + 1, zero, zero, last, last)


@pytest.mark.parametrize(
    ("tokens", "seconds", "width", "rate"),
    [
        ([1000.0] * 8, [0.5] * 8, 1, 2000.0),
        ([1000.0 * n for n in range(8)], [0.5] * 8, 1, 2000.0),
        ([4000.0 * n for n in range(8)], [0.5] * 8, 4, 2000.0),
        ([1000.0, 900.0, 1100.0], [0.5], 1, 2000.0),
        ([1000.0], [math.nan, 0.0], 1, None),
        ([], [1.0], 1, None),
        ([0.0], [1.0], 1, None),
    ],
)
def test_tokens_a_second_of_loops_that_count_each_step_or_all(
    tokens: list[float], seconds: list[float], width: int, rate: float | None
) -> None:
    assert tokens_per_s(_level(tokens, width), _level(seconds, width)) == rate

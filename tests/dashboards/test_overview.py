"""The overview in words: headline, counts, filters, rows, cards, pages."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from floatscope_dashboards.overview import Overview, overview
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.row_words import RowWords, row_words
from floatscope_dashboards.runs_page import runs_page
from floatscope_dashboards.runs_query import RunsQuery, read_query
from floatscope_dashboards.sparkline import svg
from floatscope_dashboards.views import ProjectCount, RunRow, RunsView
from tests.dashboards.sample import HOSTILE, NOW, healthy_row, row, runs_view
from tests.dashboards.showing import Shown

SAY = Pages().say("en")


def warning(**more: Any) -> RunRow:
    return row(**{"health": "warning", "run_id": "w", **more})


def stalled(**more: Any) -> RunRow:
    return healthy_row(**{"status": "stalled", "run_id": "s", **more})


def said(*rows: RunRow, **more: Any) -> Overview:
    return overview(runs_view(*rows, **more), SAY)


def words(item: RunRow) -> RowWords:
    return row_words(item, SAY, now=NOW)


def test_the_headline_counts_what_needs_somebody() -> None:
    rows = (row(run_id="a"), row(run_id="b"), warning(), stalled(), healthy_row())
    assert said(*rows).headline == "2 runs need you now, 1 should be looked at, 1 went silent"
    assert said(row()).headline == "1 run needs you now"
    assert said(warning()).headline == "1 run should be looked at"
    assert said(warning(), stalled()).headline == "1 run should be looked at, 1 went silent"
    assert said(stalled()).headline == "1 run went silent"
    assert said(healthy_row()).headline == "The live run is healthy"
    assert said(healthy_row(), healthy_row(run_id="h2")).headline == "All 2 live runs are healthy"
    assert said().headline == "No runs yet"


def test_the_headline_counts_runs_that_are_not_on_the_page() -> None:
    found = said(row(), counts={("critical", "live"): 1234, ("healthy", "live"): 2, ("watch", "live"): 1})
    assert found.headline == "1,234 runs need you now"
    assert found.sentences == ("3 of 1,237 live runs are healthy.",)


def test_without_a_live_run_the_headline_sums_up_what_ended() -> None:
    ended = (row(status="finished"), healthy_row(status="finished"))
    assert said(*ended).headline == "No run is live. 1 of 2 ended runs had a finding"
    assert said(ended[1]).headline == "No run is live. 1 ended run had no finding"


def test_what_is_hidden_is_said_and_offered() -> None:
    rows = (row(), healthy_row(status="finished"), healthy_row(status="crashed", run_id="c"))
    found = said(*rows, query=RunsQuery())
    assert found.hidden == "1 run that ended is hidden."
    assert found.sentences[-1] == "1 ended early in the last two days."
    assert [(item.label, item.count, item.on, item.href) for item in found.scopes] == [
        ("Current", 2, True, "/?status=live"),
        ("All", 3, False, "/?status=all"),
    ]
    assert [item.said for item in found.shares] == ["1 Critical", "1 Ended early"]
    assert said(*rows).hidden == ""


def test_filters_have_counts_toggle_and_there_are_no_empty_ones() -> None:
    query = RunsQuery(everything=True, health=("stalled", "watch"), words="llama", page=3)
    found = said(row(), stalled(), healthy_row(status="finished"), query=query)
    assert [(item.label, item.count, item.on) for item in found.filters] == [
        ("Any health", 3, False),
        ("Critical", 1, False),
        ("Stalled", 1, True),
        ("Watch", 0, True),
        ("Healthy", 1, False),
    ]
    assert [item.href for item in found.filters[:3]] == [
        "/?status=all&q=llama",
        "/?health=critical%2Cstalled%2Cwatch&status=all&q=llama",
        "/?health=watch&status=all&q=llama",
    ]


@pytest.mark.parametrize(
    "query",
    [
        RunsQuery(),
        RunsQuery(health=("critical", "ended"), everything=True, words="a b", project="x&y", page=7),
        RunsQuery(everything=False, by_project=True, sort="-loss"),
    ],
)
def test_an_address_holds_the_whole_query(query: RunsQuery) -> None:
    from urllib.parse import parse_qsl, urlsplit

    assert read_query(dict(parse_qsl(urlsplit(query.href(page=query.page)).query))) == query


@pytest.mark.parametrize(
    "given",
    [
        {
            "health": "nice,,\x00",
            "status": "?",
            "sort": "mood",
            "page": "-1",
            "group": "owner",
            "unknown": "1",
        },
        {"page": "\u0661"},
        {"page": "9" * 5000, "sort": "--loss"},
        {"q": " \x00\ud800 ", "project": "\n", "page": "1e3"},
    ],
)
def test_what_is_not_known_is_ignored(given: dict[str, str]) -> None:
    assert read_query(given) == RunsQuery()


def test_long_filters_are_cut() -> None:
    query = read_query({"q": "w " * 400, "project": "p" * 4000, "page": "9999999"})
    assert (query.words, len(query.project or ""), query.page) == ("w w w w w w w w", 1024, 100_000)


def test_a_head_sorts_by_its_bad_end_first_and_then_the_other_way() -> None:
    assert RunsQuery().sorted_by("loss") == "/?sort=-loss"
    assert RunsQuery(sort="-loss").sorted_by("loss") == "/?sort=loss"
    assert RunsQuery().sorted_by("headroom") == "/?sort=headroom"
    assert RunsQuery(sort="name").sorted_by("severity") == "/"
    assert RunsQuery().sorted_by("severity") == "/?sort=severity"


def test_a_run_that_is_too_young_is_not_called_healthy() -> None:
    young = healthy_row(status="running", first_step=0)
    assert words(replace(young, last_step=62)).sign.word == "Warming up"
    assert words(replace(young, last_step=63)).sign.word == "Healthy"
    assert words(replace(young, first_step=None, last_step=None)).sign.word == "Waiting"
    assert words(replace(young, last_step=5, status="finished")).sign.word == "Healthy"
    page = said(replace(young, last_step=5))
    assert (page.headline, page.sentences, page.title_glyph) == ("The live run is warming up", (), "\u2026")
    both = said(replace(young, last_step=5), healthy_row())
    assert both.headline == "1 live run is healthy, 1 is warming up"
    assert both.sentences == ("1 of 2 live runs are healthy.", "1 has too few steps to be judged.")
    assert [(item.label, item.count) for item in both.filters[1:]] == [("Warming up", 1), ("Healthy", 1)]
    sparse = replace(young, last_step=500, judged_steps=50)  # a step in ten is logged
    assert (words(sparse).sign.word, words(sparse).group) == ("Warming up", "warming_up")
    assert words(replace(sparse, judged_steps=64)).group == "healthy"
    assert words(row(status="running", first_step=300, last_step=310)).sign.word == "Critical"


def test_a_curve_that_does_not_change_lies_in_the_middle() -> None:
    assert 'd="M2.0 15.0L50.0 15.0L98.0 15.0"' in svg((2.0, 2.0, 2.0), width=100, height=30)


def test_a_row_in_words() -> None:
    found = words(row(last_loss=float("nan"), ranks=8, total_steps=840, tokens_per_s=12_345.6))
    assert (found.loss, found.loss_bad, found.since, found.seen) == ("NaN", True, "Since step 300", "2 s")
    assert found.href == "/runs/k3f9q2?at=300"
    assert found.sure == "93\u202f% sure"
    assert found.since_long == "Since step 300, 119 steps ago. Last loss NaN."
    dated = words(row(last_loss=2.0, onset_time=NOW - timedelta(hours=7)))
    assert dated.since_long == "Since step 300, 7 h ago. Last loss 2.000."
    assert (found.progress, found.progress_share, found.rate.text) == ("419 of 840", 50, "12,300")
    assert ", 8 ranks, " in found.about
    none = words(healthy_row(last_loss=None, last_step=None, last_seen=None))
    assert (none.loss, none.loss_bad, none.step, none.seen) == ("\u2013", False, "\u2013", "\u2013")
    assert none.rate.why == "The run logs no tokens or no step_time_s."


def test_zero_missing_and_little_are_three_things() -> None:
    assert words(healthy_row(clipped=0.0, headroom=0.0)).clipped.text == "0.0\u202f%"
    assert words(healthy_row(clipped=0.01)).clipped.text == "<0.1\u202f%"
    missing = words(healthy_row()).clipped
    assert (missing.text, missing.why) == ("\u2013", "Clipped values were not counted lately.")
    assert words(healthy_row(headroom=-1.26)).headroom.text == "\u22121.3"
    assert words(healthy_row(headroom=-0.01)).headroom.text == "0.0"


def test_numbers_are_bad_only_where_the_run_has_a_finding() -> None:
    assert words(row(clipped=4.1, headroom=0.0)).clipped.bad
    assert words(row(clipped=4.1, headroom=0.0)).headroom.bad
    assert not words(healthy_row(clipped=4.1, headroom=0.0)).headroom.bad
    assert not words(row(clipped=0.9, headroom=0.6)).clipped.bad


def test_data_is_late_by_the_runs_own_pace() -> None:
    late = healthy_row(last_seen=NOW - timedelta(seconds=100))
    assert words(replace(late, pace_s=15.0)).stale
    assert not words(replace(late, pace_s=25.0)).stale
    assert not words(late).stale
    assert not words(replace(late, pace_s=1.0, status="finished")).stale
    assert words(stalled()).stale


def test_a_recovered_run_says_so_instead_of_healthy() -> None:
    back = words(row(health="healthy"))
    assert (back.sign.word, back.since) == ("Recovered", "At step 300")
    assert back.diagnosis.startswith("Recovered: Activations of")
    assert "sp-after" not in back.sparkline
    assert words(row(health="healthy", last_loss=float("nan"))).sign.word == "Healthy"


def test_silence_and_a_crash_are_the_diagnosis_of_a_run_without_finding() -> None:
    silent = words(stalled(last_seen=NOW - timedelta(minutes=14)))
    assert (silent.diagnosis, silent.sign.word) == ("No data for 14 min", "Stalled")
    assert words(healthy_row(status="crashed")).diagnosis == "Crashed without a numerical cause"
    assert words(row(status="crashed")).diagnosis.startswith("Activations of")
    damaged = words(row(damaged="tile 3 of rank 0"))
    assert damaged.diagnosis == "Stored data of this run is damaged: tile 3 of rank 0 cannot be read."


def many(page: int) -> RunsView:
    rows = tuple(healthy_row(run_id=f"r{index}") for index in range(100 if page < 11 else 17))
    return runs_view(*rows, query=RunsQuery(everything=True, page=page), matched=1017, total=1017)


def test_pages_say_where_they_are_and_lead_on() -> None:
    turns = {page: runs_page(many(page), SAY).values["turn"] for page in (1, 10, 11)}
    assert (turns[1].text, turns[1].before, turns[1].after) == (
        "1 to 100 of 1,017 runs",
        "",
        "Show 100 more runs",
    )
    assert (turns[10].before, turns[10].after) == ("Show the 100 before", "Show 17 more runs")
    assert (turns[11].text, turns[11].after) == ("1,001 to 1,017 of 1,017 runs", "")
    assert turns[10].after_href == "/?status=all&page=11"


def test_rows_by_project_stand_under_its_name_and_counts() -> None:
    rows = (row(project="a"), healthy_row(project="b"), stalled(project="b"))
    counts = (ProjectCount("b", {"healthy": 700, "stalled": 1}), ProjectCount("a", {"critical": 1}))
    view = runs_view(*rows, query=RunsQuery(everything=True, by_project=True), projects=counts)
    blocks = runs_page(view, SAY).values["blocks"]
    assert [(block.project, block.total, len(block.lines)) for block in blocks] == [
        ("a", 1, 1),
        ("b", 701, 2),
    ]
    assert [(sign.word, count) for sign, count in blocks[1].counts] == [("Stalled", 1), ("Healthy", 700)]
    html = Shown().runs(view)
    assert html.count('scope="rowgroup"') == 2
    assert "701 runs" in html


def test_every_empty_state_says_why_and_what_to_do() -> None:
    show = Shown()
    project = show.runs(runs_view(total=9, query=RunsQuery(project=HOSTILE)))
    assert "No run in project &lt;script&gt;" in project
    assert "floatscope.watch(project=...)" in project
    nothing = show.runs(
        runs_view(query=RunsQuery(words="<b>", everything=False), counts={("healthy", "ended"): 3}, total=3)
    )
    assert "No run matches &lt;b&gt;." in nothing
    assert "Clear the filter" in nothing
    assert "Search ended runs too" in nothing


def test_the_table_says_how_it_is_sorted() -> None:
    html = Shown().runs(runs_view(row(), query=RunsQuery(everything=True, sort="headroom")))
    assert html.count("aria-sort=") == 1
    assert 'aria-sort="ascending"' in html

"""The overview in words: headline, counts, order, cards."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from floatscope_dashboards.overview import overview
from floatscope_dashboards.row_words import row_words
from floatscope_dashboards.views import RunRow
from tests.dashboards.sample import NOW, healthy_row, row, runs_view

LONG_AGO = NOW - timedelta(days=9)


def warning(**more: Any) -> RunRow:
    return row(**{"health": "warning", "run_id": "w", **more})


def stalled(**more: Any) -> RunRow:
    return healthy_row(**{"status": "stalled", "run_id": "s", **more})


def test_the_headline_counts_what_needs_somebody() -> None:
    rows = (row(run_id="a"), row(run_id="b"), warning(), stalled(), healthy_row())
    assert overview(runs_view(*rows)).headline == "2 runs need you now, 1 should be looked at, 1 went silent"
    assert overview(runs_view(row())).headline == "1 run needs you now"
    assert overview(runs_view(warning())).headline == "1 run should be looked at"
    assert overview(runs_view(stalled())).headline == "1 run went silent"
    assert overview(runs_view(healthy_row())).headline == "The live run is healthy"
    assert (
        overview(runs_view(healthy_row(), healthy_row(run_id="h2"))).headline == "All 2 live runs are healthy"
    )
    assert overview(runs_view()).headline == "No runs yet"


def test_without_a_live_run_the_headline_sums_up_what_ended() -> None:
    ended = (row(status="finished"), healthy_row(status="finished"))
    assert overview(runs_view(*ended)).headline == "No run is live; 1 of 2 ended runs had a finding"
    assert overview(runs_view(ended[1])).headline == "No run is live; 1 ended run, no finding"


def test_rows_come_worst_first_then_live_then_newest() -> None:
    rows = (
        healthy_row(run_id="healthy"),
        stalled(run_id="silent"),
        warning(run_id="warning"),
        row(run_id="critical-ended", status="crashed"),
        row(run_id="critical-old", last_seen=LONG_AGO),
        row(run_id="critical-new"),
        healthy_row(run_id="crashed", status="crashed"),
    )
    assert [item.run_id for item in overview(runs_view(*rows)).rows] == [
        "critical-new",
        "critical-old",
        "critical-ended",
        "warning",
        "crashed",
        "silent",
        "healthy",
    ]


def test_cards_are_the_three_worst_live_or_lately_ended_findings() -> None:
    rows = [row(run_id=f"r{index}", last_seen=NOW - timedelta(seconds=index)) for index in range(5)]
    assert [item.run_id for item in overview(runs_view(*rows)).cards] == ["r0", "r1", "r2"]
    ended = row(status="finished")
    assert overview(runs_view(ended)).cards == (ended,)
    assert overview(runs_view(row(status="finished", last_seen=LONG_AGO))).cards == ()
    assert overview(runs_view(healthy_row())).cards == ()


def test_filters_have_counts_and_no_empty_ones() -> None:
    found = overview(runs_view(row(), stalled(), healthy_row(status="finished")))
    assert [(item.key, item.count) for item in found.filters] == [
        ("all", 3),
        ("critical", 1),
        ("stalled", 1),
        ("healthy", 1),
        ("live", 2),
    ]


def test_more_runs_than_shown_are_said() -> None:
    assert "Showing 1 of 300 runs." in overview(runs_view(row(), total=300)).sub


def test_a_row_in_words() -> None:
    words = row_words(row(last_loss=float("nan")), now=NOW)
    assert (words.loss, words.loss_bad, words.since, words.seen) == ("NaN", True, "Since step 300", "2 s")
    assert words.href == "/runs/k3f9q2?at=300"
    assert words.sure == "93\u202f%"
    assert words.since_long == "Since step 300, 119 steps ago. Last loss NaN."
    none = row_words(healthy_row(last_loss=None, last_step=None, last_seen=None), now=NOW)
    assert (none.loss, none.loss_bad, none.step, none.seen) == ("\u2013", False, "\u2013", "\u2013")


def test_a_recovered_run_says_so_instead_of_healthy() -> None:
    back = row(health="healthy")
    words = row_words(back, now=NOW)
    assert (words.sign.word, words.since) == ("Recovered", "At step 300")
    assert words.diagnosis.startswith("Recovered: Activations of")
    assert "sp-after" not in words.sparkline
    assert row_words(row(health="healthy", last_loss=float("nan")), now=NOW).sign.word == "Healthy"


def test_silence_and_a_crash_are_the_diagnosis_of_a_run_without_finding() -> None:
    silent = stalled(last_seen=NOW - timedelta(minutes=14))
    assert row_words(silent, now=NOW).diagnosis == "No data for 14 min"
    assert row_words(silent, now=NOW).sign.word == "Stalled"
    crashed = healthy_row(status="crashed")
    assert row_words(crashed, now=NOW).diagnosis == "Crashed without a numerical cause"
    assert row_words(row(status="crashed"), now=NOW).diagnosis.startswith("Activations of")

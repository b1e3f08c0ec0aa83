"""Grouping of alerts into incidents, the filters, and the address of the alerts page."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from floatscope_dashboards.alert_filters import MOST, MOST_UNFOLDED, SHOWN, Asked, asked
from floatscope_dashboards.alerts_list import facets, listing
from floatscope_dashboards.family_words import FAMILIES
from floatscope_dashboards.incidents import (
    LONGEST_STEPS,
    NEAR_STEPS,
    SPREAD_STEPS,
    AlertLine,
    Incident,
    Wanted,
    counts,
    grouped,
)

START = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)


def line(number: int, onset: int | None, **changed: Any) -> AlertLine:
    values: dict[str, Any] = {
        "id": f"a{number}",
        "run": "r",
        "segment": 0,
        "severity": "warning",
        "state": "firing",
        "family": "data",
        "rule": "FS501",
        "began": START + timedelta(minutes=number),
    }
    return AlertLine(number=number, onset=onset, **{**values, **changed})


def onsets(incidents: tuple[Incident, ...]) -> list[list[int | None]]:
    return sorted(([alert.onset for alert in one.alerts] for one in incidents), key=lambda one: one[0] or 0)


def test_what_began_close_together_is_one_whatever_it_is() -> None:
    found = grouped(
        [
            line(1, 500, family="activation"),
            line(2, 500 + NEAR_STEPS, family="optimization"),
            line(3, 500 + 2 * NEAR_STEPS + 1, family="hardware"),
        ]
    )
    assert onsets(found) == [[500, 600], [701]]


def test_a_fault_that_spreads_stays_one_and_another_kind_beside_it_does_not_join() -> None:
    found = grouped(
        [
            line(1, 0),
            line(2, SPREAD_STEPS),
            line(3, 2 * SPREAD_STEPS),
            line(4, SPREAD_STEPS + NEAR_STEPS + 1, family="kernel"),
            line(5, 3 * SPREAD_STEPS + 1),
        ]
    )
    assert onsets(found) == [[0, 1000, 2000], [1101], [3001]]


def test_an_incident_has_an_end() -> None:
    found = grouped([line(n, n * NEAR_STEPS) for n in range(120)])
    assert [one[-1] - one[0] for one in onsets(found) if one[0] is not None and one[-1] is not None] == [
        LONGEST_STEPS,
        LONGEST_STEPS,
        1_700,
    ]


def test_runs_and_segments_are_apart_and_so_is_what_names_no_onset() -> None:
    found = grouped(
        [
            line(1, 5),
            line(2, 5, run="other"),
            line(3, 5, segment=1),
            line(4, None),
            line(5, None),
            line(6, None, family="hardware"),
        ]
    )
    assert sorted(sorted(alert.number for alert in one.alerts) for one in found) == [
        [1],
        [2],
        [3],
        [4, 5],
        [6],
    ]


def test_the_order_in_which_alerts_come_makes_no_difference() -> None:
    alerts = [line(n, (n * 7919) % 20_000, family=("data", "kernel")[n % 2]) for n in range(200)]
    there, back = grouped(alerts), grouped(reversed(alerts))
    assert [one.key for one in there] == [one.key for one in back]
    assert [one.alerts for one in there] == [one.alerts for one in back]
    assert sum(len(one.alerts) for one in there) == 200


def test_one_run_with_very_many_alerts_is_few_incidents() -> None:
    found = grouped([line(n, 100_000 + 2 * n) for n in range(1_267)])
    assert [len(one.alerts) for one in found] == [1_267]


def test_the_worst_of_what_presses_most_speaks_for_an_incident() -> None:
    (found,) = grouped(
        [
            line(1, 5, severity="critical", state="recovered"),
            line(2, 6, severity="warning", state="firing"),
            line(3, 7, severity="critical", state="acknowledged", owner="Priya"),
        ]
    )
    assert (found.state, found.severity, found.lead.id, found.key) == ("firing", "warning", "a2", "a1")
    assert found.owners == ()
    (found,) = grouped([line(n, n, state="acknowledged", owner=who) for n, who in enumerate("abab", 1)])
    assert (found.owners, found.began) == (("a", "b"), START + timedelta(minutes=1))


def test_worst_first_then_newest_within_each_state() -> None:
    found = grouped(
        [
            line(1, 0, run="old"),
            line(2, 0, run="new"),
            line(3, 0, run="bad", severity="critical"),
            line(4, 0, run="held", severity="critical", state="silenced"),
            line(5, 0, run="mine", severity="critical", state="acknowledged"),
        ]
    )
    assert [one.run for one in found] == ["bad", "new", "old", "mine", "held"]


SOME = grouped(
    [
        line(1, 0, run="one", severity="critical"),
        line(2, 0, run="two", family="kernel", rule="FS601"),
        line(3, 0, run="three", state="acknowledged", owner="me"),
        line(4, 0, run="four", state="resolved", owner="you", severity="critical"),
    ]
)


@pytest.mark.parametrize(
    ("wanted", "runs"),
    [
        (Wanted(), {"one", "two", "three", "four"}),
        (Wanted(states=frozenset(("firing",))), {"one", "two"}),
        (Wanted(severities=frozenset(("critical",))), {"one", "four"}),
        (Wanted(families=frozenset(("kernel",))), {"two"}),
        (Wanted(run="three"), {"three"}),
        (Wanted(rule="FS601"), {"two"}),
        (Wanted(mine=True, reader="me"), {"three"}),
        (Wanted(run="one", rule="FS601"), set()),
    ],
)
def test_filters(wanted: Wanted, runs: set[str]) -> None:
    assert {one.run for one in SOME if wanted.takes(one)} == runs
    assert wanted.is_all == (len(runs) == 4)


def test_counts_say_what_choosing_a_value_would_show() -> None:
    wanted = Wanted(states=frozenset(("firing",)), severities=frozenset(("critical",)))
    found = counts(SOME, wanted)
    assert found["state"] == {"firing": 1, "resolved": 1}
    assert found["severity"] == {"critical": 1, "warning": 1}
    assert found["run"] == {"one": 1}
    for value in ("critical", "warning"):
        chosen = Wanted(states=wanted.states, severities=frozenset((value,)))
        assert sum(chosen.takes(one) for one in SOME) == found["severity"][value]


def test_each_state_shows_so_many_and_says_how_many_there_are() -> None:
    many = grouped([line(n, 0, run=f"r{n}", state="firing" if n % 3 else "recovered") for n in range(300)])
    found = listing(many, Asked())
    assert [(one.state, len(one.incidents), one.total) for one in found.sections] == [
        ("firing", SHOWN, 200),
        ("recovered", SHOWN, 100),
    ]
    assert found.total == 300
    more = listing(many, Asked().with_more())
    assert [len(one.incidents) for one in more.sections] == [75, 75]
    assert len(facets(many, Asked()).runs) == 100


def read(query: list[tuple[str, str]]) -> Asked:
    return asked(query, families=FAMILIES, reader="me")


def test_an_address_comes_back_as_it_was() -> None:
    chosen = "state=firing,silenced&severity=critical&family=data,kernel&run=r3&rule=FS203&mine=1"
    href = f"/alerts/a1?{chosen}&show=75&unfold=a1,b2"
    query = [tuple(part.split("=")) for part in href.partition("?")[2].split("&")]
    assert read([(key, value) for key, value in query]).href("a1") == href
    assert read([]).href() == "/alerts"
    assert read([("lang", "zh-CN"), ("unknown", "x")]).href() == "/alerts?lang=zh-CN"


def test_all_values_of_a_filter_are_none_and_a_form_may_repeat_its_keys() -> None:
    every = [("state", state) for state in ("firing", "acknowledged", "recovered", "silenced", "resolved")]
    assert read(every).href() == "/alerts"
    assert read(every[:2]).href() == "/alerts?state=firing,acknowledged"


@pytest.mark.parametrize(
    "query",
    [
        [("state", "nonsense"), ("severity", "info"), ("family", "<script>")],
        [("run", "a/../b"), ("rule", "x y"), ("mine", "maybe"), ("unfold", "a b")],
        [("show", "-5")],
        [("show", "9" * 40)],
        [("show", "١٢"), ("run", ""), ("state", ""), ("mine", "")],
    ],
)
def test_what_an_address_says_wrongly_is_left_out(query: list[tuple[str, str]]) -> None:
    assert read(query) == read([])


def test_an_address_asks_for_no_more_than_is_shown() -> None:
    assert read([("show", "99999")]).show == MOST
    unfolded = read([("unfold", ",".join(f"i{n}" for n in range(99)))])
    assert len(unfolded.unfolded) == MOST_UNFOLDED
    assert unfolded.toggled("i0").unfolded[0] == "i1"
    assert unfolded.toggled("new").unfolded[-1] == "new"
    assert unfolded.without_filters().unfolded == unfolded.unfolded

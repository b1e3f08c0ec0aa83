"""From findings to alerts: one alert per finding, told once when raised, when worse, when recovered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import alerting
from floatscope_server.database import Database
from floatscope_server.store import alerts, runs
from tests.server.samples import finding


class Case:
    """One run whose verdicts are given one after the other."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = 0.0
        with database.write() as c:
            runs.create(c, "r", RunInfo(name="r"), summary="", now=0.0)

    def verdict(self, *findings: dict[str, Any]) -> list[tuple[str, str]]:
        """(alert, event) of what people are told."""
        self.now += 1
        with self.database.write() as c:
            run = runs.get(c, "r")
            changes = alerting.apply(c, run=run.id, run_id="r", findings=findings, now=self.now)
        return [(change.alert_id, change.event) for change in changes if not change.muted]

    def alert(self, alert_id: str = "f1") -> alerts.AlertRecord:
        with self.database.read() as c:
            return alerts.get(c, alert_id)

    def events(self, alert_id: str = "f1") -> Sequence[str]:
        with self.database.read() as c:
            return [event.event for event in alerts.history(c, [alert_id])[alert_id]]


@pytest.fixture
def case(sqlite_database: Database) -> Case:
    return Case(sqlite_database)


def test_raised_once_however_often_it_is_seen(case: Case) -> None:
    assert case.verdict(finding()) == [("f1", "raised")]
    assert case.verdict(finding()) == []
    assert case.verdict(finding(affected_tensors=20, confidence=0.99)) == []
    alert = case.alert()
    assert (alert.state, alert.first_seen, alert.last_seen) == ("firing", 1.0, 3.0)
    assert alert.finding["affected_tensors"] == 20
    assert case.events() == ["raised"]


def test_info_makes_no_alert_until_it_is_a_warning(case: Case) -> None:
    assert case.verdict(finding(severity="info")) == []
    assert case.verdict(finding(severity="warning")) == [("f1", "raised")]


def test_worse_by_severity_and_by_state(case: Case) -> None:
    case.verdict(finding(severity="warning"))
    assert case.verdict(finding(severity="critical")) == [("f1", "worsened")]
    assert case.verdict(finding(severity="critical", state="worsened")) == [("f1", "worsened")]
    assert case.verdict(finding(severity="critical", state="worsened")) == []
    assert case.events() == ["raised", "severity_changed", "worsened", "worsened"]


def test_recovery_and_return(case: Case) -> None:
    case.verdict(finding())
    over = finding(state="recovered", resolved_step=40)
    assert case.verdict(over) == [("f1", "recovered")]
    assert case.alert().state == "recovered"
    assert case.verdict(over) == []
    assert case.alert().last_seen == 1.0
    assert case.verdict(finding()) == [("f1", "raised")]
    assert case.alert().state == "firing"


def test_raised_and_over_within_one_batch_is_told_as_both(case: Case) -> None:
    assert case.verdict(finding(state="recovered")) == [("f1", "raised"), ("f1", "recovered")]
    assert case.alert().state == "recovered"


def test_a_replaced_finding_closes_quietly_and_its_heir_is_told(case: Case) -> None:
    case.verdict(finding())
    heir = finding(id="f2", cause="amax_history_poisoning")
    assert case.verdict(finding(state="replaced", replaced_by="f2"), heir) == [("f2", "raised")]
    assert case.alert().state == "resolved"
    assert case.events()[-1] == "replaced"
    assert case.verdict(finding(id="f3", state="replaced", replaced_by="f2"), heir) == []


def test_a_finding_that_is_no_longer_made_is_withdrawn(case: Case) -> None:
    case.verdict(finding())
    assert case.verdict() == []
    assert case.alert().state == "resolved"
    assert case.events()[-1] == "withdrawn"
    case.verdict()
    assert case.events().count("withdrawn") == 1


def test_another_cause_is_on_record_and_not_told(case: Case) -> None:
    case.verdict(finding())
    assert case.verdict(finding(cause="activation_outlier_growth", family="activation")) == []
    assert case.alert().cause == "activation_outlier_growth"
    assert "cause_changed" in case.events()


def test_what_a_person_resolved_stays_so_until_it_gets_worse(case: Case) -> None:
    case.verdict(finding(severity="warning"))
    with case.database.write() as c:
        alerts.set_state(c, "f1", "resolved")
    assert case.verdict(finding(severity="warning", affected_tensors=99)) == []
    assert case.verdict(finding(severity="critical")) == [("f1", "worsened")]
    assert case.alert().state == "firing"


def test_recovery_of_a_resolved_alert_is_not_told(case: Case) -> None:
    case.verdict(finding())
    with case.database.write() as c:
        alerts.set_state(c, "f1", "resolved")
    assert case.verdict(finding(state="recovered")) == []
    assert case.alert().state == "resolved"


def test_a_muted_alert_is_not_told(case: Case) -> None:
    case.verdict(finding())
    with case.database.write() as c:
        alerts.mute(c, "f1", 3.0)
    assert case.verdict(finding(state="worsened")) == []
    case.now = 5.0
    assert case.verdict(finding(state="recovered")) == [("f1", "recovered")]


def test_the_same_finding_id_in_two_runs_makes_two_alerts(case: Case) -> None:
    case.verdict(finding())
    with case.database.write() as c:
        runs.create(c, "other", RunInfo(), summary="", now=0.0)
        other = runs.get(c, "other").id
        found = alerting.apply(c, run=other, run_id="other", findings=[finding()], now=1.0)
        again = alerting.apply(c, run=other, run_id="other", findings=[finding(state="worsened")], now=2.0)
    assert [change.alert_id for change in (*found, *again)] == [f"f1-{other}", f"f1-{other}"]
    assert case.alert().run_id == "r"

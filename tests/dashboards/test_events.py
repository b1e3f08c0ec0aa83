"""The events card and the evidence card as data."""

from __future__ import annotations

from datetime import timedelta

from floatscope_dashboards.events_log import events_log
from floatscope_dashboards.evidence import evidence_card
from floatscope_dashboards.findings import IN_ENGLISH
from floatscope_dashboards.run_facts import AlertFacts, AlertLine, RunFacts, StepEvent
from tests.dashboards.sample import NOW, finding, run_view, verdict
from tests.dashboards.showing import Shown


def line(minutes_ago: float, event: str, by: str = "engine", note: str = "") -> AlertLine:
    return AlertLine(NOW - timedelta(minutes=minutes_ago), event, by, note)


def test_events_are_newest_first_with_step_person_and_note() -> None:
    alert = AlertFacts(
        "a1", "f1", "acknowledged", "critical", "Scale too old.", 300,
        lines=(line(30, "raised"), line(20, "acknowledge", "anna", "on it"), line(5, "worsened")),
    )  # fmt: skip
    events = (
        StepEvent("nonfinite", 352, NOW - timedelta(minutes=25)),
        StepEvent("throttled", 310, None, 320),
        StepEvent("baseline", time=NOW - timedelta(minutes=1), by="ben"),
    )
    found = events_log(run_view(facts=RunFacts(alerts=(alert,), events=events)), IN_ENGLISH)
    texts = [item.text for item in found]
    assert texts[:5] == [
        "ben set another baseline",
        "Got worse: Scale too old",
        "anna acknowledged: Scale too old",
        "First loss that is not finite",
        "Scale too old",
    ]
    assert found[2].note == "on it"
    assert (found[4].step, found[4].kind) == (300, "crit")
    assert texts[-1] == "A GPU ran slower than it could, until step 320"
    assert found[-1].time is None


def test_a_finding_without_an_alert_is_listed_by_its_step() -> None:
    found = events_log(run_view(verdict(finding(severity="info", summary="Just so."))), IN_ENGLISH)
    assert ("Just so", 300, None) in [(item.text, item.step, item.time) for item in found]


def test_the_first_eight_are_shown_and_the_others_folded() -> None:
    alert = AlertFacts(
        "a1", "f1", "firing", "critical", "S", 3, lines=tuple(line(n, "note", "x") for n in range(20))
    )
    long = finding(evidence=[{"signal": "loss", "value": 1.0, "step": n} for n in range(20)])
    html = Shown().run(run_view(verdict(long), facts=RunFacts(alerts=(alert,))))
    events = html[html.index('id="events-h"') :]
    assert events[: events.index("<details")].count("<li>") == 8
    assert "All 21" in events


def test_rules_are_clean_unable_or_partly_able() -> None:
    rules = {"FS101": "Bad input", "FS201": "Stale scale", "FS202": "Poison", "FS412": "Held out"}
    found = verdict(finding(rule="FS201"))
    found["not_checked"] = [
        {"rule": "FS412", "needs": ["eval_loss"], "why": "not logged"},
        {"rule": "FS202", "needs": ["a", "b", "c", "d", "e"], "why": "missing on 8 of 47 tensors"},
    ]
    card = evidence_card(found, IN_ENGLISH, rules=rules)
    assert [item.rule for item in card.clean] == ["FS101", "FS202"]
    assert [(item.rule, item.title) for item in card.unable] == [("FS412", "Held out")]
    assert [(item.rule, item.needs) for item in card.partly] == [("FS202", "a, b, c, d and 1 more")]

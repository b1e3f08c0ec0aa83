"""The states of an alert are as docs/alerts.md says, whatever comes in whatever order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_server.telling import states
from floatscope_server.telling.decide import Heard, Situation, decide
from floatscope_server.telling.notice import PASSED, RECOVERED, REPEATED, WORSENED
from floatscope_server.telling.quiet_hours import QuietHours
from floatscope_server.telling.states import EVENTS, SEVERITIES, STATES, Standing, after, rank_of
from floatscope_server.telling.teller import after_telling
from floatscope_server.telling.terms import Terms

DOCS = Path(__file__).parents[2] / "docs" / "alerts.md"
BEFORE = {
    "firing": Standing("firing", "warning"),
    "silenced": Standing("silenced", "warning"),
    "acknowledged": Standing("acknowledged", "warning", settled="warning"),
    "recovered": Standing("recovered", "warning"),
    "resolved": Standing("resolved", "warning", settled="warning"),
    "not the cause": Standing("resolved", "warning", settled="warning", rejected=True),
}


def table() -> Iterator[tuple[str, str, str]]:
    """(event, state before, state after) of every cell of the page's table."""
    lines = [line.strip("| ").split(" | ") for line in DOCS.read_text().splitlines() if line.startswith("|")]
    (head,) = [at for at, line in enumerate(lines) if line[0] == "event"]
    columns = lines[head][1:]
    assert columns == list(BEFORE)
    for line in lines[head + 2 : head + 2 + 14]:
        for column, cell in zip(columns, line[1:], strict=True):
            yield line[0].strip("`"), column, cell


@pytest.mark.parametrize("covered", [False, True])
@pytest.mark.parametrize(("event", "before", "said"), list(table()))
def test_the_page_says_what_happens(event: str, before: str, said: str, covered: bool) -> None:
    severity = {"more severe than dealt with": "critical", "other change of severity": "info"}.get(event)
    name = "severity_changed" if severity else event
    assert name in EVENTS
    expected = said.replace("fires", "silenced" if covered else "firing")
    assert after(BEFORE[before], name, severity=severity, covered=covered).state == expected


def test_the_page_knows_every_event() -> None:
    named = {event for event, _before, _said in table()}
    assert named - set(EVENTS) == {"more severe than dealt with", "other change of severity"}
    assert set(EVENTS) - named == {"severity_changed"}


def test_an_acknowledged_severity_that_comes_and_goes_stays_acknowledged() -> None:
    at = after(Standing("firing", "critical"), "acknowledge")
    for severity in ("warning", "critical", "info", "critical"):
        at = after(at, "severity_changed", severity=severity)
    assert at.state == "acknowledged"


def test_recovery_takes_an_acknowledgement_back_and_a_rejection_not() -> None:
    acknowledged = after(Standing("firing", "critical"), "acknowledge")
    assert after(after(acknowledged, "recovered"), "raised").state == "firing"
    rejected = after(Standing("firing", "critical"), "not_the_cause")
    assert after(after(rejected, "recovered"), "raised").state == "resolved"
    assert after(after(rejected, "reopen"), "recovered").rejected is False


@pytest.mark.parametrize("closing", ["resolve", "not_the_cause"])
def test_what_was_closed_and_is_over_does_not_fire_when_it_is_opened_again(closing: str) -> None:
    closed = after(Standing("recovered", "critical"), closing)
    assert after(closed, "reopen", is_past=True) == Standing("recovered", "critical")
    assert after(closed, "reopen").state == "firing"
    assert after(Standing("recovered", "critical"), "reopen", is_past=True).state == "firing"


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(SEVERITIES), st.booleans())))
def test_any_order_is_possible(events: list[tuple[str, str, bool]]) -> None:
    at = states.began("warning", covered=False)
    for event, severity, covered in events:
        was = at
        at = after(at, event, severity=severity, covered=covered)
        assert at.state in STATES
        assert at.severity == severity
        if event == "reopen":
            assert at == Standing("silenced" if covered else "firing", severity)
        if was.state in ("acknowledged", "resolved") and at.state == "firing" and event != "reopen":
            was_over = event == "raised"
            assert was_over or rank_of(severity) > rank_of(was.settled or was.severity)
        if at.state == "acknowledged":
            assert at.settled is not None


TERMS = (
    Terms(),
    Terms(min_severity="critical", escalate_s=1800.0, repeat_s=3600.0),
    Terms(repeat_s=900.0, quiet=QuietHours.of_json({"from": "22:00", "to": "06:00"})),
    Terms(min_severity="info", group_s=0.0, flap_s=0.0, repeat_s=60.0),
)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(TERMS))
def test_a_channel_hears_what_it_must_and_nothing_of_what_is_dealt_with(seed: int, terms: Terms) -> None:
    rng = random.Random(seed)
    now = 1.8e9 + rng.random() * 86_400
    at, since, heard = states.began("warning", covered=False), now, Heard()
    told: list[tuple[str, float]] = []
    for _ in range(40):
        event = rng.choice((*EVENTS, "nothing", "nothing", "nothing"))
        if event != "nothing":
            severity = rng.choice(SEVERITIES[1:]) if event == "severity_changed" else None
            was, at = at, after(at, event, severity=severity)
            if at.state == "firing" != was.state:
                since = now
                if event == "raised":
                    again = "recovered" if heard.told == "firing" else heard.told
                    heard = replace(heard, told=again, raises=heard.raises + 1)
        for _look in range(2):
            decision = decide(Situation(at.state, at.severity, since), heard, terms, now)
            if decision.event is not None:
                assert at.state == ("recovered" if decision.event in (RECOVERED, PASSED) else "firing")
                assert at.state == "recovered" or terms.wants(at.severity)
                if terms.quiet is not None and terms.quiet.until(now) is not None:
                    assert "critical" in (at.severity, heard.severity)
                if decision.event == REPEATED:
                    assert now - (heard.told_at or 0.0) >= (terms.repeat_s or 0.0)
                if decision.event == WORSENED:
                    assert heard.worse or rank_of(at.severity) > rank_of(heard.severity or "")
                told.append((decision.event, now))
                heard = after_telling(heard, decision.event, severity=at.severity, now=now)
            elif decision.due is not None:
                assert decision.due > now
                heard = replace(heard, due=decision.due, waits=decision.waits)
        repeated = decide(Situation(at.state, at.severity, since), heard, terms, now)
        assert repeated.event is None, "one look tells all there is"
        now += rng.choice((0.0, 1.0, 40.0, 700.0, 4000.0))
    if at.state == "firing" and terms.wants(at.severity):
        late = now + 3 * 86_400 + (11 - now / 3600 % 24) * 3600  # 11 o'clock: not quiet
        last = decide(Situation(at.state, at.severity, since), heard, terms, late)
        knows = heard.told == "firing" and rank_of(heard.severity or "") >= rank_of(at.severity)
        assert knows or last.event is not None


def test_one_alert_is_not_told_twice_at_the_same_time() -> None:
    heard = after_telling(Heard(), "raised", severity="critical", now=100.0)
    assert decide(Situation("firing", "critical", 100.0), heard, Terms(repeat_s=60.0), 100.0).event is None

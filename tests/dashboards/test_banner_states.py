"""What the banner says of people's acts and of baselines, and what it offers to whom."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from floatscope_dashboards.banner import Banner, banner
from floatscope_dashboards.findings import IN_ENGLISH
from floatscope_dashboards.run_facts import AlertFacts, AlertLine, BaselineMatch, RunFacts
from floatscope_dashboards.views import RunView
from tests.dashboards.sample import NOW, finding, run_view, verdict
from tests.dashboards.showing import Shown
from tests.dashboards.test_banner import quiet


def shown(view: RunView) -> Banner:
    return banner(view, IN_ENGLISH)


def facts(state: str = "firing", *lines: AlertLine, may_write: bool = True, **more: Any) -> RunFacts:
    alert = AlertFacts("alert-1", "f1", state, "critical", lines=lines, **more)
    return RunFacts(alerts=(alert,), may_write=may_write)


def kinds(found: Banner) -> list[tuple[str, str]]:
    return [(act.kind, act.text) for act in found.acts]


def test_a_firing_finding_can_be_acknowledged_and_rejected() -> None:
    found = shown(run_view(facts=facts()))
    assert kinds(found) == [
        ("acknowledge", "Acknowledge"),
        ("not_the_cause", "Not the cause"),
        ("link", "Incident report"),
    ]
    assert found.acts[0].targets == ("alert-1",)
    assert found.acted == ""


def test_who_may_only_read_gets_the_report_and_no_action() -> None:
    found = shown(run_view(facts=facts(may_write=False)))
    assert kinds(found) == [("link", "Incident report")]


@pytest.mark.parametrize(
    ("state", "event", "note", "words", "first"),
    [
        ("acknowledged", "acknowledge", "on it", "Acknowledged by anna 5 min ago: on it", "reopen"),
        ("acknowledged", "acknowledge", "", "Acknowledged by anna 5 min ago.", "reopen"),
        ("resolved", "not_the_cause", "cable", "anna says that this is not the cause: cable", "reopen"),
        ("resolved", "resolve", "", "Closed by anna.", "reopen"),
    ],
)
def test_what_people_did_is_said(state: str, event: str, note: str, words: str, first: str) -> None:
    line = AlertLine(NOW - timedelta(minutes=5), event, "anna", note)
    found = shown(run_view(facts=facts(state, line)))
    assert found.acted == words
    assert found.acts[0].kind == first


def test_a_silence_and_held_back_messages_are_said_with_their_end() -> None:
    ends = NOW + timedelta(hours=2)
    silenced = shown(run_view(facts=facts("silenced", silence_ends=ends)))
    assert silenced.acted == "Silenced until 2026-11-24 13:36 UTC."
    muted = shown(run_view(facts=facts("acknowledged", mute_until=ends)))
    assert muted.acted == "Acknowledged. Its messages are held back until 2026-11-24 13:36 UTC."
    over = shown(run_view(facts=facts("firing", mute_until=NOW - timedelta(hours=1))))
    assert over.acted == ""


def test_several_findings_are_acknowledged_at_once_and_put_in_relation() -> None:
    second = finding(id="f2", severity="warning", onset_step=312, summary="Node 5 throttled.")
    third = finding(id="f3", severity="warning", onset_step=290, summary="The loss is off.")
    alerts = tuple(AlertFacts(f"alert-{n}", f"f{n}", "firing", "warning") for n in (1, 2, 3))
    found = shown(run_view(verdict(finding(), second, third), facts=RunFacts(alerts=alerts, may_write=True)))
    assert found.title.endswith(", and 2 other findings")
    assert found.acts[0].text == "Acknowledge all 3"
    assert set(found.acts[0].targets) == {"alert-1", "alert-2", "alert-3"}
    assert {item.note for item in found.folded} == {
        "from step 312, 12 steps after the first",
        "from step 290, 10 steps before the first",
    }


def test_an_uncertain_finding_is_not_called_wrong_but_known() -> None:
    found = shown(run_view(verdict(finding(confidence=0.4)), facts=facts()))
    assert ("not_the_cause", "I know the cause") in kinds(found)


def test_what_recovered_can_be_closed_or_opened_again_and_says_how_long_it_lasted() -> None:
    back = verdict(finding(state="recovered", resolved_step=380), status="healthy")
    found = shown(run_view(back, facts=facts("recovered"), **quiet()))
    assert kinds(found)[:2] == [("resolve", "Close now"), ("reopen", "Reopen")]
    assert found.cost == "It lasted 80 steps."


def test_a_silent_run_can_be_ended_by_who_may_send_and_silenced_by_who_may_write() -> None:
    silent = quiet(status="stalled", last_seen=NOW - timedelta(minutes=14))
    both = shown(run_view(verdict(), facts=RunFacts(may_write=True, may_ingest=True, pace_s=3.1), **silent))
    assert [act.kind for act in both.acts] == ["finish", "silence"]
    assert "This run usually reports every 3 s." in both.why
    quick = shown(run_view(verdict(), facts=RunFacts(pace_s=0.4), **silent))
    assert "usually reports" not in quick.why
    assert shown(run_view(verdict(), facts=RunFacts(), **silent)).acts == ()


def test_without_a_baseline_the_best_match_is_offered_to_who_may_write() -> None:
    match = BaselineMatch("base-1", "llama <b>bf16</b>", "BF16", 418, same_data=True)
    view = run_view(verdict(), facts=RunFacts(match=match, may_write=True), **quiet())
    found = shown(view)
    assert (found.state, found.slim, found.match) == ("no_baseline", True, match)
    assert found.title == "No finding in 420 steps, but there is no baseline to compare with"
    html = Shown().run(view)
    assert "llama &lt;b&gt;bf16&lt;/b&gt;" in html
    assert "same data order" in html
    assert 'data-act="baseline"' in html
    assert 'data-act="choose_baseline"' in html
    reader = Shown().run(run_view(verdict(), facts=RunFacts(match=match), **quiet()))
    assert "same data order" in reader
    assert "data-act" not in reader


def test_checks_are_counted_from_the_rules_there_are() -> None:
    rules = {f"FS{n}": f"Rule {n}" for n in range(101, 111)}
    gaps = [
        {"rule": "FS101", "needs": ["eval_loss"], "why": "not logged"},
        {"rule": "FS102", "needs": ["*/input amax"], "why": "missing on 8 of 47 tensors"},
    ]
    found = shown(
        run_view({**verdict(), "not_checked": gaps}, facts=RunFacts(rules=rules), **quiet(baseline="b"))
    )
    assert found.big_note == "9 of 10 checks"
    assert "1 check could not look" in found.why


def test_tokens_time_and_loss_since_the_onset_are_said_where_they_are_known() -> None:
    known = RunFacts(
        onset_time=NOW - timedelta(hours=7, minutes=14), tokens_since_onset=2.41e9, loss_since_onset=0.83
    )
    found = shown(run_view(facts=known)).facts
    assert found is not None
    assert found.since_ago == "7 h 14 min"
    assert "119 steps, 2.41\u202fB tokens trained since." in found.since_notes
    assert "Loss +0.830 nats since the onset." in found.since_notes


def test_damaged_data_is_said_above_any_verdict() -> None:
    words = "Stored data of this run is damaged: steps 3 to 9 cannot be read."
    for view in (run_view(damaged="steps 3 to 9"), run_view(verdict(), damaged="steps 3 to 9", **quiet())):
        assert shown(view).notes == (words,)
        assert words in Shown().run(view)

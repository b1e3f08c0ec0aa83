"""From findings to alerts: one alert per finding, told once when raised, when worse, when recovered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floatscope_server.diagnosis import Judgement
from floatscope_server.store import runs
from floatscope_server.store.verdicts import SavedEngine
from tests.server.samples import finding, verdict
from tests.server.telling import START, Bench, new_bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with new_bench(tmp_path) as found:
        yield found


def test_raised_once_however_often_it_is_seen(bench: Bench) -> None:
    assert bench.verdict(finding()) == [("raised", "f1")]
    bench.now += 20
    assert bench.verdict(finding()) == []
    assert bench.alert().last_seen == START + 20
    assert bench.verdict(finding(affected_tensors=20, confidence=0.99)) == []
    alert = bench.alert()
    assert (alert.state, alert.first_seen, alert.firing_since) == ("firing", START, START)
    assert alert.finding["affected_tensors"] == 20
    assert bench.events() == ["raised"]


def test_a_verdict_that_changes_nothing_asks_nothing_about_alerts(bench: Bench) -> None:
    many = [finding(id=f"f{number}") for number in range(20)]
    bench.verdict(*many)
    with bench.statements() as seen:
        bench.verdict(*many)
    about = ("alert", "channel", "outbox", "telling", "silence")
    asked = [s for s in seen if any(f" {table}" in s for table in about)]
    assert asked == [s for s in asked if "outbox" in s]  # only the bench's own look at the messages
    with bench.statements() as seen:
        bench.verdict(*many[:-1], finding(id="f19", affected_tensors=3))
    assert len([s for s in seen if "UPDATE alert " in s]) == 1


def test_a_new_process_asks_once_and_tells_nothing_twice(bench: Bench) -> None:
    bench.verdict(finding())
    bench.outcome = bench.new_outcome()
    assert bench.verdict(finding()) == []
    assert bench.events() == ["raised"]


def test_what_another_worker_judged_meanwhile_is_seen(bench: Bench) -> None:
    here, there = bench.outcome, bench.new_outcome()
    bench.verdict(finding())
    bench.outcome = there
    bench.verdict(finding(), finding(id="f2"))
    bench.outcome = here
    assert bench.verdict(finding(state="recovered"), finding(id="f2", state="recovered")) == [
        ("recovered", "f1", "f2")
    ]


def test_what_could_not_be_stored_is_made_up_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.verdict()
    with monkeypatch.context() as patched:
        patched.setattr("floatscope_server.store.verdicts.save_engine", lambda *_args: 1 / 0)
        with bench.database.write() as c:
            run = runs.get(c, "r", lock=True)
            saved = SavedEngine(0, 0, 0, b"")
            judged = Judgement(verdict([finding()]), judged=True, saved=saved)
            news = bench.outcome.store(c, run, judged, now=bench.now)
            runs.change(c, run.id, {"diagnosis_error": None})
        bench.outcome.tell(run, news)
    assert bench.told() == []
    assert bench.verdict(finding()) == [("raised", "f1")]


def test_info_makes_no_alert_until_it_is_a_warning(bench: Bench) -> None:
    assert bench.verdict(finding(severity="info")) == []
    bench.verdict(finding(severity="warning"))
    assert bench.events() == ["raised"]


def test_worse_by_severity_and_by_state(bench: Bench) -> None:
    bench.verdict(finding(severity="warning"))
    assert bench.pass_time(60) == [("raised", "f1")]
    assert bench.verdict(finding(severity="critical")) == [("worsened", "f1")]
    assert bench.verdict(finding(severity="critical", state="worsened")) == [("worsened", "f1")]
    assert bench.verdict(finding(severity="critical", state="worsened")) == []
    assert bench.events() == ["raised", "severity_changed", "worsened", "worsened"]


def test_recovery_and_return(bench: Bench) -> None:
    bench.verdict(finding())
    over = finding(state="recovered", resolved_step=40)
    bench.now += 60
    assert bench.verdict(over) == [("recovered", "f1")]
    assert bench.state() == "recovered"
    bench.now += 3600
    assert bench.verdict(over) == []
    assert bench.alert().last_seen == START
    assert bench.verdict(finding()) == [("raised", "f1")]
    assert bench.state() == "firing"
    assert bench.events() == ["raised", "recovered", "raised"]


def test_raised_and_over_within_one_batch_is_one_message(bench: Bench) -> None:
    assert bench.verdict(finding(state="recovered")) == [("passed", "f1")]
    assert bench.state() == "recovered"
    assert bench.events() == ["raised", "recovered"]


def test_a_replaced_finding_closes_quietly_and_its_heir_is_told(bench: Bench) -> None:
    bench.verdict(finding())
    heir = finding(id="f2", cause="amax_history_poisoning")
    assert bench.verdict(finding(state="replaced", replaced_by="f2"), heir) == [("raised", "f2")]
    assert bench.state() == "resolved"
    assert bench.history()[-1].note == "replaced by f2"
    assert bench.verdict(finding(id="f3", state="replaced", replaced_by="f2"), heir) == []


def test_a_finding_that_is_no_longer_made_is_withdrawn_and_may_return(bench: Bench) -> None:
    bench.verdict(finding())
    assert bench.verdict() == []
    assert bench.state() == "resolved"
    bench.verdict()
    assert bench.events() == ["raised", "withdrawn"]
    bench.now += 3600
    assert bench.verdict(finding()) == [("raised", "f1")]
    assert (bench.state(), bench.events()[-1]) == ("firing", "raised")


def test_another_cause_is_on_record_and_not_told(bench: Bench) -> None:
    bench.verdict(finding())
    assert bench.verdict(finding(cause="activation_outlier_growth", family="activation")) == []
    assert bench.alert().cause == "activation_outlier_growth"
    assert "cause_changed" in bench.events()


def test_what_a_person_resolved_stays_so_until_it_gets_worse(bench: Bench) -> None:
    bench.verdict(finding(severity="warning"))
    bench.act("f1", "resolve")
    assert bench.verdict(finding(severity="warning", affected_tensors=99)) == []
    assert bench.verdict(finding(severity="critical")) == [("raised", "f1")]
    assert bench.state() == "firing"


def test_recovery_of_a_resolved_alert_is_not_told_and_its_return_is(bench: Bench) -> None:
    bench.verdict(finding())
    bench.act("f1", "resolve")
    assert bench.verdict(finding(state="recovered")) == []
    assert bench.state() == "resolved"
    bench.now += 3600
    assert bench.verdict(finding()) == [("raised", "f1")]


def test_what_a_person_rejected_does_not_come_back_unless_worse(bench: Bench) -> None:
    bench.verdict(finding(severity="warning"))
    bench.act("f1", "not_the_cause")
    bench.verdict(finding(severity="warning", state="recovered"))
    assert bench.verdict(finding(severity="warning")) == []
    assert bench.state() == "resolved"
    assert bench.pass_time(7200) == []
    assert bench.verdict(finding(severity="critical")) == [("raised", "f1")]


def test_a_muted_alert_is_told_when_the_mute_ends(bench: Bench) -> None:
    bench.verdict(finding(severity="warning"))
    bench.pass_time(60)
    bench.act("f1", "note", note="later", sets_mute=True, mute_until=bench.now + 3600)
    assert bench.verdict(finding(severity="critical")) == []
    assert bench.pass_time(3599) == []
    assert bench.pass_time(2) == [("worsened", "f1")]


def test_messages_again_before_the_mute_ends(bench: Bench) -> None:
    bench.verdict(finding())
    bench.act("f1", "note", note="later", sets_mute=True, mute_until=bench.now + 3600)
    assert bench.verdict(finding(state="recovered")) == []
    bench.act("f1", "note", note="now", sets_mute=True)
    assert bench.pass_time(0) == [("recovered", "f1")]


def test_the_same_finding_id_in_two_runs_makes_two_alerts(bench: Bench) -> None:
    bench.verdict(finding())
    assert bench.verdict(finding(), run="other") == [("raised", "f1-2")]
    assert bench.verdict(finding(state="worsened"), run="other") == [("worsened", "f1-2")]
    assert bench.alert().run_id == "r"
    assert bench.alert("f1-2").run_id == "other"

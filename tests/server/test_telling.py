"""Who is told when: groups, repeats, escalation, quiet hours, coming and going, clocks that jump."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from floatscope_server import migrate, tables
from floatscope_server.alerting import Touched
from floatscope_server.database import Database
from floatscope_server.store import alerts, outbox, runs
from floatscope_server.telling.duty import LOOK_S
from floatscope_server.telling.quiet_hours import QuietHours
from tests.server.samples import finding
from tests.server.telling import FLAP_S, GROUP_S, HOUR, MINUTE, START, Bench, new_bench

NIGHT = QuietHours.of_json({"from": "22:00", "to": "07:00"})


def warning(number: int = 1, **changes: Any) -> dict[str, Any]:
    return finding(id=f"f{number}", severity="warning", **changes)


def critical(number: int = 1, **changes: Any) -> dict[str, Any]:
    return finding(id=f"f{number}", severity="critical", **changes)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with new_bench(tmp_path) as found:
        yield found


def test_alerts_of_one_judgement_are_one_message_and_the_worst_leads(database: Database) -> None:
    bench = Bench(database)
    assert bench.verdict(warning(1), critical(2), warning(3)) == [("raised", "f2", "f1", "f3")]
    (said,) = bench.said()
    assert said.body["events"] == ["raised"] * 3
    assert bench.pass_time(2 * HOUR) == []


def test_warnings_wait_for_others_of_their_run_and_not_of_another(database: Database) -> None:
    bench = Bench(database)
    assert bench.verdict(warning(1)) == []
    bench.now += 10
    assert bench.verdict(warning(1), warning(2)) == []
    assert bench.verdict(warning(7), run="other") == []
    assert bench.pass_time(GROUP_S - 11) == []
    assert bench.pass_time(1) == [("raised", "f1", "f2")]
    assert bench.pass_time(10) == [("raised", "f7")]


def test_a_critical_alert_takes_waiting_warnings_with_it(bench: Bench) -> None:
    bench.verdict(warning(1))
    bench.now += 5
    assert bench.verdict(warning(1), critical(2)) == [("raised", "f2", "f1")]
    assert bench.pass_time(HOUR) == []


def test_a_message_lists_a_part_of_many_and_counts_the_rest(bench: Bench) -> None:
    (told,) = bench.verdict(*(critical(number) for number in range(50)))
    assert (told[0], len(told) - 1, bench.said()[0].body["more"]) == ("raised", 20, 30)
    over = [critical(number, state="recovered") for number in range(50)]
    assert len(bench.verdict(*over)) == 1


def test_over_before_anybody_was_told_is_one_message(bench: Bench) -> None:
    bench.verdict(warning())
    bench.now += 5
    assert bench.verdict(warning(state="recovered")) == [("passed", "f1")]
    assert bench.said()[0].body["reason"] == "it was over before anybody was told"
    assert bench.pass_time(HOUR) == []


def test_repeats_name_their_number_and_the_next_until_acknowledged(database: Database) -> None:
    bench = Bench(database)
    bench.channel("team", repeat_s=HOUR)
    bench.verdict(critical())
    assert bench.pass_time(2.5 * HOUR) == [("repeated", "f1")] * 2
    last = bench.said()[-1]
    assert (last.at, last.body["repeat_number"], last.body["next_repeat"]) == (
        START + 2 * HOUR,
        2,
        START + 3 * HOUR,
    )
    bench.act("f1", "acknowledge")
    assert bench.pass_time(5 * HOUR) == []
    bench.act("f1", "reopen")
    assert bench.pass_time(0.9 * HOUR) == []
    assert bench.pass_time(0.2 * HOUR) == [("repeated", "f1")]
    assert bench.said()[-1].body["repeat_number"] == 1


@pytest.mark.parametrize("closed", ["resolve", "not_the_cause"])
def test_what_was_closed_and_is_opened_again_while_it_goes_on_is_told_as_if_it_began(
    bench: Bench, closed: str
) -> None:
    bench.channel("boss", escalate_s=HOUR)
    assert bench.verdict(critical()) == [("raised", "f1")]
    bench.pass_time(2 * HOUR)
    bench.act("f1", closed)
    assert bench.pass_time(2 * HOUR) == []
    bench.act("f1", "reopen")
    assert bench.pass_time(MINUTE) == [("raised", "f1")]
    assert bench.told("boss") == [("escalated", "f1")]
    bench.pass_time(HOUR)
    assert bench.told("boss") == [("escalated", "f1")] * 2
    assert bench.verdict(critical(state="recovered")) == [("recovered", "f1")]


def test_what_was_acknowledged_or_is_over_is_not_told_when_it_is_opened_again(bench: Bench) -> None:
    bench.verdict(critical(1), critical(2))
    bench.act("f1", "acknowledge")
    bench.act("f2", "resolve")
    bench.verdict(critical(1), critical(2, state="recovered"))
    bench.told()
    for alert, state in (("f1", "firing"), ("f2", "recovered")):
        assert bench.act(alert, "reopen").state == state
    assert bench.pass_time(HOUR) == []


def test_a_run_that_ended_is_not_repeated_until_it_is_resumed(bench: Bench) -> None:
    bench.channel("team", repeat_s=HOUR)
    bench.verdict(critical())
    for status, told in (("crashed", []), ("running", [("repeated", "f1")] * 2)):
        with bench.database.write() as c:
            runs.change(c, runs.get(c, "r").id, {"status": status})
        bench.told()
        assert bench.pass_time(1.5 * HOUR) == told


def test_a_list_shows_the_newest_deliveries_and_lines_also_of_who_did_not_lead(bench: Bench) -> None:
    bench.channel("team", repeat_s=MINUTE)
    bench.verdict(critical(1), warning(2))
    bench.pass_time(6 * MINUTE)
    with bench.statements() as seen, bench.database.read() as c:
        found = outbox.deliveries(c, ["f1", "f2"], newest=3)
        lines = alerts.history(c, ["f1", "f2"], newest=1)
    assert len([s for s in seen if s.startswith("SELECT")]) == 2
    assert [delivery.event for delivery in found["f2"]] == ["repeated"] * 3
    assert found["f1"] == found["f2"]
    with bench.database.read() as c:
        assert outbox.deliveries(c, ["f2"], newest=100)["f2"][0].event == "raised"
    assert [len(lines[key]) for key in ("f1", "f2")] == [1, 1]


def test_repeats_of_one_run_go_together_worst_and_oldest_first(bench: Bench) -> None:
    bench.channel("team", repeat_s=HOUR)
    bench.verdict(warning(1))
    bench.pass_time(MINUTE)
    bench.verdict(warning(1), critical(2))
    bench.now += MINUTE
    bench.verdict(warning(1), critical(2), critical(3))
    bench.verdict(critical(9), run="other")
    bench.told()
    assert bench.pass_time(1.1 * HOUR) == [("repeated", "f2", "f3", "f1"), ("repeated", "f9")]
    assert bench.pass_time(HOUR) == [("repeated", "f2", "f3", "f1"), ("repeated", "f9")]


def test_escalation_only_if_nobody_acknowledges(database: Database) -> None:
    bench = Bench(database)
    bench.channel("chief", escalate_s=30 * MINUTE, min_severity="critical")
    bench.verdict(critical(1), critical(2), warning(3))
    bench.pass_time(20 * MINUTE)
    bench.act("f1", "acknowledge")
    bench.pass_time(2 * HOUR)
    (said,) = bench.said("chief")
    assert (said.event, said.alerts, said.at) == ("escalated", ["f2"], START + 30 * MINUTE)
    assert said.body["reason"] == "nobody acknowledged it for 30 min"
    over = [critical(1, state="recovered"), critical(2, state="recovered"), warning(3)]
    bench.told()
    assert bench.verdict(*over) == [("recovered", "f1", "f2")]
    assert bench.said("chief")[-1].alerts == ["f2"]


def test_quiet_hours_hold_warnings_and_one_summary_tells_what_still_fires(database: Database) -> None:
    bench = Bench(database)
    bench.channel("team", quiet=NIGHT)
    bench.now = datetime(2027, 1, 15, 21, 0, tzinfo=timezone.utc).timestamp()
    assert bench.verdict(warning(1)) == []
    assert bench.pass_time(HOUR) == [("raised", "f1")]
    bench.now += MINUTE
    assert bench.verdict(warning(1, state="recovered"), warning(2), warning(3), critical(4)) == [
        ("raised", "f4")
    ]
    bench.verdict(warning(7), run="other")
    bench.now += HOUR
    bench.verdict(warning(1, state="recovered"), warning(2), warning(3, state="recovered"), critical(4))
    assert bench.pass_time(5 * HOUR) == []
    morning = bench.pass_time(6 * HOUR)
    assert sorted(morning) == [("recovered", "f1"), ("summary", "f2", "f7")]
    summary = next(said for said in bench.said() if said.event == "summary")
    assert datetime.fromtimestamp(summary.at, timezone.utc).hour == 7
    assert (summary.body["events"], summary.body["reason"]) == (["raised", "raised"], "quiet hours are over")
    assert bench.pass_time(6 * HOUR) == []


def test_a_warning_that_turns_critical_in_quiet_hours_is_told(bench: Bench) -> None:
    bench.channel("team", quiet=NIGHT)
    bench.now = datetime(2027, 1, 15, 23, 0, tzinfo=timezone.utc).timestamp()
    assert bench.verdict(warning()) == []
    bench.pass_time(HOUR)
    assert bench.verdict(critical()) == [("raised", "f1")]
    assert bench.verdict(critical(state="recovered")) == [("recovered", "f1")]


def test_an_alert_that_comes_and_goes_is_told_once_an_interval_with_the_count(database: Database) -> None:
    bench = Bench(database)
    bench.channel("team", repeat_s=HOUR)
    for _ in range(17):
        bench.verdict(critical())
        bench.pass_time(2 * MINUTE)
        bench.verdict(critical(state="recovered"))
        bench.pass_time(2 * MINUTE)
    raised = [said for said in bench.said() if said.event == "raised"]
    assert [round((said.at - START) / MINUTE) for said in raised] == [0, 60]
    assert raised[1].body["raises"] == [15]
    assert raised[1].body["reason"] == "it began 15 times since it was last told"
    assert bench.events().count("raised") == 17


def test_an_alert_that_came_back_and_stays_is_told_when_it_is_stable(bench: Bench) -> None:
    bench.verdict(critical())
    bench.now += MINUTE
    bench.verdict(critical(state="recovered"))
    bench.now += MINUTE
    assert bench.verdict(critical()) == []
    assert bench.pass_time(FLAP_S - 3 * MINUTE) == []
    assert bench.pass_time(3 * MINUTE) == [("raised", "f1")]


@pytest.mark.parametrize("jump", [6 * HOUR, 90 * 24 * HOUR])
def test_after_hours_of_standstill_each_alert_is_one_message(bench: Bench, jump: float) -> None:
    bench.channel("team", repeat_s=5 * MINUTE)
    bench.verdict(critical(1), warning(2))
    bench.verdict(warning(3), run="other")
    bench.told()
    bench.now += jump
    bench.duty = bench.new_duty()
    assert bench.pass_time(0) == [("repeated", "f1", "f2"), ("raised", "f3")]
    assert bench.pass_time(4 * MINUTE) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_went_back_does_not_silence(bench: Bench, restarted: bool) -> None:
    bench.channel("team", repeat_s=HOUR)
    bench.channel("chief", escalate_s=HOUR)
    bench.verdict(critical())
    bench.verdict(warning(3), run="other")
    bench.pass_time(1.0)
    bench.now -= 48 * HOUR
    if restarted:
        bench.duty = bench.new_duty()
    assert bench.pass_time(GROUP_S + 1) == [("raised", "f3")]
    assert bench.pass_time(HOUR) == [("repeated", "f1"), ("repeated", "f3")]
    assert [said.event for said in bench.said("chief")] == ["escalated", "escalated"]


def test_a_new_channel_is_not_told_the_past(bench: Bench) -> None:
    bench.verdict(critical())
    bench.channel("late", repeat_s=HOUR)
    bench.pass_time(3 * HOUR)
    assert bench.told("late") == []
    bench.verdict(critical(), critical(2))
    assert bench.told("late") == [("raised", "f2")]


def test_terms_that_change_hold_at_once(bench: Bench) -> None:
    bench.verdict(critical())
    bench.pass_time(HOUR)
    bench.channel("team", repeat_s=30 * MINUTE)
    assert bench.pass_time(0) == [("repeated", "f1")]
    bench.channel("team", repeat_s=30 * MINUTE, enabled=False)
    assert bench.pass_time(2 * HOUR) == []
    bench.channel("team")
    assert bench.pass_time(2 * HOUR) == []


def test_a_channel_of_another_project_hears_nothing(bench: Bench) -> None:
    bench.channel("other", projects=("q",))
    bench.verdict(critical())
    bench.pass_time(HOUR)
    assert bench.told("other") == []


def test_two_workers_at_once_tell_nothing_twice(database: Database) -> None:
    bench = Bench(database)
    bench.channel("team", repeat_s=HOUR)
    for number in range(6):
        bench.verdict(critical(number), run=f"run{number}")
    bench.now += 1.5 * HOUR
    errors: list[BaseException] = []

    def work() -> None:
        try:
            bench.new_duty().look()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    repeated = [said.alerts for said in bench.said() if said.event == "repeated"]
    assert sorted(repeated) == [[f"f{number}"] for number in range(6)]


def test_a_message_that_is_queued_already_is_not_queued_again(bench: Bench) -> None:
    bench.verdict(critical())
    with bench.database.write() as c:
        run = runs.get(c, "r")
        c.exec_driver_sql("update telling set told = null, messages = 0")
        assert bench.new_teller().tell(c, run, Touched(changed=["f1"]), now=bench.now) == 0
    assert len(bench.said()) == 1


def test_a_database_of_before_goes_on_with_what_its_channels_heard(database: Database) -> None:
    bench = Bench(database)
    bench.verdict(critical(1))
    bench.verdict(critical(7), run="other")
    bench.act("f7", "acknowledge")
    migrate.downgrade(database, revision="0006")
    migrate.upgrade(database)
    bench.outcome = bench.new_outcome()
    assert bench.verdict(critical(1, state="recovered")) == [("recovered", "f1")]
    assert bench.verdict(critical(7, state="recovered"), run="other") == [("recovered", "f7")]
    with database.read() as c:
        found = outbox.deliveries(c, ["f1"])["f1"]
    assert [delivery.event for delivery in found] == ["raised", "recovered"]


def test_a_worker_without_the_duty_tells_nothing(bench: Bench) -> None:
    asked = threading.Event()

    def may_work() -> bool:
        asked.set()
        return False

    bench.verdict(warning())
    bench.now += HOUR
    idle = bench.new_duty(may_work=may_work)
    idle.start()
    assert asked.wait(10)
    idle.stop()
    assert bench.said() == []


def test_a_run_that_cannot_be_told_holds_up_no_other(bench: Bench) -> None:
    bench.verdict(warning(1))
    bench.pass_time(1)
    bench.verdict(warning(2), run="other")
    with bench.database.write() as c:
        c.execute(update(tables.alert).where(tables.alert.c.id == "f1").values(finding_json="{damaged"))
    bench.now += HOUR
    assert bench.duty.look() == LOOK_S
    assert bench.told() == [("raised", "f2")]
    bench.silence("all")
    assert bench.duty.look() == LOOK_S
    assert bench.state("f2") == "silenced"


def test_the_thread_sleeps_until_something_is_due_and_ends(bench: Bench) -> None:
    bench.verdict(warning())
    assert bench.duty.look() == GROUP_S
    looks: list[float] = []
    look = bench.duty.look

    def counted() -> float:
        looks.append(bench.now)
        return look()

    bench.duty.look = counted  # type: ignore[method-assign]
    bench.duty.start()
    bench.now += GROUP_S
    bench.duty.wake()
    for _ in range(200):
        if bench.said():
            break
        threading.Event().wait(0.02)
    assert [said.event for said in bench.said()] == ["raised"]
    assert bench.duty.alive()
    bench.duty.stop()
    assert not bench.duty.alive()
    assert len(looks) <= 5

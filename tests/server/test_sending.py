"""The sender: when it tries again, order, slow channels beside others, clocks, crashes, what is forgotten."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from floatscope_server.database import Database
from floatscope_server.notify import retry, sender
from floatscope_server.notify.posting import Letter
from floatscope_server.notify.webhook import DeliveryFailed
from floatscope_server.store import channels, outbox, sending
from tests.server.live import wait_for
from tests.server.outage import Outage, down, pauses, takes

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def _looks_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of these tests is driven by what the sender waits for."""
    monkeypatch.setattr(sender, "IDLE_S", 60.0)


def refuses(_letter: Letter) -> int | None:
    raise DeliveryFailed("answered 404", status=404, refused=True)


def test_the_schedule_is_1_2_5_15_30_s_then_every_5_min(sqlite_database: Database) -> None:
    outage = Outage(sqlite_database)
    outage.queue("r1", "raised")
    outage.pass_time(1500)
    assert pauses(outage.times()) == [1, 2, 5, 15, 30, 300, 300, 300, 300]
    assert outage.states("r1") == ["pending"]


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_waits_are_longer_by_chance_and_never_shorter(chance: float) -> None:
    for tries, wait in ((1, 1.0), (5, 30.0), (99, 300.0)):
        found = retry.wait_s(
            tries=tries, refusals=0, age_s=0.0, refused=False, retry_after=None, chance=chance
        )
        assert found == pytest.approx(wait * (1 + 0.2 * chance))


def test_a_message_is_given_up_after_a_day_of_tries_and_not_by_a_clock_that_jumps(
    sqlite_database: Database,
) -> None:
    outage = Outage(sqlite_database)
    outage.queue("r1", "raised")
    outage.pass_time(60)
    outage.now += 10 * DAY_S
    outage.pass_time(60)
    assert outage.states("r1") == ["pending"]
    outage.pass_time(2 * 3600)
    assert outage.states("r1") == ["dead"]
    assert outage.shown()[0].attempts == retry.GIVE_UP_TRIES


def test_a_clock_that_was_ahead_holds_nothing_back(sqlite_database: Database) -> None:
    outage = Outage(sqlite_database)
    outage.now += 30 * DAY_S
    outage.queue("r1", "raised")
    outage.pass_time(400)
    outage.queue("s1", "raised")
    outage.now -= 30 * DAY_S
    outage.answers["ch"] = takes
    outage.pass_time(60)
    assert outage.states("r1", "s1") == ["sent", "sent"]


def test_a_refusal_is_tried_a_few_times_over_half_an_hour_and_then_dead(sqlite_database: Database) -> None:
    outage = Outage(sqlite_database)
    outage.answers["ch"] = refuses
    outage.queue("r1", "raised")
    outage.queue("r1", "recovered")
    outage.pass_time(30 + 300 + 1800 + 10)
    assert pauses(outage.times("raised")) == [30, 300, 1800]
    assert outage.states("r1") == ["dead", "pending"]
    assert outage.times("recovered")
    (dead,) = outage.shown("ch", "dead")
    assert (dead.attempts, dead.error) == (4, "answered 404")


def test_an_outage_before_does_not_count_as_refusals(sqlite_database: Database) -> None:
    outage = Outage(sqlite_database)
    outage.queue("r1", "raised")
    outage.pass_time(1000)
    outage.answers["ch"] = refuses
    outage.pass_time(400)
    assert outage.states("r1") == ["pending"]


def test_a_receiver_that_asks_to_wait_is_left_alone_by_every_message(sqlite_database: Database) -> None:
    outage = Outage(sqlite_database)

    def busy(_letter: Letter) -> int | None:
        raise DeliveryFailed("answered 429", status=429, retry_after=120.0)

    outage.answers["ch"] = busy
    outage.queue("r1", "raised")
    outage.queue("s1", "worsened")
    outage.pass_time(100)
    assert len(outage.posts) == 1
    outage.answers["ch"] = takes
    outage.pass_time(40)
    assert outage.states("r1", "s1") == ["sent", "sent"]


def test_messages_of_one_run_never_overtake_each_other(database: Database) -> None:
    outage = Outage(database)
    for alert, event in (("r1", "raised"), ("r2", "raised"), ("s1", "raised"), ("r1", "recovered")):
        outage.queue(alert, event)
    outage.pass_time(20)
    assert {alert for _, _, alert, _ in outage.posts} == {"r1", "s1"}  # r2 waits behind r1
    outage.posts.clear()
    outage.answers["ch"] = takes
    outage.pass_time(400)
    of_r = [(alert, event) for _, _, alert, event in outage.posts if alert != "s1"]
    assert of_r == [("r1", "raised"), ("r2", "raised"), ("r1", "recovered")]


def test_a_channel_that_is_off_keeps_its_messages(database: Database) -> None:
    outage = Outage(database)
    outage.queue("r1", "raised")
    with database.write() as c:
        record = channels.get(c, "ch")
        channels.put(c, type(record)(**{**vars(record), "enabled": False}))
    outage.pass_time(10)
    assert outage.posts == []
    assert outage.states("r1") == ["pending"]


def test_once_is_once_per_channel(database: Database) -> None:
    outage = Outage(database, "ch", "other")
    assert outage.queue("r1", "raised", once="r1:1") is not None
    assert outage.queue("r1", "raised", once="r1:1") is None
    assert outage.queue("r1", "raised", once="r1:1", channel="other") is not None
    assert outage.queue("r1", "raised") is not None
    assert len(outage.states("r1")) == 3


def test_hanging_channels_do_not_hold_up_the_others(database: Database) -> None:
    outage = Outage(database, "quick", "hangs", "hangs-too", "hangs-as-well")
    free = threading.Event()

    def hang(letter: Letter) -> int | None:
        free.wait(20)
        return down(letter)

    outage.answers = {**dict.fromkeys(outage.answers, hang), "quick": takes}
    for name in ("hangs", "hangs-too", "hangs-as-well"):
        for alert in ("r1", "s1"):
            outage.queue(alert, "raised", channel=name)
    for alert in ("r1", "s1"):
        outage.queue(alert, "raised", channel="quick")
    outage.sender.start()
    try:
        wait_for(lambda: [item.state for item in outage.shown("quick")] == ["sent", "sent"])
        wait_for(lambda: len(outage.posts) == 5)  # of each that hangs one, never two at once
        assert outage.sender.alive()
    finally:
        free.set()
        outage.sender.stop()


def test_more_hanging_channels_than_threads_take_turns(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "PAUSE_S", (0.0,))
    outage = Outage(sqlite_database, *(f"ch{n}" for n in range(8)))
    for name in outage.answers:
        for alert in ("r1", "r2", "s1"):
            outage.queue(alert, "raised", channel=name)
    for _ in range(16):
        outage.sender.turn()
    assert sorted(channel for _, channel, _, _ in outage.posts) == sorted([*outage.answers] * 2)


def test_only_the_process_that_may_send_sends(sqlite_database: Database) -> None:
    outage = Outage(sqlite_database)
    outage.answers["ch"] = takes
    mine = False
    outage.sender._may_send = lambda: mine
    outage.queue("r1", "raised")
    assert outage.sender.turn() == sender.IDLE_S
    assert outage.posts == []
    mine = True
    outage.sender.turn()
    assert outage.states("r1") == ["sent"]


def test_a_post_that_could_not_be_recorded_is_not_posted_again(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(sqlite_database)
    outage.answers["ch"] = takes
    outage.queue("r1", "raised")
    healthy = sending.sent

    def full(*_args: Any, **_named: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(sending, "sent", full)
    for _ in range(3):
        with pytest.raises(OSError, match="full"):
            outage.sender.turn()
    monkeypatch.setattr(sending, "sent", healthy)
    outage.sender.turn()
    assert len(outage.posts) == 1
    assert outage.states("r1") == ["sent"]


def test_a_message_that_arrives_while_another_thread_looks_is_not_sent_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(database)
    posting, may_end = threading.Event(), threading.Event()

    def slow(_letter: Letter) -> int | None:
        posting.set()
        assert may_end.wait(10)
        return 200

    outage.answers["ch"] = slow
    outage.queue("r1", "raised")
    first = threading.Thread(target=outage.sender.turn)
    first.start()
    assert posting.wait(10)
    look = sending.waiting

    def waiting(*args: Any, **named: Any) -> Any:
        found = look(*args, **named)
        may_end.set()
        first.join(10)
        return found

    monkeypatch.setattr(sending, "waiting", waiting)
    assert outage.sender.turn() > 0
    assert outage.states("r1") == ["sent"]
    assert len(outage.posts) == 1


def test_a_process_that_died_after_a_post_sends_it_again_and_records_it_once(database: Database) -> None:
    outage = Outage(database)

    def dies(_letter: Letter) -> int | None:
        raise KeyboardInterrupt

    outage.answers["ch"] = dies
    number = outage.queue("r1", "raised")
    with pytest.raises(KeyboardInterrupt):
        outage.sender.turn()
    with database.write() as c:  # two processes may have sent it
        sending.sent(c, number or 0, now=1.0)
        sending.sent(c, number or 0, now=2.0)
        sending.failed(c, number or 0, error="late", due=3.0)
    (item,) = outage.shown()
    assert (item.state, item.attempts, item.finished, item.error) == ("sent", 1, 1.0, None)


def test_a_message_that_cannot_be_sent_does_not_stop_the_others(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(sqlite_database)

    def breaks(letter: Letter) -> int | None:
        if letter.body["alert"] == "r1":
            raise ValueError(f"bad: {letter.url}")
        return 200

    outage.answers["ch"] = breaks
    outage.queue("r1", "raised")
    outage.queue("s1", "raised")
    outage.pass_time(5)
    assert outage.states("r1", "s1") == ["pending", "sent"]
    assert "secret" not in caplog.text + str(outage.shown()[-1].error)


def test_a_database_that_is_away_does_not_end_the_sender(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender, "AWAY_S", 0.01)
    outage = Outage(sqlite_database)
    outage.answers["ch"] = takes
    outage.queue("r1", "raised")
    healthy = sending.waiting
    failures = iter([True, True])

    def waiting(*args: Any, **named: Any) -> Any:
        if next(failures, False):
            raise OSError("the disk is away")
        return healthy(*args, **named)

    monkeypatch.setattr(sending, "waiting", waiting)
    outage.sender.start()
    with caplog.at_level(logging.ERROR):
        wait_for(lambda: outage.states("r1") == ["sent"])
    assert outage.sender.alive()
    outage.sender.stop()
    assert "the outbox could not be read or written" in caplog.text


def test_a_dead_message_is_sent_again_when_somebody_asks(database: Database) -> None:
    outage = Outage(database)
    outage.answers["ch"] = refuses
    number = outage.queue("r1", "raised") or 0
    outage.pass_time(3000)
    assert outage.states("r1") == ["dead"]
    outage.answers["ch"] = takes
    with database.write() as c:
        assert sending.revive(c, "ch", number, now=outage.now).state == "pending"
    outage.pass_time(5)
    assert outage.states("r1") == ["sent"]
    with database.write() as c:
        assert sending.revive(c, "ch", number, now=outage.now).state == "sent"


def test_old_finished_messages_are_forgotten_and_waiting_ones_never(database: Database) -> None:
    outage = Outage(database, "ch", "off")
    outage.answers = {"ch": takes, "off": down}
    for _ in range(6):
        outage.queue("r1", "raised")
    outage.queue("s1", "raised", channel="off")
    outage.pass_time(10)
    outage.now += 40 * DAY_S
    outage.queue("r2", "raised")
    outage.pass_time(10)
    with database.write() as c:
        before = outage.now - sender.KEEP_S
        assert sending.forget(c, finished_before=before, newest=100, limit=4) == 4
        assert sending.forget(c, finished_before=before, newest=100, limit=4) == 2
        assert sending.forget(c, finished_before=before, newest=100, limit=4) == 0
        assert outbox.deliveries(c, ["r1"])["r1"] == []
        assert sending.counts(c) == {"pending": 1, "sent": 1, "dead": 0}
        assert sending.forget(c, finished_before=0.0, newest=0, limit=4) == 1
    assert [item.state for item in outage.shown("off")] == ["pending"]


def test_the_sender_forgets_by_itself(sqlite_database: Database) -> None:
    outage = Outage(sqlite_database)
    outage.answers["ch"] = takes
    outage.queue("r1", "raised")
    outage.sender.turn()
    outage.now += 40 * DAY_S
    outage.sender.turn()
    assert outage.shown() == []


def test_a_channel_is_removed_only_when_nobody_is_telling_it(database: Database) -> None:
    outage = Outage(database)
    told = threading.Event()

    def remove() -> None:
        with database.write() as c:
            channels.remove(c, "ch")
        told.set()

    with database.write() as c:
        assert [channel.id for channel in channels.listed(c, lock=True)] == ["ch"]
        remover = threading.Thread(target=remove)
        remover.start()
        assert not told.wait(0.2)
        outbox.add(c, channel="ch", alert="r1", event="raised", body={}, now=outage.now)
    remover.join(10)
    assert outage.shown() == []
    with database.read() as c:
        assert channels.listed(c) == []


def test_two_processes_that_both_send_for_a_moment_lose_nothing_and_record_once(database: Database) -> None:
    outage = Outage(database)
    outage.answers["ch"] = takes
    for n in range(12):
        outage.queue("r1" if n % 2 else "s1", f"e{n}")
    other = sender.Sender(database=database, post=outage.post, env_url=None, clock=lambda: outage.now)
    for each in (outage.sender, other):
        each.start()
    try:
        wait_for(lambda: outage.states("r1", "s1") == ["sent"] * 12)
    finally:
        for each in (outage.sender, other):
            each.stop()
    assert {event for _, _, _, event in outage.posts} == {f"e{n}" for n in range(12)}
    assert {item.attempts for item in outage.shown()} == {1}

"""Back-tests: what another setting would have done, without harm to anything that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.rule_settings import RuleSetting
from floatscope_server import backtest
from floatscope_server.backtest import BackTests
from floatscope_server.backtest_result import Firing, Result, RunResult
from floatscope_server.callers import SERVER
from floatscope_server.database import Database
from floatscope_server.diagnosis import Diagnosis
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import alerts, backtests, runs, verdicts
from floatscope_server.store.alerts import AlertEvent
from floatscope_server.store.backtests import BacktestRecord
from tests.server.conftest import Serve
from tests.server.live import Client, wait_for
from tests.server.ruled_runs import ONSET, SPIKE, services_on, trained, trained_over_http

LOUDER: dict[str, Any] = {"enabled": True, "severity": None, "thresholds": {"spike_nats": 1.0}}
OFF: dict[str, Any] = {"enabled": False, "severity": None, "thresholds": {}}
SOON = 2e9  # later than anything these tests store


class Bench:
    """A back-tester without its thread, whose sleeps are only noted."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.slept: list[float] = []
        self.during: Callable[[], object] = lambda: None
        self.tests = BackTests(
            database=services.database,
            diagnosis=Diagnosis(engines=Engine, tensor_tables=services.tensor_tables),
            book=services.rule_book,
            sleep=self._sleep,
            clock=lambda: SOON,
        )

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.during()

    def ask(self, setting: dict[str, Any], name: str = "bt", **changes: Any) -> None:
        request = {"rule": SPIKE, "project": "p", "setting": setting, "days": 30_000, "runs": None} | changes
        record = BacktestRecord(name, SOON, "me", backtests.WAITING, request, None, SOON)
        with self.services.database.write() as c:
            backtests.add(c, record)

    def found(self, name: str = "bt") -> BacktestRecord:
        with self.services.database.read() as c:
            return backtests.get(c, name)

    def result(self, setting: dict[str, Any], **changes: Any) -> dict[str, Any]:
        self.ask(setting, **changes)
        self.tests.work()
        record = self.found()
        assert (record.state, record.result is None) == (backtests.DONE, False)
        return dict(record.result or {})

    def say(self, run_id: str, event: str) -> None:
        with self.services.database.write() as c:
            (alert,) = alerts.of_run(c, runs.get(c, run_id).id)
            alerts.add_event(c, alert.id, AlertEvent(1.0, event, "me"))


def four_runs(services: Services) -> Bench:
    trained(services, "true", "garbled", ended=True)
    trained(services, "false", "garbled")
    trained(services, "note", "hard")
    trained(services, "clean", "clean", ended=True)
    trained(services, "elsewhere", "garbled", project="q")
    bench = Bench(services)
    bench.say("true", "acknowledge")
    bench.say("false", "not_the_cause")
    return bench


def two_runs(services: Services) -> Bench:
    trained(services, "true", "garbled", ended=True)
    trained(services, "note", "hard", ended=True)
    return Bench(services)


def test_what_would_fire_what_is_new_and_what_is_lost(database: Database, settings: Settings) -> None:
    bench = four_runs(services_on(database, settings))
    louder = bench.result(LOUDER)
    totals = louder["totals"]
    assert (totals["runs"], totals["skipped"]) == (4, 0)
    assert totals["proposed"] == {"fired": 3, "confirmed": 1, "not_the_cause": 1, "typical_delay_steps": 3}
    assert (totals["now"]["fired"], totals["added"]["fired"], totals["dropped"]["fired"]) == (2, 1, 0)
    assert {r["run_id"]: (r["fires"], r["would_fire"]) for r in louder["runs"]} == {
        "true": (True, True), "false": (True, True), "note": (False, True),
    }  # fmt: skip
    note = next(r for r in louder["runs"] if r["run_id"] == "note")
    assert note["proposed"][0]["onset_step"] == ONSET
    assert note["proposed"][0]["time"] is not None
    assert {r["run_id"]: r["did_fire"] for r in louder["runs"]} == {"true": 1, "false": 1, "note": 0}
    assert louder["sentence"] == (
        "Would have fired 3 times in the last 30000 days: 1 confirmed, 1 not the cause, 1 without a "
        "word. As it is set now it fired 2 times: 1 confirmed, 1 not the cause."
    )
    bench.ask(OFF, "off")
    bench.tests.work()
    lost = bench.found("off").result
    assert lost is not None
    assert lost["sentence"].startswith(
        "Would not have fired in the last 30000 days. As it is set now it fired 2"
    )
    assert lost["sentence"].endswith("It would lose 1 alarm that people confirmed.")
    assert {r["run_id"]: r["lost_confirmed"] for r in lost["runs"]} == {"true": 1, "false": 0}


def test_a_run_without_a_saved_state_is_read_again_with_the_same_result(
    database: Database, settings: Settings
) -> None:
    bench = two_runs(services_on(database, settings))
    bench.ask(LOUDER, "saved")
    bench.tests.work()
    with database.write() as c:
        for run_id in ("true", "note"):
            verdicts.forget_engine(c, runs.get(c, run_id).id)
    bench.ask(LOUDER, "read")
    bench.tests.work()
    saved, read = bench.found("saved").result, bench.found("read").result
    assert saved is not None
    assert read is not None
    assert read["runs"] == saved["runs"]
    assert read["progress"]["rows_replayed"] > saved["progress"]["rows_replayed"]


def test_it_takes_no_more_than_its_share_and_touches_nothing(
    sqlite_database: Database, settings: Settings
) -> None:
    bench = two_runs(services_on(sqlite_database, settings))
    with sqlite_database.read() as c:
        before = {r: (runs.get(c, r), verdicts.find(c, runs.get(c, r).id)) for r in ("true", "note")}
    bench.result(LOUDER)
    assert sum(bench.slept) == pytest.approx(bench.tests._work_s * 3)
    assert len(bench.slept) > 2 * 3
    with sqlite_database.read() as c:
        after = {r: (runs.get(c, r), verdicts.find(c, runs.get(c, r).id)) for r in before}
    assert after == before


def test_one_that_is_cancelled_ends_at_once(sqlite_database: Database, settings: Settings) -> None:
    bench = two_runs(services_on(sqlite_database, settings))
    bench.ask(LOUDER)

    def cancel() -> None:
        with sqlite_database.write() as c:
            backtests.move(c, "bt", before=backtests.OPEN, after=backtests.CANCELLED, now=SOON)

    bench.during = cancel
    bench.tests.work()
    assert bench.found().state == backtests.CANCELLED
    assert len(bench.slept) <= 3


def test_one_that_a_server_left_is_told_and_those_that_wait_are_done(
    database: Database, settings: Settings
) -> None:
    services = services_on(database, settings)
    trained(services, "r", "garbled")
    bench = Bench(services)
    bench.ask(OFF, "left")
    bench.ask(OFF, "waits")
    with database.write() as c:
        assert backtests.move(
            c, "left", before=(backtests.WAITING,), after=backtests.RUNNING, now=1.0, result={"sentence": "x"}
        )
        assert not backtests.move(c, "left", before=(backtests.WAITING,), after=backtests.DONE, now=1.0)
    bench.tests.work()
    left = bench.found("left")
    assert left.state == backtests.FAILED
    assert left.result == {"sentence": "x", "reason": "the server stopped while it ran; start it again"}
    assert bench.found("waits").state == backtests.DONE


def test_a_stop_puts_it_back_for_the_next_start(sqlite_database: Database, settings: Settings) -> None:
    services = services_on(sqlite_database, settings)
    trained(services, "r", "garbled")
    trained(services, "s", "garbled")
    bench = Bench(services)
    bench.ask(OFF)
    bench.during = bench.tests.stop
    bench.tests.work()
    assert bench.found().state == backtests.WAITING
    Bench(services).tests.work()
    assert bench.found().state == backtests.DONE


def test_what_cannot_be_looked_at_is_said(
    sqlite_database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = two_runs(services_on(sqlite_database, settings))
    with sqlite_database.write() as c:
        verdicts.forget_engine(c, runs.get(c, "true").id)
    monkeypatch.setattr(backtest, "MOST_ROWS_A_RUN", 43)
    bench.ask(OFF, runs=["true", "gone", "note"], days=None)
    bench.tests.work()
    result = bench.found().result
    assert result is not None
    assert {s["run_id"]: s["why"].split(",")[0] for s in result["skipped"]} == {
        "true": "44 rows would have to be read again",
        "gone": "there is no such run",
    }
    assert result["sentence"].endswith("2 runs could not be looked at.")
    assert result["progress"] == {"runs": 3, "done": 3, "rows_replayed": 0}
    monkeypatch.setattr(backtest, "MOST_WORK_S", -1.0)
    bench.ask(OFF, "late")
    bench.tests.work()
    late = bench.found("late").result
    assert late is not None
    assert late["totals"]["skipped"] == 2


def test_a_setting_for_all_leaves_out_projects_that_have_their_own(
    sqlite_database: Database, settings: Settings
) -> None:
    services = services_on(sqlite_database, settings)
    trained(services, "mine", "garbled", project="p")
    trained(services, "theirs", "garbled", project="q")
    services.rule_changes.put(
        SERVER, project="q", rule=SPIKE, setting=RuleSetting(severity="critical"), note=None
    )
    result = Bench(services).result(OFF, project="*")
    assert [r["run_id"] for r in result["runs"]] == ["mine"]
    assert result["skipped"] == [
        {"run_id": "theirs", "why": "its project sets the rule itself, so this would change nothing"}
    ]


def test_asked_for_over_http(serve: Serve) -> None:
    client: Client = serve()
    trained_over_http(client, "r", "hard")
    asked = {"project": "p", "thresholds": {"spike_nats": 1.0}, "days": 30}
    started = client.call("POST", f"/api/v1/rules/{SPIKE}/backtest", asked)
    assert (started.status, started.json["state"], started.json["result"]) == (202, "waiting", None)
    path = f"/api/v1/backtests/{started.json['id']}"
    wait_for(lambda: client.get(path).json["state"] == "done")
    result = client.get(path).json["result"]
    assert result["sentence"] == (
        "Would have fired once in the last 30 days: 1 without a word. As it is set now it did not fire."
    )
    (listed,) = client.get("/api/v1/backtests").json["items"]
    assert "runs" not in listed["result"]
    assert client.call("DELETE", path).json["state"] == "done"  # over: it stays as it is
    assert client.get("/api/v1/alerts").json["items"] == []


def test_only_so_many_wait(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackTests, "work", lambda self: None)
    client = serve()
    path = f"/api/v1/rules/{SPIKE}/backtest"
    answers = [client.call("POST", path, {"project": "p"}) for _ in range(21)]
    assert [a.status for a in answers] == [202] * 20 + [429]
    assert answers[-1].headers["retry-after"] == "60"
    assert client.call("DELETE", f"/api/v1/backtests/{answers[0].json['id']}").json["state"] == "cancelled"
    assert client.call("POST", path, {"project": "p"}).status == 202


def test_old_ones_are_removed(sqlite_database: Database, settings: Settings) -> None:
    bench = Bench(services_on(sqlite_database, settings))
    for name in ("a", "b", "c"):
        bench.ask(OFF, name)
    with sqlite_database.write() as c:
        for name in ("a", "b"):
            backtests.move(c, name, before=backtests.OPEN, after=backtests.DONE, now=1.0)
        backtests.keep_newest(c, 0)
    with sqlite_database.read() as c:
        assert [r.id for r in backtests.listed(c, limit=9)] == ["c"]


def firing(name: str, onset: int, said: str | None = None) -> Firing:
    return Firing(name, onset, 0, onset + 3, "warning", "bad_batch", said)


def test_the_same_incident_is_neither_new_nor_lost() -> None:
    now = (firing("a", 10, "confirmed"), firing("b", 50, "not_the_cause"), firing("c", 90, "confirmed"))
    run = RunResult("r", "r", "p", now, (firing("a", 12), firing("x", 50), firing("y", 70)), ("FS412",))
    assert [f.id for f in run.added] == ["y"]
    assert [f.id for f in run.dropped] == ["c"]
    result = Result(1, runs=[run])
    assert result.to_json()["totals"]["elsewhere"] == 1
    assert result.sentence() == (
        "Would have fired 3 times in 1 run: 3 without a word. As it is set now it fired 3 times: "
        "2 confirmed, 1 not the cause. It would lose 1 alarm that people confirmed."
    )

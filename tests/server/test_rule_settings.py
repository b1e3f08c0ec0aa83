"""What is set for rules in a project: stored, undone, and what it does to runs and alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.rule_settings import RuleSetting, RuleSettings
from floatscope_server import background
from floatscope_server.callers import SERVER
from floatscope_server.database import Database
from floatscope_server.rule_book import RuleBook
from floatscope_server.rule_changes import RuleChanges
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import alerts, audit, rule_history, rule_settings, runs, verdicts
from floatscope_server.store.rule_settings import BEHIND, EVERY, StoredSetting
from tests.server.conftest import Serve
from tests.server.live import Client, wait_for
from tests.server.ruled_runs import ONSET, SPIKE, STALL, rows_of, services_on, trained, trained_over_http
from tests.server.samples import body, ingest

SETTINGS = f"/api/v1/rules/{SPIKE}/settings"
STALLS = f"/api/v1/rules/{STALL}/settings"
BACKTEST = f"/api/v1/rules/{SPIKE}/backtest"
OFF = RuleSetting(enabled=False)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "GATHER_S", 0.02)


def verdict_of(services: Services, run_id: str) -> dict[str, Any]:
    with services.database.read() as c:
        found = verdicts.find(c, runs.get(c, run_id).id)
    assert found is not None
    return found


def alert_of(client: Client, run_id: str) -> dict[str, Any]:
    (found,) = client.get(f"/api/v1/alerts?run={run_id}").json["items"]
    return dict(found)


def setting(project: str, rule: str = SPIKE, **changes: Any) -> StoredSetting:
    values: dict[str, Any] = {"enabled": True, "severity": None, "thresholds": {}, "note": None} | changes
    return StoredSetting(project=project, rule=rule, updated=5.0, updated_by="me", **values)


def test_a_projects_own_setting_stands_before_that_for_all(database: Database) -> None:
    with database.write() as c:
        rule_settings.put(c, setting(EVERY, enabled=False))
        rule_settings.put(c, setting(EVERY, "FS502", severity="info"))
        rule_settings.put(c, setting("p", thresholds={"spike_nats": 1.5}))
        rule_settings.put(c, setting("p", thresholds={"spike_nats": 2.5}, note="louder"))
    with database.read() as c:
        mine, others = rule_settings.of_project(c, "p"), rule_settings.of_project(c, "q")
        assert {s.rule for s in rule_settings.listed(c)} == {SPIKE, "FS502"}
        assert len(rule_settings.listed(c, rule=SPIKE)) == 2
        assert RuleBook().of_project(c, "p").of(SPIKE) == RuleSetting(True, None, {"spike_nats": 2.5})
    assert (mine[SPIKE].enabled, mine[SPIKE].thresholds, mine[SPIKE].note) == (
        True,
        {"spike_nats": 2.5},
        "louder",
    )
    assert (others[SPIKE].enabled, others["FS502"].severity) == (False, "info")
    with database.write() as c:
        rule_settings.remove(c, project="p", rule=SPIKE)
        assert rule_settings.find(c, project="p", rule=SPIKE, lock=True) is None


def test_a_change_that_was_stored_is_judged_after_a_restart(database: Database, settings: Settings) -> None:
    services = services_on(database, settings)
    for run_id, project, ended in (("r", "p", False), ("over", "p", True), ("other", "q", False)):
        trained(services, run_id, "throttled", project=project, ended=ended)
    told: list[str] = []
    changes = RuleChanges(database=database, judge_later=told.append, clock=lambda: 7.0)
    change = changes.put(SERVER, project="p", rule=STALL, setting=OFF, note="noisy")
    assert (change.before, change.runs, told) == (None, 1, ["r"])
    assert change.diff(()) == [{"name": "enabled", "before": True, "after": False}]
    with database.read() as c:
        assert runs.get(c, "r").baseline_arrivals == BEHIND
        assert runs.behind_baseline(c) == ["r"]
        (act,) = audit.listed(c, action="rule.change", limit=9)
    assert (act.who, act.target, act.detail["before"], act.detail["note"]) == ("server", STALL, None, "noisy")
    assert verdict_of(services, "r")["status"] == "warning"
    later = services_on(database, settings)
    later.lifecycle.refresh("r")
    after = verdict_of(later, "r")
    assert after["status"] == "healthy"
    assert STALL in {n["rule"] for n in after["not_checked"] if n["why"].startswith("switched off")}
    assert [verdict_of(later, r)["status"] for r in ("over", "other")] == ["warning", "warning"]
    late = [{**row, "step": row["step"] + 100} for row in rows_of("clean")[1][:4]]
    ingest(later, "over", 3, body(late))
    assert verdict_of(later, "over")["status"] == "warning"  # an ended run stays under what it ended with
    with database.read() as c:
        (alert,) = alerts.of_run(c, runs.get(c, "r").id)
        last = alerts.history(c, [alert.id])[alert.id][-1]
        assert runs.behind_baseline(c) == []
    assert (alert.state, last.event, last.note) == ("resolved", "withdrawn", "settings changed")


@pytest.mark.parametrize("kind", ["garbled", "hard"])
def test_the_verdict_is_that_of_an_engine_that_had_the_settings_from_the_start(
    sqlite_database: Database, settings: Settings, kind: str
) -> None:
    moved = RuleSetting(severity="critical", thresholds={"spike_nats": 1.0})
    described, rows = rows_of(kind)
    services = services_on(sqlite_database, settings)
    trained(services, "r", kind)
    services.rule_changes.put(SERVER, project="p", rule=SPIKE, setting=moved, note=None)
    services.lifecycle.refresh("r")
    engine = Engine(RunInfo.from_json(described), run_key="r", settings=RuleSettings({SPIKE: moved}))
    engine.feed(batch_from_rows(rows))
    expected, found = engine.verdict(live=True).to_json(), verdict_of(services, "r")
    for name in ("status", "findings", "not_checked", "rule_settings", "last_clean_step"):
        assert found[name] == expected[name], name
    assert found["findings"][0]["severity"] == "critical"


def test_switching_off_and_on_again_over_http(serve: Serve) -> None:
    client = serve()
    trained_over_http(client, "r", "throttled")
    assert alert_of(client, "r")["state"] == "firing"
    off = client.call("PUT", STALLS, {"project": "p", "enabled": False, "note": "too loud"})
    assert (off.status, off.json["before"], off.json["runs_judged_anew"]) == (200, None, 1)
    wait_for(lambda: alert_of(client, "r")["state"] == "resolved")
    last = alert_of(client, "r")["history"][-1]
    assert (last["event"], last["note"]) == ("withdrawn", "settings changed")
    shown = client.get(f"/api/v1/rules/{STALL}?project=p").json
    assert (shown["enabled"], shown["settings"][0]["note"]) == (False, "too loud")
    on = client.call("DELETE", f"{STALLS}?project=p").json
    assert (on["before"]["enabled"], on["after"]) == (False, None)
    assert on["diff"] == [{"name": "enabled", "before": False, "after": True}]
    wait_for(lambda: alert_of(client, "r")["state"] == "firing")
    again = {k: v for k, v in on["before"].items() if k not in ("updated", "updated_by")}
    assert client.call("PUT", STALLS, again).json["after"]["note"] == "too loud"  # undone by what it replaced
    wait_for(lambda: alert_of(client, "r")["state"] == "resolved")


def test_a_run_that_moves_to_another_project_is_judged_by_its_settings(serve: Serve) -> None:
    client = serve()
    client.call("PUT", STALLS, {"project": "quiet", "enabled": False})
    trained_over_http(client, "r", "throttled")
    assert alert_of(client, "r")["state"] == "firing"
    assert client.call("PATCH", "/api/v1/runs/r", {"project": "quiet"}).status == 200
    wait_for(lambda: alert_of(client, "r")["state"] == "resolved")


def test_a_severity_of_info_makes_no_alert_and_takes_back_the_one_there_is(serve: Serve) -> None:
    client = serve()
    trained_over_http(client, "r", "throttled")
    client.call("PUT", STALLS, {"project": EVERY, "severity": "info"})
    wait_for(lambda: alert_of(client, "r")["state"] == "resolved")
    verdict = client.get("/api/v1/runs/r/verdict").json
    assert (verdict["status"], verdict["findings"][0]["severity"]) == ("watch", "info")
    trained_over_http(client, "later", "throttled")
    assert client.get("/api/v1/alerts?run=later").json["items"] == []
    client.call("PUT", STALLS, {"project": EVERY, "severity": "critical"})
    wait_for(lambda: client.get("/api/v1/alerts?run=later").json["items"] != [])
    assert alert_of(client, "later")["severity"] == "critical"


def test_a_lower_threshold_makes_an_alarm_of_a_note(serve: Serve) -> None:
    client = serve()
    trained_over_http(client, "r", "hard")
    assert client.get("/api/v1/alerts?run=r").json["items"] == []
    answer = client.call("PUT", SETTINGS, {"project": "p", "thresholds": {"spike_nats": 1.0}})
    assert answer.json["diff"] == [{"name": "spike_nats", "before": 3.0, "after": 1.0}]
    wait_for(lambda: client.get("/api/v1/alerts?run=r").json["items"] != [])
    assert alert_of(client, "r")["onset_step"] == ONSET


def test_every_rule_is_listed_with_what_may_be_set(client: Client) -> None:
    items = client.get("/api/v1/rules").json["items"]
    by_code = {item["code"]: item for item in items}
    assert list(by_code) == sorted(by_code)
    assert len(by_code) == len(RuleBook().rules)
    spike = by_code[SPIKE]
    assert (spike["title"], spike["families"]) == ("bad batch", ["data"])
    assert spike["thresholds"][0]["name"] == "spike_nats"
    assert spike["thresholds"][0]["value"] == spike["thresholds"][0]["default"] == 3.0
    assert by_code["FS101"]["thresholds"] == []
    for item in items:
        assert item["condition"], item["code"]
        assert (Path(__file__).parents[2] / item["docs"]).is_file()
        assert item["severity"] == item["severities"][-1]
    one = client.get(f"/api/v1/rules/{SPIKE}").json
    assert one["sections"]["How it decides"] == one["condition"]


REFUSED: dict[str, tuple[str, str, Any, int, str]] = {
    "no rule": ("PUT", "/api/v1/rules/FS999/settings", {"project": "p"}, 404, "code"),
    "no code": ("PUT", "/api/v1/rules/x/settings", {"project": "p"}, 422, "code"),
    "no project": ("PUT", SETTINGS, {"enabled": False}, 422, "project"),
    "unknown": ("PUT", SETTINGS, {"project": "p", "on": 1}, 422, "on"),
    "threshold": ("PUT", SETTINGS, {"project": "p", "thresholds": {"x": 1}}, 422, "thresholds.x"),
    "range": ("PUT", SETTINGS, {"project": "p", "thresholds": {"spike_nats": 0}}, 422,
              "thresholds.spike_nats"),
    "severity": ("PUT", SETTINGS, {"project": "p", "severity": "loud"}, 422, "severity"),
    "name": ("PUT", SETTINGS, {"project": "a\u0000b"}, 422, "project"),
    "both": ("POST", BACKTEST, {"project": "p", "days": 3, "runs": ["r"]}, 422, "days"),
    "days": ("POST", BACKTEST, {"project": "p", "days": 0}, 422, "days"),
    "run id": ("POST", BACKTEST, {"project": "p", "runs": ["a b"]}, 422, "runs.0"),
    "nothing there": ("GET", "/api/v1/backtests/bt-1", None, 404, "id"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_set_is_refused_by_name(client: Client, name: str) -> None:
    method, path, content, status, field = REFUSED[name]
    answer = client.call(method, path, content)
    assert (answer.status, answer.json["field"]) == (status, field), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["hint"]


def test_how_often_a_rule_fired_and_what_people_said(database: Database, settings: Settings) -> None:
    services = services_on(database, settings)
    for run_id, project in (("a", "p"), ("b", "p"), ("c", "p"), ("d", "q")):
        trained(services, run_id, "garbled", project=project)
    for run_id, project in (("e", "p"), ("f", "q")):
        trained(services, run_id, "throttled", project=project)
    with database.write() as c:
        ids = [alerts.of_run(c, runs.get(c, run_id).id)[0].id for run_id in "abcd"]
        for alert, events in zip(
            ids,
            (["acknowledge"], ["resolve", "not_the_cause"], ["acknowledge", "reopen"], ["note"]),
            strict=True,
        ):
            for event in events:
                alerts.add_event(c, alert, alerts.AlertEvent(1.0, event, "me"))
    with database.read() as c:
        fired = rule_history.by_rule(c, since=0.0)
        assert rule_history.by_rule(c, since=9e9) == {}
        mine = rule_history.by_rule(c, since=0.0, project="p")
        assert rule_history.of_run(c, runs.get(c, "b").id) == {
            ids[1]: rule_history.Raised(SPIKE, "not_the_cause")
        }
        with_stalls = rule_history.firing(c), rule_history.firing(c, project="p")
    assert with_stalls == ({STALL: 2}, {STALL: 1})
    assert fired[SPIKE] == rule_history.Fired(4, 1, 1)
    assert mine[SPIKE] == rule_history.Fired(3, 1, 1)

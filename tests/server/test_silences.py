"""Silences: what they cover, when they begin and end, what is told then; over HTTP with who and on record."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from floatscope_server.database import Database
from floatscope_server.store import audit, silences
from tests.server.live import Client, wait_for
from tests.server.samples import Scripted, body, finding, rows
from tests.server.telling import HOUR, MINUTE, Bench, new_bench


def plateau(**changes: Any) -> dict[str, Any]:
    return finding(**{"severity": "warning", "cause": "plateau", "family": "optimization", **changes})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with new_bench(tmp_path) as found:
        yield found


def test_a_silence_holds_what_is_and_what_comes_and_its_end_tells_once(database: Database) -> None:
    bench = Bench(database)
    bench.verdict(plateau())
    assert bench.pass_time(MINUTE) == [("raised", "f1")]
    bench.silence("s1", cause="plateau", ends_in=2 * HOUR)
    assert bench.pass_time(1) == []
    assert (bench.state(), bench.alert().silence) == ("silenced", "s1")
    bench.verdict(plateau(), plateau(id="f2"))
    assert bench.state("f2") == "silenced"
    assert bench.pass_time(2 * HOUR - 2) == []
    assert bench.pass_time(MINUTE) == [("raised", "f1", "f2")]
    assert bench.said()[-1].body["reason"] == "a silence ended"
    assert bench.events() == ["raised", "silenced", "silence_ended"]
    assert bench.history()[1].note == "by silence s1"
    assert (bench.state(), bench.alert().silence) == ("firing", None)
    assert bench.pass_time(3 * HOUR) == []


@pytest.mark.parametrize(
    ("of", "covered"),
    [
        ({"run_id": "r"}, True),
        ({"run_id": "other"}, False),
        ({"project": "p"}, True),
        ({"project": "q"}, False),
        ({"family": "optimization"}, True),
        ({"cause": "plateau", "family": "data"}, False),
        ({"run_id": "r", "project": "p", "family": "optimization", "cause": "plateau"}, True),
        ({"ends_in": HOUR}, True),
    ],
)
def test_what_it_does_not_name_is_any(bench: Bench, of: dict[str, Any], covered: bool) -> None:
    bench.silence("s1", **of)
    bench.verdict(plateau())
    assert (bench.state() == "silenced") == covered


def test_critical_is_held_back_only_if_that_was_said(bench: Bench) -> None:
    bench.silence("s1", run_id="r")
    assert bench.verdict(finding()) == [("raised", "f1")]
    assert bench.verdict(finding(), plateau(id="f2")) == []
    assert bench.verdict(finding(), plateau(id="f2", severity="critical")) == [("raised", "f2")]
    assert bench.events("f2") == ["raised", "severity_changed", "worsened", "silence_ended"]
    bench.silence("s2", run_id="r", critical=True)
    assert bench.pass_time(1) == []
    assert bench.state() == "silenced"
    assert bench.verdict(finding(state="worsened")) == []


def test_what_was_told_before_is_told_as_recovered(bench: Bench) -> None:
    bench.verdict(finding())
    bench.silence("s1", run_id="r", critical=True, ends_in=HOUR)
    bench.pass_time(1)
    assert bench.verdict(finding(state="recovered")) == [("recovered", "f1")]
    assert bench.pass_time(2 * HOUR) == []


def test_what_nobody_heard_of_and_recovered_in_silence_is_never_told(bench: Bench) -> None:
    bench.silence("s1", run_id="r", ends_in=HOUR)
    bench.verdict(plateau())
    bench.now += MINUTE
    bench.verdict(plateau(state="recovered"))
    assert bench.pass_time(2 * HOUR) == []
    assert bench.state() == "recovered"


def test_a_silence_that_waits_begins_at_its_time_and_one_may_take_over(bench: Bench) -> None:
    bench.verdict(plateau())
    bench.silence("s1", run_id="r", starts_in=HOUR, ends_in=2 * HOUR)
    bench.silence("s2", project="p", starts_in=1.5 * HOUR, ends_in=3 * HOUR)
    bench.pass_time(HOUR - 1)
    assert bench.state() == "firing"
    bench.pass_time(2)
    assert bench.alert().silence == "s1"
    bench.pass_time(1.5 * HOUR)
    assert (bench.state(), bench.alert().silence) == ("silenced", "s2")
    bench.told()
    assert bench.pass_time(HOUR) == [("raised", "f1")]


def test_people_come_first(bench: Bench) -> None:
    bench.verdict(plateau())
    bench.act("f1", "acknowledge")
    bench.silence("s1", run_id="r", ends_in=HOUR)
    bench.pass_time(1)
    assert bench.state() == "acknowledged"
    assert bench.act("f1", "reopen").state == "silenced"
    assert bench.act("f1", "acknowledge").silence is None
    assert bench.pass_time(2 * HOUR) == []


def test_another_cause_takes_an_alert_out_of_its_silence(bench: Bench) -> None:
    bench.silence("s1", cause="plateau")
    bench.verdict(plateau())
    bench.verdict(plateau(cause="data_shift", family="data"))
    assert (bench.state(), bench.events()[-1]) == ("firing", "silence_ended")
    assert bench.pass_time(MINUTE) == [("raised", "f1")]


def test_a_silence_that_ended_early_stays_on_record(bench: Bench) -> None:
    bench.silence("s1", run_id="r")
    bench.verdict(plateau())
    with bench.database.write() as c:
        assert silences.end(c, "s1", by="bob", now=bench.now + 1)
        assert not silences.end(c, "s1", by="eve", now=bench.now + 2)
        assert silences.get(c, "s1").ended_by == "bob"
        assert silences.next_change(c, now=bench.now) == bench.now + 1
    assert bench.pass_time(MINUTE) == [("raised", "f1")]


def in_hours(hours: float) -> str:
    return (datetime.now(timezone.utc) + timedelta(hours=hours)).isoformat()


@pytest.fixture
def server(serve: Any) -> Client:
    """A server with a run that has a warning, and no waiting for others."""
    client: Client = serve({"alert_group_s": 0.0}, engines=Scripted(lambda last: [plateau()]))
    client.open_run("r", project="p")
    client.put("r", 0, body(rows(0, 4)))
    return client


def test_silences_over_http(server: Client) -> None:
    made = server.call(
        "POST", "/api/v1/silences", {"run": "r", "ends": in_hours(1), "note": "known <b>thing</b>"}
    )
    assert (made.status, made.json["state"], made.json["created_by"]) == (201, "active", "environment")
    found = server.get("/api/v1/alerts/f1").json
    assert (found["state"], found["silence"]["id"]) == ("silenced", made.json["id"])
    assert [line["event"] for line in found["history"]] == ["raised", "silenced"]
    path = f"/api/v1/silences/{made.json['id']}"
    assert server.get(path).json == made.json
    server.call("POST", "/api/v1/silences", {"cause": "plateau", "starts": in_hours(1)})
    ended = server.call("DELETE", path).json
    assert (ended["state"], ended["ended_by"]) == ("ended", "environment")
    assert server.call("DELETE", path).json == ended
    wait_for(lambda: server.get("/api/v1/alerts/f1").json["state"] == "firing")
    states = [item["state"] for item in server.get("/api/v1/silences").json["items"]]
    assert states == ["waiting", "ended"]
    page = server.get("/api/v1/silences?limit=1").json
    rest = server.get(f"/api/v1/silences?cursor={page['next_cursor']}").json
    assert ([item["id"] for item in rest["items"]], rest["next_cursor"]) == ([made.json["id"]], None)
    assert len(server.get("/api/v1/silences?state=ended").json["items"]) == 1
    assert server.get("/api/v1/silences/none").status == 404
    assert server.call("DELETE", "/api/v1/silences/none").status == 404


def test_alerts_of_a_project_and_of_a_state(server: Client) -> None:
    def ids(query: str) -> list[str]:
        return [alert["id"] for alert in server.get(f"/api/v1/alerts?{query}").json["items"]]

    assert (ids("project=p&state=firing"), ids("project=q"), ids("state=silenced")) == (["f1"], [], [])
    server.call("POST", "/api/v1/silences", {"project": "p"})
    assert (ids("project=p&state=silenced"), ids("state=firing")) == (["f1"], [])


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "ends"),
        ({"note": "everything"}, "ends"),
        ({"run": "a/b", "ends": "2099-01-01"}, "run"),
        ({"cause": "bad_luck"}, "cause"),
        ({"family": "x"}, "family"),
        ({"project": "a\u0000b"}, "project"),
        ({"project": ""}, "project"),
        ({"cause": "plateau", "ends": "2001-01-01T00:00:00Z"}, "ends"),
        ({"cause": "plateau", "starts": "2099-01-02", "ends": "2099-01-01"}, "ends"),
        ({"cause": "plateau", "ends": "soon"}, "ends"),
        ({"cause": "plateau", "starts": "0001-01-01T00:00:00+23:59"}, "starts"),
        ({"cause": "plateau", "note": "x" * 4001}, "note"),
        ({"cause": "plateau", "critical": "perhaps"}, "critical"),
        ({"cause": "plateau", "forever": True}, "forever"),
    ],
)
def test_silences_that_are_refused(client: Client, given: dict[str, Any], field: str) -> None:
    answer = client.call("POST", "/api/v1/silences", given)
    assert (answer.status, answer.json["field"]) == (422, field)
    assert answer.json["hint"]


def test_silences_are_bounded_and_on_the_audit_log(
    serve: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr("floatscope_server.routes.silences.MAX_SILENCES", 2)
    client: Client = serve()
    for _ in range(2):
        made = client.call("POST", "/api/v1/silences", {"cause": "plateau"})
    assert client.call("POST", "/api/v1/silences", {"cause": "plateau"}).status == 409
    client.call("DELETE", f"/api/v1/silences/{made.json['id']}")
    assert client.call("POST", "/api/v1/silences", {"cause": "plateau"}).status == 201
    opened = Database(settings.database)
    with opened.read() as c:
        acts = [(record.action, record.target) for record in audit.listed(c, action="silence", limit=10)]
    opened.close()
    assert [action for action, _target in acts].count("silence.add") == 3
    assert ("silence.end", made.json["id"]) in acts

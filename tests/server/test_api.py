"""The REST interface: runs, verdict, series, heat map, export, alerts."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import numpy as np
import pytest

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import background
from floatscope_server.background import StallWatch, allowed_silence
from floatscope_server.database import Database
from floatscope_server.events import Events
from floatscope_server.store import runs
from tests.server.live import Client
from tests.server.samples import TABLE, TENSORS, Scripted, body, faulty_run, finding, rows, send


def numbered(step: int, value: float, **stats: float) -> dict[str, Any]:
    return {"step": step, "loss": value, "tensors": {name: {"amax": value, **stats} for name in TENSORS}}


def test_create_resume_and_merge(client: Client) -> None:
    first = client.open_run("r", name="one", tensors={"a/input": {"format": "e4m3"}}, config={"lr": 1})
    assert (first.status, first.json["expected_seq"], first.json["segment"]) == (201, {"0": 0}, {"0": 0})
    assert first.json["url"].endswith("/runs/r")
    client.put("r", 0, body(rows(0, 2)))
    client.put("r", 0, body([{**row, "rank": 3} for row in rows(0, 2)]), rank=3)
    again = client.open_run("r", tensors={"b/input": {"format": "e5m2"}}, name=None, project="p")
    assert (again.status, again.json["expected_seq"]) == (200, {"0": 1, "3": 1})
    shown = client.get("/api/v1/runs/r").json
    assert (shown["name"], shown["project"], shown["tensor_count"]) == ("one", "p", 2)
    assert shown["info"]["config"] == {"lr": 1}
    assert [rank["rank"] for rank in shown["ranks"]] == [0, 3]


def test_a_run_without_an_id_gets_one_from_its_name(client: Client) -> None:
    made = client.call("POST", "/api/v1/runs", {"name": "My Run / \u00fc"}).json["run_id"]
    assert made.startswith("my-run")
    assert client.get(f"/api/v1/runs/{made}").json["name"] == "My Run / \u00fc"
    assert client.call("POST", "/api/v1/runs", {}).json["run_id"].startswith("run-")


def test_finish_late_batches_and_going_on(client: Client) -> None:
    client.open_run("r")
    client.put("r", 0, body(rows(0, 2)))
    ended = client.call("POST", "/api/v1/runs/r/finish", {"status": "crashed", "reason": "out of memory"})
    assert (ended.json["status"], ended.json["reason"]) == ("crashed", "out of memory")
    assert client.put("r", 1, body(rows(2, 2))).status == 200
    assert client.get("/api/v1/runs/r").json["status"] == "crashed"
    head = json.loads(client.get("/api/v1/runs/r/steps").text.splitlines()[0])["run"]
    assert (head["status"], head["reason"]) == ("crashed", "out of memory")
    client.open_run("r")
    again = client.get("/api/v1/runs/r").json
    assert (again["status"], again["reason"]) == ("running", None)
    assert client.call("POST", "/api/v1/runs/r/finish", {"status": "done"}).json["field"] == "status"
    assert client.call("POST", "/api/v1/runs/none/finish", {"status": "failed"}).status == 404


def test_list_filters_and_cursor(client: Client) -> None:
    for number in range(7):
        client.open_run(f"r{number}", project="odd" if number % 2 else "even")
    client.call("POST", "/api/v1/runs/r3/finish", {"status": "failed"})

    def ids(query: str) -> list[str]:
        return [run["run_id"] for run in client.get(f"/api/v1/runs?{query}").json["items"]]

    assert ids("project=odd") == ["r5", "r3", "r1"]
    assert ids("status=failed,crashed") == ["r3"]
    assert ids("health=critical") == []
    found, cursor = [], ""
    while True:
        page = client.get(f"/api/v1/runs?limit=3{cursor}").json
        found += [run["run_id"] for run in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == [f"r{number}" for number in reversed(range(7))]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=odd", "status"),
        ("health=x", "health"),
        ("cursor=!!", "cursor"),
        ("cursor=LTU", "cursor"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("project=%00", "project"),
    ],
)
def test_bad_filters(client: Client, query: str, field: str) -> None:
    answer = client.get(f"/api/v1/runs?{query}")
    assert (answer.status, answer.json["field"]) == (422, field)


def test_change_and_delete(client: Client) -> None:
    client.open_run("r")
    changed = client.call("PATCH", "/api/v1/runs/r", {"name": "new", "project": "p"}).json
    assert (changed["name"], changed["project"]) == ("new", "p")
    wrong: list[object] = [
        {"name": ""},
        {"name": None},
        {"name": "a\nb"},
        {"status": "x"},
        {"baseline": "r"},
        [],
    ]
    for bad in wrong:
        assert client.call("PATCH", "/api/v1/runs/r", bad).status == 422
    assert client.call("DELETE", "/api/v1/runs/r").json == {"deleted": "r"}
    for method, path in (("GET", "r"), ("DELETE", "r"), ("GET", "r/steps"), ("GET", "r/heatmap?stat=amax")):
        assert client.call(method, f"/api/v1/runs/{path}").status == 404


def test_scalars(client: Client) -> None:
    client.open_run("r")
    send(
        client,
        "r",
        [
            {"step": s, "loss": float(s), "lr": 0.1} if s != 5 else {"step": 5, "loss": "NaN"}
            for s in range(40)
        ],
    )
    found = client.get("/api/v1/runs/r/scalars?names=loss,grad_norm&points=4").json
    loss = found["series"]["loss"]
    assert loss["step"] == [0, 16, 32] == found["step"]
    assert (loss["min"], loss["max"], loss["last"]) == ([0, 16, 32], [15, 31, 39], [15, 31, 39])
    assert (loss["nan"], loss["count"]) == ([1, 0, 0], [16, 16, 8])
    assert "grad_norm" not in found["series"]
    part = client.get("/api/v1/runs/r/scalars?names=loss&from=4&to=6").json["series"]["loss"]
    assert (part["step"], part["last"]) == ([4, 5, 6], [4, None, 6])
    assert set(client.get("/api/v1/runs/r/scalars").json["series"]) == {"loss", "lr"}
    assert client.get("/api/v1/runs/r/scalars?from=9&to=3").status == 422


def test_series_and_derived_statistics(client: Client) -> None:
    client.open_run("r", tensors=TABLE)
    send(
        client,
        "r",
        [numbered(0, 1.0, scale=224.0), numbered(1, 0.0, scale=224.0), numbered(2, 4.0, scale=224.0)],
    )
    path = "/api/v1/runs/r/series?tensor=blocks.0.attn.qkv%2Finput&stat="
    assert client.get(path + "amax").json["last"] == [1, 0, 4]
    assert client.get(path + "sat").json["last"] == [0.5, 0, 2]
    headroom = client.get(path + "headroom_log2").json
    assert (headroom["step"], headroom["last"]) == ([0, 2], [1, -1])
    gradient = client.get("/api/v1/runs/r/series?tensor=blocks.0.attn.qkv%2Fgrad_output&stat=sat").json
    assert gradient["last"] == [224 / 57344, 0, pytest.approx(4 * 224 / 57344)]
    assert client.get(path + "nothing").json["step"] == []
    assert client.get("/api/v1/runs/r/series?tensor=x&stat=%00").status == 422
    assert client.get("/api/v1/runs/r/series?stat=amax").json["field"] == "tensor"


def test_tensors_come_in_the_order_of_the_network(client: Client) -> None:
    described, steps = faulty_run(4, fault_at=99)
    client.open_run("r", **described)
    send(client, "r", steps)
    items = client.get("/api/v1/runs/r/tensors").json["items"]
    assert [item["role"] for item in items[:3]] == ["input", "weight", "grad_output"]
    assert [item["call_order"] for item in items] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert items[0]["layer"] == "blocks.0.mlp.fc1"
    assert items[0]["stats"] == ["amax", "headroom_log2", "nan_count", "overflow_pct", "sat", "scale"]


def test_heatmap(client: Client) -> None:
    described, steps = faulty_run(40, fault_at=20)
    client.open_run("r", **described)
    send(client, "r", steps)
    heat = client.get("/api/v1/runs/r/heatmap?stat=overflow_pct&columns=10").json
    cells = np.frombuffer(base64.b64decode(heat["data"]), np.uint8).reshape(9, 10)
    assert (heat["from"][0], heat["to"][-1], heat["lo"], heat["hi"]) == (0, 39, 0.0, 10.0)
    row = heat["tensors"].index("blocks.1.mlp.fc1/input")
    assert cells[row].tolist() == [0, 0, 0, 0, 0, 51, 101, 152, 202, 253]
    assert cells[0].tolist() == [0] * 10
    only = client.get("/api/v1/runs/r/heatmap?stat=headroom_log2&role=weight&from=10&to=19").json
    assert [name.rpartition("/")[2] for name in only["tensors"]] == ["weight"] * 3
    assert (only["from"][0], only["to"][-1]) == (10, 19)
    nothing = client.get("/api/v1/runs/r/heatmap?stat=nothing").json
    assert (nothing["tensors"], nothing["lo"]) == ([], None)
    assert client.get("/api/v1/runs/r/heatmap?stat=amax&columns=501").status == 422


def test_rank_and_segment_parameters(client: Client) -> None:
    client.open_run("r")
    client.put("r", 0, {"steps": [{"step": s, "other": 1.0} for s in range(4)]})
    client.put("r", 0, {"steps": [{"step": s, "loss": 2.0, "rank": 1} for s in range(4)]}, rank=1)
    client.put("r", 1, {"steps": [{"step": s, "loss": 3.0, "rank": 1} for s in range(2, 4)]}, rank=1)

    def losses(query: str) -> Any:
        return client.get(f"/api/v1/runs/r/scalars?names=loss{query}").json["series"]["loss"]["last"]

    assert losses("") == [2, 2, 3, 3]  # the lowest rank that has it
    assert losses("&rank=0") == []
    assert losses("&segment=0") == [2, 2, 2, 2]
    assert losses("&segment=1") == [3, 3]
    assert [row["rank"] for row in client.steps("r", "?rank=1")] == [1] * 4
    assert [(row["step"], row.get("rank", 0)) for row in client.steps("r", "?rank=all&to=1")] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert [row.get("segment") for row in client.steps("r", "?rank=1&from=1")] == [None, 1, 1]
    assert client.get("/api/v1/runs/r/steps?rank=some").status == 422


@pytest.fixture
def alerting(serve: Any) -> Client:
    """A server whose runs raise one alert each with their first batch, and a second one from step 10 on."""

    def script(last: int | None) -> list[dict[str, Any]]:
        early = finding(id="early", severity="warning", cause="plateau", family="optimization")
        late = finding(id="late")
        return [] if last is None else [early] if last < 10 else [early, late]

    client: Client = serve(engines=Scripted(script))
    client.open_run("r", project="p")
    client.put("r", 0, body(rows(0, 4)))
    client.put("r", 1, body(rows(4, 10)))
    return client


def test_alerts_are_flat_and_filtered(alerting: Client) -> None:
    found = alerting.get("/api/v1/alerts").json["items"]
    assert [alert["id"] for alert in found] == ["late", "early"]
    late = found[0]
    assert (late["run_id"], late["project"], late["state"], late["finding_state"]) == (
        "r",
        "p",
        "firing",
        "raised",
    )
    assert late["tensor"] == "blocks.0.attn.qkv/input"
    assert late["history"][0]["event"] == "raised"

    def ids(query: str) -> list[str]:
        return [alert["id"] for alert in alerting.get(f"/api/v1/alerts?{query}").json["items"]]

    assert ids("severity=warning") == ["early"]
    assert ids("family=optimization") == ids("cause=plateau,other") == ["early"]
    assert ids("run=other") == []
    assert ids("state=resolved") == []
    assert ids("since=2020-01-01T00:00:00Z") == ["late", "early"]
    assert ids("since=2099-01-01") == []
    page = alerting.get("/api/v1/alerts?limit=1").json
    assert ids(f"cursor={page['next_cursor']}") == ["early"]
    for bad in ("state=x", "severity=x", "since=yesterday", "run=a/b", "cursor=x"):
        assert alerting.get(f"/api/v1/alerts?{bad}").status == 422
    assert alerting.get("/api/v1/runs/r").json["firing_alerts"] == 2


def test_what_people_do_with_an_alert(alerting: Client) -> None:
    def act(**action: Any) -> Any:
        return alerting.call("PATCH", "/api/v1/alerts/late", action)

    assert act(action="acknowledge", note="looking").json["state"] == "acknowledged"
    assert act(action="note", note="<b>it is the scale</b>").json["state"] == "acknowledged"
    assert act(action="resolve").json["state"] == "resolved"
    assert act(action="reopen").json["state"] == "firing"
    last = act(action="not_the_cause", mute_until="2099-01-01T00:00:00Z").json
    assert (last["state"], last["mute_until"]) == ("resolved", "2099-01-01T00:00:00Z")
    events = [(event["event"], event["by"], event["after"]) for event in last["history"]]
    assert events[1:3] == [
        ("acknowledge", "environment", "acknowledged"),
        ("note", "environment", "acknowledged"),
    ]
    assert last["history"][1]["note"] == "looking"
    for bad in ({}, {"action": "explode"}, {"action": "note"}, {"action": "note", "note": " "}, {"x": 1}):
        assert alerting.call("PATCH", "/api/v1/alerts/late", bad).status == 422
    assert act(action="note", note="x" * 4001).status == 422
    for never in ("soon", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"):
        assert act(action="acknowledge", mute_until=never).json["field"] == "mute_until"
    assert alerting.call("PATCH", "/api/v1/alerts/nothing", {"action": "resolve"}).status == 404
    assert alerting.get("/api/v1/alerts/nothing").status == 404


def test_many_alerts_at_once_are_done_as_one_is_and_each_is_answered_for(alerting: Client) -> None:
    def act(*ids: str, **action: Any) -> Any:
        return alerting.call("POST", "/api/v1/alerts/actions", {"alerts": list(ids), **action})

    missing: dict[str, Any] = {
        "id": "gone",
        "before": None,
        "after": None,
        "error": "there is no such alert",
        "undo": [],
    }
    known = {"before": "firing", "after": "acknowledged", "error": None}
    undo = [{"action": "reopen", "expected": "acknowledged"}]
    both = act("late", "gone", "early", "late", action="acknowledge", note="looking").json
    assert both == {
        "done": 2,
        "failed": 1,
        "items": [
            {"id": "late", **known, "undo": undo},
            missing,
            {"id": "early", **known, "undo": undo},
        ],
    }
    for alert in ("late", "early"):
        last = alerting.get(f"/api/v1/alerts/{alert}").json["history"][-1]
        assert (last["event"], last["by"], last["note"]) == ("acknowledge", "environment", "looking")
    assert act("gone", action="resolve").json == {"done": 0, "failed": 1, "items": [missing]}
    for field, ids in (("alerts", []), ("alerts", ["x"] * 2001), ("alerts.0", ["a b"])):
        assert act(*ids, action="resolve").json["field"] == field
    assert act("late", action="note").json["field"] == "note"


def test_the_way_back_leads_back_from_every_action_on_every_state(alerting: Client) -> None:
    def act(**body: Any) -> Any:
        return alerting.call("POST", "/api/v1/alerts/actions", {"alerts": ["late"], **body}).json["items"][0]

    def stands() -> tuple[str, str | None]:
        found = alerting.get("/api/v1/alerts/late").json
        return found["state"], found["mute_until"]

    run = alerting.get("/api/v1/alerts/late").json["run_id"]
    actions = ("acknowledge", "resolve", "not_the_cause", "reopen")
    for silenced in (False, True):
        if silenced:
            assert alerting.call("POST", "/api/v1/silences", {"run": run, "critical": True}).status == 201
        for first, action in itertools.product((None, *actions[:3]), actions):
            act(action="reopen", mute_until=None)
            if first:
                act(action=first, mute_until="2096-01-01T00:00:00Z")
            before = stands()
            done = act(action=action, mute_until="2099-01-01T00:00:00Z")
            assert [act(**step)["error"] for step in done["undo"]] == [None] * len(done["undo"])
            assert stands()[0] == before[0], (silenced, first, action)
            if done["undo"]:
                assert stands() == before, (silenced, first, action)
    late = act(action="resolve", expected="recovered")
    assert (late["error"], late["undo"], stands()[0]) == (f"it is {before[0]} by now", [], before[0])
    assert (
        alerting.call(
            "POST", "/api/v1/alerts/actions", {"alerts": ["late"], "action": "resolve", "expected": "gone"}
        ).json["field"]
        == "expected"
    )


def test_openapi_names_every_operation_and_the_reference_page_loads_nothing_foreign(client: Client) -> None:
    document = client.get("/openapi.json").json
    operations = {(method, path) for path, found in document["paths"].items() for method in found}
    for expected in (
        ("post", "/api/v1/runs"),
        ("put", "/api/v1/runs/{run_id}/ranks/{rank}/batches/{seq}"),
        ("get", "/api/v1/runs/{run_id}/heatmap"),
        ("patch", "/api/v1/alerts/{alert_id}"),
        ("post", "/api/v1/channels/{channel_id}/test"),
        ("get", "/api/v1/events"),
    ):
        assert expected in operations
    page = client.get("/docs").text
    assert "PUT /api/v1/runs/{run_id}/ranks/{rank}/batches/{seq}" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


def test_silence_by_a_runs_own_pace(sqlite_database: Database) -> None:
    assert allowed_silence(None) == background.STALL_UNKNOWN_S
    assert allowed_silence(1.0) == 60.0
    assert allowed_silence(30.0) == 300.0
    now = 1000.0
    watch = StallWatch(database=sqlite_database, events=Events(), clock=lambda: now)
    with sqlite_database.write() as c:
        for name, pace in (("fast", 1.0), ("slow", 60.0), ("new", None)):
            runs.create(c, name, RunInfo(), summary="", now=990.0)
            runs.change(
                c, runs.get(c, name).id, {"pace_s": pace, "last_seen": None if pace is None else 990.0}
            )
    now = 1061.0
    assert watch.look() == ["fast"]
    assert watch.look() == []
    now = 1601.0
    assert sorted(watch.look()) == ["new", "slow"]
    with sqlite_database.read() as c:
        assert runs.get(c, "fast").status == "stalled"


def test_a_stalled_run_runs_again_with_its_next_batch(serve: Any, settings: Any) -> None:
    client = serve()
    client.open_run("r")
    client.put("r", 0, body(rows(0, 2)))
    database = Database(settings.database)
    with database.write() as c:
        runs.change(c, runs.get(c, "r").id, {"status": "stalled"})
    database.close()
    assert client.get("/api/v1/runs?status=stalled").json["items"][0]["run_id"] == "r"
    client.put("r", 1, body(rows(2, 2)))
    assert client.get("/api/v1/runs/r").json["status"] == "running"

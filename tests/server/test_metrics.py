"""Figures for Prometheus, readiness, and the log of requests."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from floatscope_server import logs
from floatscope_server.database import Database
from floatscope_server.disk import Disk
from floatscope_server.metrics.measures import Measures
from floatscope_server.observing import HEADER, request_id
from floatscope_server.readiness import Readiness
from floatscope_server.settings import Settings
from tests.server.live import Client, wait_for
from tests.server.samples import TABLE, Scripted, body, finding, rows

Figures = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def figures(client: Client) -> Figures:
    """Every sample by its name and labels, without the worker's."""
    answer = client.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if k != "worker"))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def of(found: Figures, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


@pytest.fixture
def watched(serve: Any) -> Client:
    """A server whose run raises an alert, on a channel that nobody answers."""
    client: Client = serve(engines=Scripted(lambda last: [] if last is None else [finding()]))
    hook = {"kind": "webhook", "name": "secret name", "url": "https://127.0.0.1:1024/x"}
    assert client.call("POST", "/api/v1/channels", hook).status == 201
    client.open_run("a-run", project="a-project", tensors=TABLE)
    return client


def test_figures_say_what_happened(watched: Client) -> None:
    content = body([{"step": 0, "loss": 1.0, "tensors": {name: {"amax": 1.0} for name in TABLE}}])
    assert watched.put("a-run", 0, content).status == 200
    assert watched.put("a-run", 0, content).status == 200
    assert watched.put("a-run", 0, body(rows(7, 1))).status == 409
    assert watched.put("a-run", 5, body(rows(7, 1))).status == 409
    assert watched.put("a-run", 1, b"{}").status == 422
    assert watched.put("none", 0, content).status == 404
    assert watched.get("/api/v1/runs/other").status == 404
    assert Client(watched.port, None).get("/api/v1/runs/a-run").status == 401
    found = figures(watched)

    def batches(outcome: str) -> float:
        return of(found, "floatscope_ingest_batches_total", outcome=outcome)

    assert [batches(o) for o in ("stored", "repeated", "gap", "conflict", "refused")] == [1, 1, 1, 1, 2]
    assert of(found, "floatscope_ingest_values_total") == 1 + len(TABLE)
    assert of(found, "floatscope_ingest_steps_total") == 1
    assert of(found, "floatscope_ingest_bytes_total") == len(content)
    assert of(found, "floatscope_ingest_batch_seconds_count") == 1
    run = "/api/v1/runs/{run_id}"
    batch = f"{run}/ranks/{{rank}}/batches/{{seq}}"
    seconds = "floatscope_http_request_seconds_count"
    assert of(found, seconds, method="PUT", route=batch, status="200") == 2
    assert of(found, seconds, method="PUT", route=batch, status="409") == 2
    assert of(found, seconds, method="GET", route=run, status="404") == 1
    assert of(found, seconds, method="GET", route=run, status="401") == 1
    assert of(found, "floatscope_http_requests_under_way") == 1
    assert of(found, "floatscope_runs", status="running") == 1
    assert of(found, "floatscope_alerts", state="firing", severity="critical") == 1
    assert of(found, "floatscope_messages", kind="webhook", state="pending") == 1
    assert of(found, "floatscope_hot_rows") == 1
    assert of(found, "floatscope_engines_live") == 1
    assert of(found, "floatscope_database_up") == 1
    assert of(found, "floatscope_compaction_works") == 1
    assert of(found, "floatscope_disk_free_bytes") > 0
    assert of(found, "floatscope_database_connection_seconds_count") > 5
    assert of(found, "process_cpu_seconds_total") > 0


def test_labels_hold_no_names_and_are_few(watched: Client) -> None:
    for number in range(30):
        watched.open_run(f"run-{number}")
        watched.get(f"/nothing/{number}?token=x{number}")
        watched.call(f"ODD{number}", "/api/v1/runs")
    labels = {pair for _name, pairs in figures(watched) for pair in pairs}
    assert len(labels) < 80
    for secret in ("a-run", "a-project", "secret name", "run-7", "nothing", "ODD7"):
        assert not any(secret in value for _label, value in labels)


def test_figures_need_the_scope_read(watched: Client) -> None:
    made = watched.call("POST", "/api/v1/tokens", {"name": "agent", "scopes": ["ingest"]}).json
    assert Client(watched.port, made["token"]).get("/metrics").status == 403
    assert Client(watched.port, None).get("/metrics").status == 401


def test_two_sets_of_figures_know_nothing_of_each_other() -> None:
    one, other = Measures(worker=1), Measures(worker=2)
    one.limited("requests_per_s")
    assert b'limit="requests_per_s"' in one.exposition()
    assert b'limit="requests_per_s"' not in other.exposition()


def test_ready_says_why_not(database: Database) -> None:
    now, lives = 0.0, True
    disk = Disk(None, reserve_bytes=0)
    ready = Readiness(database=database, disk=disk, parts={"sending": lambda: lives}, clock=lambda: now)
    assert ready.problems() == []
    lives = False
    assert ready.problems() == []  # known for a second
    now = 2.0
    assert ready.problems() == ["sending stopped"]
    lives, now = True, 4.0
    with database.write() as c:
        c.execute(text("update alembic_version set version_num = 'other'"))
    assert ready.problems() == ["the database has the schema of another version"]
    ready.drain()
    assert ready.problems() == ["the server is stopping"]


def test_a_full_disk_takes_no_steps_and_gives_what_it_has(serve: Any) -> None:
    full = serve({"disk_reserve_mib": 2**40})
    assert full.open_run("r").status == 201
    answer = full.put("r", 0, body(rows(0, 2)))
    assert (answer.status, answer.headers["retry-after"]) == (507, "60")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["limit"] == "disk"
    assert full.get("/api/v1/runs/r/steps").status == 200
    assert full.get("/readyz").json["problems"] == ["the disk is nearly full: no steps are taken"]
    assert of(figures(full), "floatscope_ingest_batches_total", outcome="limited") == 1


def test_nothing_is_stored_in_a_file_that_is_gone(serve: Any, settings: Settings) -> None:
    server = serve()
    assert server.open_run("r").status == 201
    file, away = settings.database_file, settings.database_file.with_suffix(".away")
    file.rename(away)
    answer = server.put("r", 0, body(rows(0, 2)))
    assert (answer.status, answer.headers["retry-after"]) == (503, "60")
    wait_for(lambda: server.get("/readyz").status == 503)
    assert "moved, removed or replaced" in server.get("/readyz").json["problems"][0]
    away.rename(file)
    assert server.put("r", 0, body(rows(0, 2))).status == 200


def test_requests_carry_an_id(client: Client) -> None:
    given = client.call("GET", "/api/v1/me", headers={HEADER: "abc-1.2_3"})
    assert given.headers["x-request-id"] == "abc-1.2_3"
    for odd in ("a b", "x" * 65, "<x>", ""):
        made = client.call("GET", "/api/v1/me", headers={HEADER: odd}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", made)
    assert Client(client.port, None).get("/api/v1/me").headers["x-request-id"]


def test_a_line_for_each_request_without_what_is_secret(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="floatscope_server.requests")
    client.call("GET", "/api/v1/runs/hidden?names=secret", headers={HEADER: "my-id"})

    def mine() -> list[logging.LogRecord]:
        return [r for r in caplog.records if getattr(r, "told", {}).get("request_id") == "my-id"]

    wait_for(lambda: len(mine()) == 1)
    (record,) = mine()
    told = record.told  # type: ignore[attr-defined]
    assert told.items() >= {"method": "GET", "route": "/api/v1/runs/{run_id}", "status": 404}.items()
    assert (told["token"], told["duration_s"] >= 0) == ("environment", True)
    for line in (logs.JsonLines(3).format(record), logs.Lines(None).format(record)):
        assert "my-id" in line
        assert "hidden" not in line
        assert "secret" not in line
        assert (client.token or "") not in line


def test_a_record_is_one_line_of_json_with_its_stack() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        told = (type(error), error, error.__traceback__)
    record = logging.LogRecord("a.b", logging.ERROR, __file__, 1, "%s failed", ("it",), told)
    token = request_id.set("the-id")
    try:
        line = logs.JsonLines(None).format(record)
    finally:
        request_id.reset(token)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "a.b", "it failed")
    assert found["request_id"] == "the-id"
    assert "ValueError: two\nlines" in found["stack"]


def test_the_format_is_a_setting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.set_up(settings.model_copy(update={"log_format": "json"}), worker=2)
    logging.getLogger("x").warning("hello")
    found = json.loads(capsys.readouterr().err)
    assert (found["message"], found["worker"]) == ("hello", 2)

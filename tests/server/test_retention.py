"""Which runs are deleted by age and size, and that it is written down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import tables
from floatscope_server.app import create_app
from floatscope_server.background import StallWatch
from floatscope_server.database import Database
from floatscope_server.dbtool.cli import main
from floatscope_server.retention import DAY_S, GIB, STALLED_S, Limits, Policy, plan
from floatscope_server.services import Services
from floatscope_server.settings import ProjectRetention, Settings, SettingsError, load
from floatscope_server.store import audit, runs
from floatscope_server.store.kept import Kept
from tests.server.samples import Scripted, body, ingest, rows

NOW = 1e9
NO_LIMITS = Limits()
RUN = Kept("r", "p", "finished", None, NOW, GIB)


def run(run_id: str, days: float, **changes: object) -> Kept:
    """A finished run of one GiB that was last heard of so many days ago."""
    return replace(RUN, run_id=run_id, seen=NOW - days * DAY_S, **changes)  # type: ignore[arg-type]


def doomed(found: list[Kept], every: Limits = NO_LIMITS, **projects: Limits) -> list[str]:
    found = sorted(found, key=lambda run: run.seen)
    return [one.run_id for one in plan(found, Policy(every, projects), now=NOW)]


def test_without_settings_everything_stays() -> None:
    assert doomed([run("a", 9999)]) == []
    assert Policy().asks_nothing()


def test_age_takes_runs_that_ended() -> None:
    found = [
        run("old", 31),
        run("young", 29),
        run("crashed", 40, status="crashed"),
        run("live", 99, status="running"),
        run("stalled", 99, status="stalled"),
    ]
    assert doomed(found, Limits(days=30)) == ["stalled", "crashed", "old"]
    assert doomed([run("silent", 6, status="stalled")], Limits(days=1)) == []
    assert STALLED_S == 7 * DAY_S


def test_a_baseline_is_as_young_as_the_youngest_run_that_names_it() -> None:
    found = [run("base", 99), run("user", 2, baseline="base"), run("other", 99)]
    assert doomed(found, Limits(days=30)) == ["other"]
    assert doomed([run("base", 99), run("user", 31, baseline="base")], Limits(days=30)) == ["base", "user"]


def test_size_takes_the_oldest_first_and_no_baseline_in_use() -> None:
    found = [run("base", 50), run("a", 40), run("b", 30), run("c", 20, baseline="base")]
    assert doomed(found, Limits(gib=4)) == []
    assert doomed(found, Limits(gib=3)) == ["a"]
    assert doomed(found, Limits(gib=2.5)) == ["a", "b"]
    assert doomed(found, Limits(gib=1)) == ["a", "b", "c"], "with the run that named it, it could go"
    assert doomed(found, Limits(gib=0.5)) == ["a", "b", "c", "base"]
    assert doomed([run("live", 9, status="running"), run("a", 1)], Limits(gib=0.1)) == ["a"]


def test_projects_differ() -> None:
    found = [run("a", 9), run("b", 8, project="q"), run("c", 7, project="keep")]
    own = {"q": Limits(days=5), "keep": Limits(keep=True)}
    assert doomed(found, Limits(days=8.5), **own) == ["a", "b"]
    assert doomed(found, Limits(gib=0.5), **own) == ["b", "a"], "what is too old goes first"
    assert doomed(found, Limits(), q=Limits(gib=0.5)) == ["b"]


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "floatscope.toml"
    file.write_text("retention_days = 90\n[retention_projects.big]\ndays = 7\ngib = 2\n")
    policy = Policy.of(load({}, config=file))
    assert (policy.days("big"), policy.days("other"), policy.projects["big"].gib) == (7, 90, 2)
    monkeypatch.setenv("FLOATSCOPE_RETENTION_PROJECTS", '{"x": {"keep": true}}')
    assert Policy.of(load({"retention_days": 3}, config=None)).days("x") is None
    for wrong in ("retention_days = 0", "[retention_projects.a]\nweeks = 3"):
        file.write_text(wrong)
        with pytest.raises(SettingsError, match="retention_"):
            load({}, config=file)


def test_it_is_applied_and_written_down(
    database: Database,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = {"p": ProjectRetention(days=1)}
    app = create_app(
        settings.model_copy(update={"retention_projects": policy}),
        database=database,
        engines=Scripted(lambda _last: []),
    )
    services: Services = app.state.services
    for run_id, project in (("old", "p"), ("new", "p"), ("elsewhere", "q")):
        services.lifecycle.open(run_id, RunInfo(name=run_id, project=project))
        ingest(services, run_id, 0, body(rows(0, 3)))
        services.lifecycle.finish(run_id, status="finished", reason=None)
    with database.write() as c:
        for run_id in ("old", "elsewhere"):
            c.execute(tables.run.update().where(tables.run.c.run_id == run_id).values(last_seen=1.0))
    monkeypatch.setenv("FLOATSCOPE_DATABASE_URL", database.engine.url.render_as_string(hide_password=False))
    monkeypatch.setenv("FLOATSCOPE_RETENTION_PROJECTS", '{"p": {"days": 1}}')
    assert main(["purge", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["run_id"] for one in told["doomed"]] == ["old"]
    assert [one.run_id for one in services.retention.apply()] == ["old"]
    assert services.retention.apply() == []
    with database.read() as c:
        assert [one.run_id for one in runs.listed(c, limit=9)] == ["elsewhere", "new"]
        (line,) = audit.listed(c, action="run.delete", limit=9)
    assert (line.who, line.target, line.detail["why"]) == ("server", "old", "older than 1 days")
    assert main(["purge", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 1


def test_a_run_that_is_taken_up_again_meanwhile_stays(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"retention_gib": 1e-9}
    app = create_app(
        settings.model_copy(update=changes), database=database, engines=Scripted(lambda _last: [])
    )
    services: Services = app.state.services
    services.lifecycle.open("r", RunInfo(name="r"))
    ingest(services, "r", 0, body(rows(0, 3)))
    services.lifecycle.finish("r", status="finished", reason=None)
    with database.write() as c:
        c.execute(tables.run.update().values(last_seen=1.0))
    decided = services.retention.due()
    assert [one.run_id for one in decided] == ["r"]
    services.lifecycle.open("r", RunInfo(name="r"))
    monkeypatch.setattr(services.retention, "due", lambda: decided)
    assert services.retention.apply() == []
    assert StallWatch(database=database, events=services.events).look() == [], "it was heard of just now"
    monkeypatch.undo()
    assert services.retention.due() == []
    services.lifecycle.finish("r", status="finished", reason=None)
    assert [one.run_id for one in services.retention.apply()] == ["r"]

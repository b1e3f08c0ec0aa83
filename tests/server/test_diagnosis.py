"""Live diagnosis: the same after a restart, after its own faults, and with a baseline early or late."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floatscope.protocol.batch import Batch, Float64, Int64
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from floatscope_server import background, diagnosis
from floatscope_server.app import create_app
from floatscope_server.errors import Busy
from floatscope_server.lifecycle import Lifecycle
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import runs, verdicts
from tests.server.live import wait_for
from tests.server.samples import Scripted, ScriptedEngine, body, faulty_run, finding, ingest, rows, send


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Baselines are looked at without waiting for more of them."""
    monkeypatch.setattr(background, "GATHER_S", 0.02)


def services_of(settings: Settings, **parts: Any) -> Services:
    found: Services = create_app(settings, **parts).state.services
    return found


def verdict_of(services: Services, run_id: str = "r") -> dict[str, Any]:
    with services.database.read() as c:
        found = verdicts.find(c, runs.get(c, run_id).id)
    assert found is not None
    return found


def run_of(services: Services, run_id: str = "r") -> runs.RunRecord:
    with services.database.read() as c:
        return runs.get(c, run_id)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_verdict_does_not_depend_on_batches_or_restarts(settings: Settings, size: int) -> None:
    described, steps = faulty_run(84, fault_at=60)
    info = RunInfo.from_json(described)
    services = services_of(settings)
    services.lifecycle.open("r", info)
    for seq, at in enumerate(range(0, len(steps), size)):
        if seq % 5 == 4:
            services.database.close()
            services = services_of(settings)
        ingest(services, "r", seq, body(steps[at : at + size]))
    engine = Engine(info, run_key="r")
    engine.feed(batch_from_rows(steps))
    clean = engine.verdict(live=True).to_json()
    found = verdict_of(services)
    assert found["findings"] == clean["findings"]
    assert found["findings"]
    assert found["summary"] == clean["summary"]
    assert found["source"]["format"] == "floatscope"


def test_a_saved_engine_is_used_and_only_later_batches_are_replayed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "SNAPSHOT_STEPS", 10)
    replayed: list[int] = []

    class Counting(ScriptedEngine):
        def feed(self, batch: Batch, rank: int = 0, segment: int | None = None) -> None:
            replayed.extend(batch.step.tolist())
            super().feed(batch, rank, segment)

    class Engines(Scripted):
        def __call__(self, run: RunInfo, *, run_key: str | None = None) -> ScriptedEngine:
            return Counting(self.script, [])

        def restore(self, run: RunInfo, state: bytes) -> ScriptedEngine:
            made = super().restore(run, state)
            return Counting(made._script, made._fed)

    engines = Engines(lambda _last: [])
    services = services_of(settings, engines=engines)
    services.lifecycle.open("r", RunInfo(name="r"))
    for seq in range(7):
        ingest(services, "r", seq, body(rows(seq * 4, 4)))
    services.database.close()
    replayed.clear()
    services = services_of(settings, engines=engines)
    ingest(services, "r", 7, body(rows(28, 4)))
    assert replayed == [24, 25, 26, 27, 28, 29, 30, 31]  # saved after 12 and 24 steps


def test_a_state_of_another_version_means_judging_anew(settings: Settings) -> None:
    class Changed(Scripted):
        def restore(self, run: RunInfo, state: bytes) -> ScriptedEngine:
            raise ValueError("a state of another version")

    services = services_of(settings, engines=Scripted(lambda _last: []))
    services.lifecycle.open("r", RunInfo(name="r"))
    ingest(services, "r", 0, body(rows(0, 4)))
    services.lifecycle.finish("r", status="finished", reason=None)
    services.database.close()
    services = services_of(settings, engines=Changed(lambda _last: []))
    ingest(services, "r", 1, body(rows(4, 4)))
    assert verdict_of(services)["source"]["last_step"] == 7
    assert run_of(services).diagnosis_error is None


def test_a_fault_of_the_engine_costs_no_batch_and_is_shown(settings: Settings) -> None:
    def script(last: int | None) -> list[dict[str, Any]]:
        if last == 7:
            raise ZeroDivisionError("a bug in a rule")
        return [finding()] if last is not None and last > 7 else []

    services = services_of(settings, engines=Scripted(script))
    services.lifecycle.open("r", RunInfo(name="r"))
    for seq in range(4):
        ingest(services, "r", seq, body(rows(seq * 4, 4)))
    run = run_of(services)
    assert run.diagnosis_error == "ZeroDivisionError: a bug in a rule"
    assert run.arrivals == 4
    assert run.cause == "stale_scale_saturation"  # it went on with the batches after the one it failed on
    services.database.close()
    services = services_of(settings, engines=Scripted(script))
    ingest(services, "r", 4, body(rows(16, 4)))
    assert verdict_of(services)["source"]["last_step"] == 19


def test_an_engine_that_always_fails_is_left_alone(settings: Settings) -> None:
    calls: list[int] = []

    def script(last: int | None) -> list[dict[str, Any]]:
        if last is not None:
            calls.append(last)
            raise RuntimeError("always")
        return []

    services = services_of(settings, engines=Scripted(script))
    services.lifecycle.open("r", RunInfo(name="r"))
    for seq in range(9):
        ingest(services, "r", seq, body(rows(seq * 4, 4)))
    assert len(calls) == diagnosis.FAILURES_BEFORE_OFF
    run = run_of(services)
    assert run.arrivals == 9
    assert "off until the server starts again" in (run.diagnosis_error or "")
    assert (run.diagnosis_error or "").count("off until") == 1


def test_a_run_is_made_even_if_no_engine_can_be(settings: Settings) -> None:
    class Broken(Scripted):
        def __call__(self, run: RunInfo, *, run_key: str | None = None) -> ScriptedEngine:
            raise ImportError("half an upgrade")

    services = services_of(settings, engines=Broken(lambda _last: []))
    services.lifecycle.open("r", RunInfo(name="r"))
    assert run_of(services).diagnosis_error == "ImportError: half an upgrade"
    assert verdict_of(services)["status"] == "healthy"
    ingest(services, "r", 0, body(rows(0, 4)))
    assert run_of(services).arrivals == 1


class Paired(ScriptedEngine):
    """Knows the largest gap between the run's loss and its baseline's, whichever came first."""

    def __init__(self) -> None:
        super().__init__(lambda _last: [], [])
        self.own: dict[int, float] = {}
        self.other: dict[int, float] = {}

    def feed(self, batch: Batch, rank: int = 0, segment: int | None = None) -> None:
        loss, present = batch.scalar("loss")
        self.own.update(zip(batch.step[present].tolist(), loss[present].tolist(), strict=True))

    def feed_baseline(
        self, step: Int64, loss: Float64, data_id: Float64 | None = None, lr: Float64 | None = None
    ) -> None:
        self.other.update(zip(step.tolist(), loss.tolist(), strict=True))

    def verdict(self, *, live: bool = False) -> Any:
        gaps = [abs(self.own[s] - self.other[s]) for s in self.own.keys() & self.other.keys()]
        compared = finding(severity="info", summary=f"{len(gaps)} steps, gap {max(gaps, default=0.0):.1f}")
        self._script = lambda _last: [compared]
        return super().verdict(live=live)


class PairedEngines:
    def __call__(self, run: RunInfo, *, run_key: str | None = None) -> Paired:
        return Paired()

    def restore(self, run: RunInfo, state: bytes) -> Paired:
        raise ValueError("not kept")


def with_loss(first: int, count: int, loss: float) -> list[dict[str, Any]]:
    return [{"step": step, "loss": loss} for step in range(first, first + count)]


@pytest.mark.parametrize("order", ["run first", "baseline first", "mixed"])
def test_a_baseline_is_paired_whenever_it_comes(serve: Any, order: str) -> None:
    client = serve(engines=PairedEngines())
    client.open_run("base")
    client.open_run("r", baseline="base")
    base, own = with_loss(0, 24, 2.0), with_loss(0, 16, 2.5)
    if order == "run first":
        send(client, "r", own)
        send(client, "base", base)
    elif order == "baseline first":
        send(client, "base", base)
        send(client, "r", own)
    else:
        send(client, "base", base[:8])
        send(client, "r", own[:12], size=6)
        send(client, "base", base[8:], seq=1)
        send(client, "r", own[12:], seq=2)
    wait_for(lambda: client.get("/api/v1/runs/r/verdict").json["summary"] == "16 steps, gap 0.5")


def test_a_run_that_cannot_be_compared_holds_up_no_other(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Lifecycle.refresh

    def refresh(lifecycle: Lifecycle, run_id: str) -> None:
        if run_id == "a":
            raise Busy(run_id)
        real(lifecycle, run_id)

    monkeypatch.setattr(Lifecycle, "refresh", refresh)
    client = serve(engines=PairedEngines())
    client.open_run("base")
    for name in ("a", "b"):
        client.open_run(name, baseline="base")
        send(client, name, with_loss(0, 8, 2.5))
    send(client, "base", with_loss(0, 8, 2.0))
    wait_for(lambda: client.get("/api/v1/runs/b/verdict").json["summary"] == "8 steps, gap 0.5")


def test_another_baseline_and_none_at_all(serve: Any) -> None:
    client = serve(engines=PairedEngines())
    for name, loss in (("one", 2.0), ("two", 1.0)):
        client.open_run(name)
        send(client, name, with_loss(0, 8, loss))
    client.open_run("r", baseline="one")
    send(client, "r", with_loss(0, 8, 2.5))

    def says(expected: str) -> None:
        wait_for(lambda: client.get("/api/v1/runs/r/verdict").json["summary"] == expected)

    says("8 steps, gap 0.5")
    assert client.call("PATCH", "/api/v1/runs/r", {"baseline": "two"}).json["baseline"] == "two"
    says("8 steps, gap 1.5")
    client.open_run("r", baseline="one")
    says("8 steps, gap 0.5")
    client.call("DELETE", "/api/v1/runs/one")
    says("0 steps, gap 0.0")
    client.open_run("one")
    send(client, "one", with_loss(0, 4, 2.4))
    says("4 steps, gap 0.1")
    assert client.call("PATCH", "/api/v1/runs/r", {"baseline": None}).json["baseline"] is None
    says("0 steps, gap 0.0")


def test_a_baseline_that_grew_while_the_server_was_down(
    settings: Settings, tmp_path: Path, serve: Any
) -> None:
    services = services_of(settings, engines=PairedEngines())
    services.lifecycle.open("base", RunInfo())
    services.lifecycle.open("r", RunInfo(baseline="base"))
    ingest(services, "r", 0, body(with_loss(0, 4, 2.5)))
    ingest(services, "base", 0, body(with_loss(0, 4, 2.0)))  # no worker runs here: it is behind now
    services.database.close()
    client = serve(engines=PairedEngines())
    wait_for(lambda: client.get("/api/v1/runs/r/verdict").json["summary"] == "4 steps, gap 0.5")


def test_the_real_engine_fits_what_the_server_asks_of_engines() -> None:
    engines: diagnosis.Engines = Engine
    made = engines(RunInfo(name="r"), run_key="r")
    made.feed_baseline(np.arange(3), np.ones(3), None)
    assert engines.restore(RunInfo(name="r"), made.state()).verdict(live=True).to_json() == (
        made.verdict(live=True).to_json()
    )


def test_settings_ask_for_a_closer_look_while_a_finding_is_fresh(serve: Any) -> None:
    def script(last: int | None) -> Sequence[dict[str, Any]]:
        return [finding(detected_step=6)] if last is not None and last >= 6 else []

    client = serve(engines=Scripted(script))
    client.open_run("r")
    assert client.put("r", 0, body(rows(0, 4))).json["settings"] == {}
    assert client.put("r", 1, body(rows(4, 4))).json["settings"] == {"stats_every": 1, "until_step": 206}
    assert client.put("r", 2, body(rows(500, 4))).json["settings"] == {}


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        ({"severity": "critical", "state": "raised"}, "KeyError: 'id'"),
        (finding(severity="terrible"), "ValueError"),
        (finding(evidence=[object()]), "TypeError: Object of type object"),
        (finding(cause="\ud800"), "UnicodeEncodeError"),
    ],
)
def test_a_verdict_that_cannot_be_stored_or_told_costs_no_batch(
    settings: Settings, odd: dict[str, Any], error: str
) -> None:
    def script(last: int | None) -> list[dict[str, Any]]:
        return [] if last is None else [odd]

    services = services_of(settings, engines=Scripted(script))
    services.lifecycle.open("r", RunInfo(name="r"))
    for seq in range(3):
        ingest(services, "r", seq, body(rows(seq * 4, 4)))
    run = run_of(services)
    assert run.arrivals == 3
    assert (run.diagnosis_error or "").startswith(error)
    assert run.health == "healthy"

"""Pages of runs whose values a database or a calendar has no place for: they are shown, on both databases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from floatscope.protocol.names import MAX_STEP
from floatscope_dashboards.alert_filters import Asked
from floatscope_server.database import Database
from floatscope_server.views.alerts import alerts_view
from floatscope_server.views.compare import choose_view, read_query
from tests.server.live import Client
from tests.server.samples import faulty_run, finding, send
from tests.server.telling import Bench

HTML = {"Accept": "text/html"}
MILLISECONDS = 1.7e12


def test_alerts_of_steps_beyond_32_bits_are_listed(database: Database) -> None:
    bench = Bench(database)
    bench.verdict(finding(id="far", onset_step=MAX_STEP, segment=2**31 - 1), finding(id="near"))
    with database.read() as c:
        found = alerts_view(c, Asked(), rules={}, now=bench.now)
    assert {alert.id: alert.onset for one in found.incidents for alert in one.alerts} == {
        "far": MAX_STEP,
        "near": 4,
    }


def test_runs_to_compare_are_chosen_by_any_text(database: Database) -> None:
    with database.read() as c:
        found = choose_view(c, read_query({"run": "a\x00b", "base": "\x00c", "q": "100%\x00 _"}))
    assert (found.run_id, found.baseline_id, found.query, found.missing) == ("ab", "c", "100% _", ("ab", "c"))


@pytest.mark.parametrize("time", [MILLISECONDS, -1e300, 1e300])
def test_times_that_no_calendar_knows_are_when_the_step_arrived(client: Client, time: float) -> None:
    described, steps = faulty_run(96, fault_at=64)
    client.open_run("bad", **described)
    send(client, "bad", [{**step, "time": time} for step in steps], size=32)
    (alert,) = _alerts(client)
    for path in ("/runs/bad", "/runs/bad/report", f"/alerts/{alert['id']}"):
        assert client.call("GET", path, headers=HTML).status == 200, path
    ticks = client.get("/api/v1/runs/bad/ticks?axis=time&zone=Pacific/Kiritimati")
    assert ticks.status == 200, ticks.text


ODD = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e308, -1e308, 5e-324)
PAGES = (
    "/", "/?sort=-loss&status=all", "/alerts", "/rules", "/runs/odd", "/runs/odd?at=0", "/runs/odd/report",
    "/runs/odd/ruler?all=1", "/runs/odd/tensors", "/runs/odd/tensors?sort=-scale",
    "/runs/odd/tensors/a%2Finput", "/compare?run=odd&baseline=odder",
    "/compare/report?run=odd&baseline=odder&margin=1e-300",
)  # fmt: skip
REST = (
    "runs/odd/histogram?tensor=a/input", "runs/odd/rankmap?name=loss", "runs/odd/ticks?axis=tokens",
    "runs/odd/ticks?axis=time", "runs/odd/ticks?axis=step",
    "runs/odd/series?tensor=a/input&stat=shadow_scale", "runs/odd/heatmap?stat=scale",
    "compare?run=odd&baseline=odder", "search?q=od",
)  # fmt: skip


def odd_steps(shift: int) -> list[dict[str, Any]]:
    """Each odd value in every scalar and statistic, at steps near 0 and as far as they go."""
    small = [float(np.clip(value, -3e38, 3e38)) if abs(value) < math.inf else value for value in ODD]
    out: list[dict[str, Any]] = []
    for place, step in enumerate([*range(len(ODD)), *(MAX_STEP - n for n in reversed(range(len(ODD))))]):
        names = ("loss", "grad_norm", "tokens", "step_time_s", "gpu_util_pct", "gpu_throttle", "passes", "lr")
        scalars = {name: ODD[(place + shift + n) % len(ODD)] for n, name in enumerate(names)}
        stats = ("amax", "scale", "rms", "overflow_pct", "underflow_pct", "nan_count", "sqnr_db", "sat")
        values = {stat: small[(place + shift + n) % len(ODD)] for n, stat in enumerate(stats)}
        hist = {"hist_log2": [2**32 - 1] * 64} if place % 2 else {}
        out.append({"step": step, **scalars, "tensors": {"a/input": values | hist, "b/weight": values}})
    return out


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # sums of such numbers overflow, which is what they are for
def test_every_page_shows_values_of_every_kind_at_steps_as_far_as_they_go(client: Client) -> None:
    tensors = {"a/input": {"format": "e4m3"}, "b/weight": {"format": "nvfp4"}}
    recipe = {"name": "fp8_delayed_scaling", "amax_history_len": 4, "amax_compute_algo": "max", "margin": 900}
    for shift, run in enumerate(("odd", "odder")):
        client.open_run(run, tensors=tensors, recipe=recipe, config={"max_steps": 10**30})
        send(client, run, odd_steps(shift))
    wrong = {
        path: answer.text[:200]
        for path in PAGES
        if (answer := client.call("GET", path, headers=HTML)).status != 200
    }
    rest = {
        path: (answer.status, answer.text[:200])
        for path in REST
        if (answer := client.get(f"/api/v1/{path}")).status >= 500
    }
    assert (wrong, rest) == ({}, {})


def _alerts(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/v1/alerts?run=bad").json["items"]
    return found

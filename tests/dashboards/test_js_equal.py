"""The scripts fill the figures of a live page, Python fills those made without a browser: both must be the
same."""

from __future__ import annotations

import json
import math
from typing import Any

import plotly.graph_objects as go
import pytest

from floatscope_dashboards.heat_figure import fill_heat, heat_frame
from floatscope_dashboards.heat_stats import HEAT_STATS
from floatscope_dashboards.loss_figure import Panel, fill_loss, loss_frame
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.theme import TOKENS, resolve
from floatscope_dashboards.wording import number_text
from tests.dashboards.sample import HOSTILE, ORIGIN, faulty_curves, healthy_curves
from tests.dashboards.site import Site
from tests.dashboards.test_figures import columns
from tests.dashboards.watched import Watched

NAN, INF = math.nan, math.inf

LOSS_JS = """async ([frame, series, options, tokens]) => {
  const { fillLoss } = await import('/static/js/loss.js');
  const { resolve } = await import('/static/js/plot.js');
  return resolve(fillLoss(frame, series, options), tokens);
}"""
HEAT_JS = """async ([frame, payload, options, tokens]) => {
  const { readGrid } = await import('/static/js/grid.js');
  const { fillHeat } = await import('/static/js/heat.js');
  const { resolve } = await import('/static/js/plot.js');
  const { order, marks } = options;
  const grid = readGrid(payload, { worst: options.stat.worst, order, marks });
  return resolve(fillHeat(frame, grid, options), tokens);
}"""
WORDS_JS = """async (values) => {
  const { numberText, durationText, stepText } = await import('/static/js/core.js');
  return values.map((value) => [numberText(value), durationText(value), stepText(value)]);
}"""


def close(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two JSON values differ, numbers beyond rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [f"{path}: keys {sorted(a)} and {sorted(b)}"]
        return [line for key in a for line in close(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return [f"{path}: {len(a)} and {len(b)} items"]
        return [
            line
            for index, pair in enumerate(zip(a, b, strict=True))
            for line in close(*pair, f"{path}[{index}]")
        ]
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool):
        return [] if math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) else [f"{path}: {a} and {b}"]
    return [] if a == b else [f"{path}: {a!r} and {b!r}"]


def loss_series(name: str) -> dict[str, Any]:
    curves = faulty_curves()
    series: dict[str, Any] = curves.scalars(["loss", "grad_norm"], 0, 1 << 50, 300)["series"]
    few: dict[str, dict[str, Any]] = {
        "holes": columns([1.0, 2.0, 3.0, 4.0, NAN, 5.0], [0, 1, 2, 40, 41, 42]),
        "alone": columns([NAN, 9.0, NAN, INF, 3.0]),
        "outliers": columns([*(2.0 + 0.01 * (n % 7) for n in range(100)), 41.2, -30.0, 0.0012]),
        "nothing": columns([]),
        "one": columns([3.0], [7]),
        "nan only": columns([NAN, NAN]),
        "flat": columns([0.0, 0.0, 0.0]),
    }
    if name in few:
        return {"loss": few[name], "grad_norm": few["alone"]}
    return {**series, "baseline": healthy_curves().scalars(["loss"], 0, 1 << 50, 300)["series"]["loss"],
            "proof": curves.series(ORIGIN, "overflow_pct", 0, 1 << 50, 300),
            "old": [columns([2.0, 2.1, NAN, 2.3], [60, 61, 62, 63]), columns([])]}  # fmt: skip


@pytest.fixture
def page(watched: Watched, site: Site) -> Any:
    watched.page.goto(site.url + "/login")
    return watched.page


@pytest.mark.parametrize(
    "name", ["faulty", "holes", "alone", "outliers", "nothing", "one", "nan only", "flat"]
)
def test_the_loss_chart(page: Any, name: str) -> None:
    series = loss_series(name)
    panel = Panel(HOSTILE, "Values clipped", "%") if name == "faulty" else None
    ways: list[tuple[bool, int | None, bool, tuple[float, float] | None]] = [
        (False, None, False, None),
        (True, 0, False, None),
        (True, 7, True, None),
        (False, 50, False, (250.0, 340.5)),
    ]
    for log, half, full, zoom in ways:
        frame = loss_frame(onset=300, panel=panel, resumed=[30, 60], diverged=310)
        filled = fill_loss(frame, series, onset=300, log=log, half=half, full=full, x_range=zoom)
        ours = resolve(filled, "dark")
        options = {"onset": 300, "log": log, "half": half, "full": full, "range": zoom}
        theirs = page.evaluate(LOSS_JS, [frame, series, options, TOKENS["dark"]])
        assert close(json.loads(json.dumps(ours)), theirs) == []
        go.Figure(theirs)


@pytest.mark.parametrize("stat", HEAT_STATS, ids=lambda stat: stat.name)
def test_the_heat_map(page: Any, stat: Any) -> None:
    payload = faulty_curves().heatmap("headroom_log2", 0, 1 << 50, 40)
    payload["tensors"] = [*payload["tensors"][:-1], HOSTILE]
    order = {"blocks.11.mlp.fc2": 0}
    marks = [
        faulty_curves().heatmap("rms", 0, 1 << 50, 40),
        {**payload, "stat": "nan_count", "lo": 0.0, "tensors": ["extra/output", *payload["tensors"][1:]]},
        {**payload, "stat": "inf_count", "from": [1]},
    ]
    frame = heat_frame(onset=300)
    filled = fill_heat(frame, payload, stat=stat, onset=300, origin=ORIGIN, order=order, marks=marks)
    ours = resolve(filled, "light")
    options = {"stat": vars(stat), "onset": 300, "origin": ORIGIN, "order": order, "marks": marks}
    theirs = page.evaluate(HEAT_JS, [frame, payload, options, TOKENS["light"]])
    assert close(json.loads(json.dumps(ours)), theirs) == []
    go.Figure(theirs)


def test_numbers_durations_and_steps_read_the_same(page: Any) -> None:
    values = [
        0,
        1,
        2.9,
        59,
        60,
        3599,
        3600,
        26040,
        86400,
        1836000,
        412380,
        0.1234567,
        1.23e-5,
        12345.6,
        4.1,
    ]
    theirs = page.evaluate(WORDS_JS, values)
    say = Pages().say("en")
    assert theirs == [[number_text(float(v)), say.duration(v), say.step(round(v))] for v in values]
    sizes = [3.4e38, 1e9, -2.5e12, 0.00099]
    assert [texts[0] for texts in page.evaluate(WORDS_JS, sizes)] == [number_text(v) for v in sizes]

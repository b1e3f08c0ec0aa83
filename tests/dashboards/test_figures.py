"""The figures as plain dicts: valid for Plotly, no gap bridged, nothing hidden, NaN and Inf and missing
distinct."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go
import pytest

from floatscope_dashboards import figures
from floatscope_dashboards.bins import (
    band,
    isolated,
    line,
    missing_stretches,
    nonfinite_stretches,
    read_bins,
    span,
)
from floatscope_dashboards.figures import Panel
from floatscope_dashboards.theme import TOKENS, resolve
from tests.dashboards.sample import HOSTILE, ORIGIN, faulty_curves

NAN, INF = math.nan, math.inf


def columns(values: list[float | None], steps: list[int] | None = None) -> dict[str, list[Any]]:
    """One value per bin, as the server would send it: None is a bin that was never there."""
    kept = [(s, v) for s, v in zip(steps or range(len(values)), values, strict=True) if v is not None]
    finite = [v if math.isfinite(v) else None for _, v in kept]
    return {
        "step": [s for s, _ in kept],
        **{name: finite for name in ("min", "max", "mean", "last")},
        "count": [1] * len(kept),
        "nan": [int(math.isnan(v)) for _, v in kept],
        "inf": [int(math.isinf(v)) for _, v in kept],
    }


def trace(figure: dict[str, Any], series: str, part: str) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in figure["data"] if item["meta"] == [series, part])
    return found


def shapes(figure: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [item for item in figure["layout"]["shapes"] if item.get("name") == name]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("log", [False, True])
def test_loss_is_a_valid_plotly_figure(theme: str, log: bool) -> None:
    curves = faulty_curves()
    series = curves.scalars(["loss", "grad_norm"], 0, 1 << 50, 300)["series"]
    proof = curves.series(ORIGIN, "overflow_pct", 0, 1 << 50, 300)
    figure = figures.loss(
        {**series, "proof": proof, "baseline": series["loss"]},
        theme=theme,
        onset=300,
        panel=Panel(ORIGIN, "Values clipped", "%"),
        log=log,
    )
    go.Figure(figure)
    assert "@" not in str([item.get("line") for item in figure["data"]])
    assert figure["layout"]["yaxis"]["type"] == ("log" if log else "linear")


@pytest.mark.parametrize(
    "values",
    [
        [],
        [2.0],
        [NAN],
        [NAN, NAN, INF],
        [0.0, 0.0],
        [-1.0, 0.0],
        [1e308, -1e308],
        [1e-300, 2e-300],
        [None, 2.0, None],
    ],
)
@pytest.mark.parametrize("log", [False, True])
def test_any_series_makes_a_valid_figure(values: list[float | None], log: bool) -> None:
    go.Figure(
        figures.loss({"loss": columns(values), "grad_norm": columns(values)}, theme="light", onset=0, log=log)
    )


def test_nothing_at_all_makes_a_valid_figure() -> None:
    go.Figure(figures.loss({}, theme="dark"))


def test_hostile_names_become_text_that_plotly_shows_literally() -> None:
    figure = figures.loss({}, theme="light", panel=Panel(HOSTILE, HOSTILE, ""))
    go.Figure(figure)
    assert "<script" not in str(figure)
    assert figures.plain("<b>&") == "&lt;b&gt;&amp;"
    assert len(figures.plain("x" * 1000)) <= 60


def test_only_colour_keys_are_coloured_so_a_name_may_start_with_an_at_sign() -> None:
    assert resolve({"color": "@nan", "text": "@nan", "ticktext": ["@nan"]}, "light") == {
        "color": TOKENS["light"]["nan"],
        "text": "@nan",
        "ticktext": ["@nan"],
    }
    with pytest.raises(KeyError):
        resolve({"color": "@nothing"}, "light")


def test_the_line_is_broken_at_nan_and_at_missing_steps() -> None:
    assert line(read_bins(columns([1.0, 2.0, NAN, 3.0, 4.0])))[1] == [1.0, 2.0, None, 3.0, 4.0, None]
    hole = read_bins(columns([1.0, 2.0, 3.0, 4.0], [0, 1, 20, 21]))
    assert line(hole)[0] == [0, 1, None, 20, 21, None]
    assert missing_stretches(hole) == [(1.0, 20.0)]


def test_steps_sampled_evenly_apart_are_not_a_hole() -> None:
    assert missing_stretches(read_bins(columns([1.0] * 6, [0, 10, 20, 30, 40, 50]))) == []


def test_the_band_is_one_closed_polygon_per_finite_run() -> None:
    source = columns([1.0, 2.0, NAN, 5.0, 6.0, 7.0])
    source["min"] = [0.5, 1.5, None, 4.5, 5.5, 6.5]
    source["max"] = [1.5, 2.5, None, 5.5, 6.5, 7.5]
    x, y = band(read_bins(source))
    assert x == [0, 1, 1, 0, 0, None, 3, 4, 5, 5, 4, 3, 3, None]
    assert y == [1.5, 2.5, 1.5, 0.5, 1.5, None, 5.5, 6.5, 7.5, 6.5, 5.5, 4.5, 5.5, None]


def test_a_point_between_two_nans_is_drawn_as_a_marker() -> None:
    bins = read_bins(columns([1.0, 2.0, NAN, 9.0, NAN, 3.0]))
    assert isolated(bins) == ([3, 5], [9.0, 3.0])
    figure = figures.loss({"loss": columns([NAN, 9.0, NAN])}, theme="light")
    assert trace(figure, "loss", "single")["x"] == [1]
    assert trace(figure, "loss", "single")["mode"] == "markers"


def test_nan_inf_and_missing_are_drawn_in_three_ways() -> None:
    figure = figures.loss(
        {"loss": columns([1.0, NAN, 1.0, INF, 1.0, 1.0, 1.0, 1.0], [0, 1, 2, 3, 4, 5, 6, 90])}, theme="light"
    )
    nan, inf = trace(figure, "loss", "nan"), trace(figure, "loss", "inf")
    assert (nan["x"], inf["x"]) == ([1], [3])
    assert nan["marker"]["symbol"] != inf["marker"]["symbol"]
    assert [(item["x0"], item["x1"]) for item in shapes(figure, "nonfinite")] == [(0.5, 1.5), (2.5, 3.5)]
    assert [(item["x0"], item["x1"]) for item in shapes(figure, "missing")] == [(6.0, 90.0)]


def test_neighbouring_nans_are_one_stretch_and_there_are_few() -> None:
    assert nonfinite_stretches(read_bins(columns([1.0, NAN, NAN, NAN, 1.0]))) == [(0.5, 3.5)]
    many = columns([NAN if index % 2 else 1.0 for index in range(400)])
    assert len(nonfinite_stretches(read_bins(many))) == 40


def test_onset_and_recovery_are_marked() -> None:
    source = {"loss": columns([1.0] * 100)}
    figure = figures.loss(source, theme="light", onset=40)
    assert shapes(figure, "onset")[0]["x0"] == 40
    assert shapes(figure, "after-onset")[0]["x1"] > 99
    assert any("Onset 40" in item["text"] for item in figure["layout"]["annotations"])
    back = figures.loss(source, theme="light", onset=40, resolved=60)
    assert shapes(back, "while-open")[0]["x1"] == 60
    assert shapes(back, "resolved")[0]["x0"] == 60


def test_an_outlier_does_not_flatten_the_curve_but_is_counted() -> None:
    values: list[float | None] = [2.0 + 0.01 * (index % 7) for index in range(200)]
    values[120] = 41.2
    figure = figures.loss({"loss": columns(values)}, theme="light")
    assert figure["layout"]["yaxis"]["range"][1] < 3
    assert "1 point above, max 41.2" in [item["text"] for item in figure["layout"]["annotations"]]


def test_values_at_or_below_zero_are_left_out_of_a_log_range() -> None:
    found = span([read_bins(columns([-1.0, 0.0, 0.5, 2.0]))], positive=True)
    assert found is not None
    assert found.smallest == 0.5
    assert span([read_bins(columns([-1.0, 0.0]))], positive=True) is None


def test_rows_that_are_not_complete_are_left_out() -> None:
    bins = read_bins({"step": [3, None, 1], "mean": [1.0, 2.0]})
    assert (bins.step, bins.mean) == ((1, 3), (None, 1.0))


def test_the_share_button_of_plotly_is_off() -> None:
    assert figures.CONFIG["showSendToCloud"] is False
    assert figures.CONFIG["plotlyServerURL"] == ""
    assert figures.CONFIG["modeBarButtons"] == [["toImage"]]


def test_smoothing_starts_at_the_first_value_and_never_goes_over_a_gap() -> None:
    values: list[float | None] = [*[2.0] * 50, NAN, *[8.0] * 50]
    figure = figures.loss({"loss": columns(values), "baseline": columns([2.0] * 101)}, theme="light")
    smoothed = trace(figure, "loss", "smooth")["y"]
    assert smoothed[:50] == pytest.approx([2.0] * 50)
    assert smoothed[50] is None
    assert smoothed[51:101] == pytest.approx([8.0] * 50)
    assert trace(figure, "loss", "line")["line"]["width"] == 1, "the values themselves stay, faintly"
    assert len(trace(figure, "loss", "line")["y"]) == len(smoothed)


def test_few_values_are_not_smoothed() -> None:
    figure = figures.loss({"loss": columns([1.0, 2.0, 3.0])}, theme="light")
    assert trace(figure, "loss", "smooth")["y"] == []
    assert trace(figure, "loss", "line")["line"]["width"] == 2


def test_the_proof_is_never_cut_at_its_peak() -> None:
    values: list[float | None] = [0.0] * 100
    values[50] = 77.0
    figure = figures.loss({"proof": columns(values)}, theme="light", panel=Panel("t", "Values clipped", "%"))
    assert figure["layout"]["yaxis3"]["range"][1] > 77


@pytest.mark.parametrize(("steps", "dtick"), [([], 1), ([7], 1), ([7, 8, 9], 1), (list(range(20)), None)])
def test_no_step_stands_at_two_ticks_while_there_are_few(steps: list[int], dtick: int | None) -> None:
    ones, none, twos = [1] * len(steps), [0] * len(steps), [2.0] * len(steps)
    values = dict.fromkeys(("mean", "min", "max", "last"), twos)
    loss = {"step": steps, "count": ones, "nan_count": none, "inf_count": none, **values}
    filled = figures.fill_loss(figures.loss_frame(onset=None), {"loss": loss}, onset=None)
    assert filled["layout"]["xaxis"].get("dtick") == dtick

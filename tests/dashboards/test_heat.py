"""The heat map: decoded cells, blocks and order of rows, pooling by the worst, holes, payloads that do not
fit."""

from __future__ import annotations

import base64
from typing import Any

import plotly.graph_objects as go
import pytest

from floatscope_dashboards import figures
from floatscope_dashboards.heat_cells import INF_MARK, NAN_MARK, read_cells
from floatscope_dashboards.heat_figure import color_range
from floatscope_dashboards.heat_grid import MAX_ROWS, layer_number, natural_key, read_grid, short_layer
from floatscope_dashboards.heat_stats import HEAT_STATS, buttons, first_choice, mark_stats, offered
from floatscope_dashboards.theme import TOKENS
from tests.dashboards.sample import HOSTILE, ORIGIN, faulty_curves

HEADROOM = HEAT_STATS[0]


def payload(tensors: list[str], rows: list[list[int]], **more: Any) -> dict[str, Any]:
    columns = len(rows[0]) if rows else 0
    return {
        "stat": "headroom_log2",
        "tensors": tensors,
        "from": list(range(columns)),
        "to": list(range(columns)),
        "encoding": "u1",
        "lo": 0.0,
        "hi": 253.0,
        "data": base64.b64encode(b"".join(bytes(row) for row in rows)).decode(),
        "nan": [],
        "inf": [],
        **more,
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("stat", HEAT_STATS, ids=lambda stat: stat.name)
def test_every_statistic_makes_a_valid_plotly_figure(theme: str, stat: Any) -> None:
    source = faulty_curves().heatmap("headroom_log2", 0, 1 << 50, 60)
    figure = figures.heatmap(source, stat=stat, theme=theme, onset=300, origin=ORIGIN)
    go.Figure(figure)
    assert "began here" in str(figure["layout"]["annotations"])


def test_codes_become_values_and_the_three_kinds_of_nothing_stay_apart() -> None:
    source = payload(["a/input"], [[0, 253, 254, 255, 255]], nan=[[0, 3, 7]], inf=[[0, 4, 1]])
    grid = read_grid(source, worst="low")
    by_column = dict(zip(grid.columns, grid.value[0], strict=True))
    marks = dict(zip(grid.columns, grid.mark[0], strict=True))
    assert (by_column[0], by_column[1]) == (0.0, 253.0)
    assert (marks[3], marks[4]) == (NAN_MARK, INF_MARK)
    assert by_column[3] is None


def test_rows_come_in_blocks_in_call_order_and_natural_order() -> None:
    names = ["l.10.fc/input", "l.2.fc/input", "l.2.fc/weight", "l.2.fc/grad_output", "odd"]
    grid = read_grid(payload(names, [[1]] * 5), worst="low")
    shown = [(row.block, row.label) if row else None for row in grid.rows]
    assert shown == [
        ("Activations", "2.fc"),
        ("Activations", "10.fc"),
        None,
        ("Weights", "2.fc"),
        None,
        ("Gradients", "2.fc"),
        None,
        ("Other", "odd"),
    ]
    ordered = read_grid(payload(names, [[1]] * 5), worst="low", order={"l.10.fc": 0, "l.2.fc": 1})
    assert ordered.rows[0] is not None
    assert ordered.rows[0].label == "10.fc"


def test_more_rows_than_pixels_are_pooled_to_the_worst() -> None:
    names = [f"l.{index}/input" for index in range(MAX_ROWS * 4)]
    low = read_grid(payload(names, [[200 - index % 4] for index in range(len(names))]), worst="low")
    assert len(low.rows) == MAX_ROWS
    assert {row[0] for row in low.value} == {197.0}
    high = read_grid(payload(names, [[200 - index % 4] for index in range(len(names))]), worst="high")
    assert {row[0] for row in high.value} == {200.0}


def test_one_nan_makes_its_pooled_cell_nan() -> None:
    names = [f"l.{index}/input" for index in range(MAX_ROWS * 2)]
    rows = [[100] for _ in names]
    rows[17] = [255]
    grid = read_grid(payload(names, rows, nan=[[17, 0, 3]]), worst="low")
    assert [index for index, marks in enumerate(grid.mark) if marks[0]] == [8]


def test_statistics_sampled_on_every_fourth_step_make_no_stripes() -> None:
    row = [10 if step % 4 == 0 else 254 for step in range(40)]
    grid = read_grid(payload(["a/input"], [row]), worst="low")
    assert grid.columns == tuple(range(0, 40, 4))
    assert grid.edges == (*range(0, 40, 4), 40.0)


def test_a_hole_in_the_steps_is_a_column_without_values() -> None:
    row = [10 if step < 10 or step >= 40 else 254 for step in range(50)]
    grid = read_grid(payload(["a/input"], [row]), worst="low")
    assert grid.columns[9:12] == (9, None, 40)
    assert grid.value[0][10] is None
    assert grid.edges[10:12] == (10.0, 40.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data": "AAAA"}, "data: expected 1 x 2 = 2 bytes, got 3"),
        ({"data": "not base64!"}, "data: expected base64"),
        ({"to": [1]}, "to: expected 2 columns"),
    ],
)
def test_a_payload_that_does_not_fit_names_the_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named.replace("(", r"\(")):
        read_grid(payload(["a/input"], [[1, 2]], **change), worst="low")


@pytest.mark.parametrize(
    "source", [payload([], []), payload(["a/input"], [[254, 254]]), payload(["a/input"], [[255]])]
)
def test_nothing_to_show_makes_a_valid_figure(source: dict[str, Any]) -> None:
    go.Figure(figures.heatmap(source, stat=HEADROOM, theme="light", onset=3, origin="a/input"))


def test_hostile_tensor_names_are_shown_literally() -> None:
    figure = figures.heatmap(payload([HOSTILE + "/input"], [[1]]), stat=HEADROOM, theme="light")
    go.Figure(figure)
    assert "<script" not in str(figure)


def test_names_read_from_their_number_on() -> None:
    assert short_layer("model.layers.23.mlp.fc2") == "23.mlp.fc2"
    assert short_layer("lm_head") == "lm_head"
    assert sorted(["l.10", "l.9", "l.x"], key=natural_key) == ["l.9", "l.10", "l.x"]


def test_the_first_statistic_is_the_one_that_proves_the_finding() -> None:
    names = ("headroom_log2", "overflow_pct", "underflow_pct", "amax")
    assert [stat.name for stat in offered(names)] == list(names)
    assert first_choice(names, ["underflow_pct"]) == "underflow_pct"
    assert first_choice(names, ["overflow_pct"]) == "headroom_log2"
    assert first_choice(names, []) == "headroom_log2"
    assert first_choice(("overflow_pct",), []) == "overflow_pct"
    assert first_choice(("amax",), []) == "amax"
    assert first_choice(("other", "scale"), ["other"]) == "scale"
    assert first_choice(("other",), []) == "other"
    assert first_choice((), []) is None


def test_every_statistic_can_be_chosen_the_first_four_by_buttons() -> None:
    names = ("rms", "my_own", "headroom_log2", "overflow_pct", "underflow_pct", "amax", "scale", "sat")
    found = buttons(names)
    assert [stat.name for stat in found.buttons] == [
        "headroom_log2",
        "overflow_pct",
        "underflow_pct",
        "scale",
    ]
    assert [stat.name for stat in found.others] == ["sat", "amax", "rms", "my_own"]


def test_a_statistic_of_ones_own_has_the_colours_of_its_values() -> None:
    own = offered(["my_own"])[0]
    assert color_range(own, {"lo": 2.0, "hi": 8.0}) == (2.0, 8.0)
    assert color_range(own, {"lo": 3.0, "hi": 3.0}) == (3.0, 4.0)
    assert color_range(own, {"lo": None, "hi": None}) == (0.0, 1.0)
    assert color_range(HEADROOM, {"lo": 2.0, "hi": 8.0}) == (-4.0, 8.0)


def test_many_rows_are_labelled_by_the_number_of_their_layer() -> None:
    names = [f"blocks.{layer}.{part}/input" for layer in range(8) for part in "abcde"]
    names += ["head/input", "blocks.3.a/weight"]
    figure = figures.heatmap(payload(names, [[1]] * len(names)), stat=HEADROOM, theme="light")
    axis = figure["layout"]["yaxis"]
    ticks = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
    assert ticks == {0: "0", 10: "2", 20: "4", 25: "5", 35: "7", 42: "3"}
    titles = figure["layout"]["annotations"]
    assert [title["name"] for title in titles] == ["Activations", "Weights"]
    assert all(title["xanchor"] == "right" for title in titles)
    gaps = [shape for shape in figure["layout"]["shapes"] if shape["name"] == "gap"]
    assert [(gap["y0"], gap["y1"]) for gap in gaps] == [(40.5, 41.5)]


def test_few_rows_keep_their_names() -> None:
    figure = figures.heatmap(payload(["blocks.1.fc/input"], [[1]]), stat=HEADROOM, theme="light")
    assert figure["layout"]["yaxis"]["ticktext"] == ["1.fc"]
    assert figure["layout"]["annotations"][0]["yanchor"] == "bottom"


@pytest.mark.parametrize(
    ("layer", "number"),
    [("model.layers.23.mlp.fc2", "23"), ("fc2", ""), ("h.0", "0"), ("block_7_attn", "7"), ("lm_head", "")],
)
def test_the_number_of_a_layer_is_a_part_of_its_name(layer: str, number: str) -> None:
    assert layer_number(layer) == number


def test_where_values_are_not_finite_is_laid_over_from_other_statistics() -> None:
    source = payload(["a/input", "b/input"], [[9, 254, 9], [9, 9, 9]])
    rms = payload(
        ["a/input", "emb/output"], [[9, 255, 9], [9, 255, 255]], nan=[[0, 1, 1], [1, 2, 1]], inf=[[1, 1, 1]]
    )
    cells = read_cells(source, [rms])
    assert cells.tensors == ("a/input", "b/input", "emb/output")
    assert list(cells.codes[0]) == [9, 255, 9]
    assert list(cells.codes[2]) == [254, 255, 255]
    assert (cells.kind([0], 1), cells.kind([2], 1), cells.kind([0, 2], 1)) == (NAN_MARK, INF_MARK, NAN_MARK)


def test_a_count_of_nan_elements_marks_its_cell_unless_it_is_zero() -> None:
    counts = payload(["a/input"], [[0, 3, 254]], stat="nan_count")
    assert list(read_cells(payload(["a/input"], [[9, 9, 9]]), [counts]).codes[0]) == [9, 255, 9]


def test_marks_over_other_columns_are_left_out() -> None:
    rms = payload(["a/input"], [[255]], nan=[[0, 0, 1]])
    assert list(read_cells(payload(["a/input"], [[9, 9]]), [rms]).codes[0]) == [9, 9]


def test_tensors_without_the_statistic_have_no_row() -> None:
    grid = read_grid(payload(["a/input", "emb/output"], [[9], [254]]), worst="low")
    assert [row.label for row in grid.rows if row] == ["a"]


def test_counts_tell_what_is_not_finite_else_the_rms() -> None:
    assert mark_stats(("amax", "rms", "nan_count", "inf_count")) == ("nan_count", "inf_count")
    assert mark_stats(("amax", "rms", "nan_count")) == ("nan_count",)
    assert mark_stats(("amax", "rms")) == ("rms",)
    assert mark_stats(("amax",)) == ()


def test_headroom_recedes_at_zero_where_current_scaling_puts_every_tensor() -> None:
    place = -HEADROOM.low / (HEADROOM.high - HEADROOM.low)
    for theme, background in (("light", 0xEE), ("dark", 0x1E)):
        ramp = TOKENS[theme]["ramp-both"]
        after = next(colour for at, colour in ramp if at > place)
        assert int(after[1:3], 16) == background

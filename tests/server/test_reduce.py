"""Reduction for the screen: no spike, NaN or gap is lost at any zoom."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest

from floatscope_server.levels import summarise
from floatscope_server.reduce import MISSING, NON_FINITE, HeatMap, bin_width, columns


def reduced(value: list[float], width: int) -> dict[str, list[Any]]:
    step = np.arange(len(value))
    return columns(summarise(step, np.array(value)[:, None], None, width), first=0)


def test_columns_of_one_bin() -> None:
    assert reduced([1.0, math.nan, 4.0, math.inf, 1.0, math.nan], 8) == {
        "step": [0],
        "min": [1.0],
        "max": [4.0],
        "mean": [pytest.approx(2.0)],
        "last": [1.0],
        "count": [6],
        "nan": [2],
        "inf": [1],
    }


def test_a_bin_without_finite_values_has_null() -> None:
    out = reduced([1.0, math.nan, 3.0], 1)
    assert out["mean"] == [1.0, None, 3.0]
    assert out["last"] == [1.0, None, 3.0]
    assert out["nan"] == [0, 1, 0]


def test_means_of_huge_numbers_do_not_overflow() -> None:
    assert reduced([1.6e308, 1.6e308, 1.6e308], 4)["mean"] == [pytest.approx(1.6e308)]


def test_a_bin_begins_where_its_steps_do_but_not_before_the_first() -> None:
    level = summarise(np.array([5, 6, 9]), np.ones((3, 1)), None, 4)
    assert columns(level, first=5)["step"] == [5, 8]


@pytest.mark.parametrize("points", [1, 2, 7, 100, 900])
def test_bins_never_move_while_a_run_grows(points: int) -> None:
    for last in (3, 100, 101, 5000, 10**6):
        width = bin_width(3, last, points)
        assert last // width - 3 // width < points
        assert width & (width - 1) == 0
        assert width == 1 or last // (width // 2) - 3 // (width // 2) >= points


def decoded(heat: HeatMap) -> tuple[dict[str, Any], Any]:
    out = heat.to_json()
    cells = np.frombuffer(base64.b64decode(out["data"]), np.uint8)
    return out, cells.reshape(len(out["tensors"]), len(out["from"]))


def test_heat_map_shows_the_worst_and_keeps_nan_inf_and_missing_apart() -> None:
    heat = HeatMap("overflow_pct", ["a", "b"], first=0, last=9, columns=5)
    values = np.array([[1.0, 5.0], [9.0, math.nan], [2.0, 0.0], [2.0, math.inf]])
    present = np.array([[True, True], [True, True], [True, False], [False, True]])
    heat.add(("a", "b"), np.array([0, 1, 4, 8]), values, present)
    out, cells = decoded(heat)
    assert (out["from"], out["to"]) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    assert (out["lo"], out["hi"]) == (2.0, 9.0)
    assert cells.tolist() == [
        [253, MISSING, 0, MISSING, MISSING],
        [NON_FINITE, MISSING, MISSING, MISSING, NON_FINITE],
    ]
    assert out["nan"] == [[1, 0, 1]]
    assert out["inf"] == [[1, 4, 1]]


def test_the_lowest_headroom_is_the_worst() -> None:
    heat = HeatMap("headroom_log2", ["a"], first=0, last=3, columns=2)
    heat.add(("a",), np.array([0, 1, 2, 3]), np.array([[3.0], [-1.0], [8.0], [4.0]]), np.ones((4, 1), bool))
    out, cells = decoded(heat)
    assert (out["lo"], out["hi"]) == (-1.0, 4.0)
    assert cells.tolist() == [[0, 253]]


def test_logarithms_of_values_that_span_many_binades() -> None:
    heat = HeatMap("amax", ["a"], first=0, last=4, columns=5, log2=True)
    heat.add(("a",), np.arange(5), np.array([[0.25], [2.0**20], [0.0], [-1.0], [math.nan]]), None)
    out, cells = decoded(heat)
    assert (out["log2"], out["lo"], out["hi"]) == (True, -2.0, 20.0)
    assert cells.tolist() == [[0, 253, MISSING, MISSING, NON_FINITE]]


def test_one_value_and_no_value() -> None:
    heat = HeatMap("amax", ["a"], first=0, last=0, columns=500)
    out, cells = decoded(heat)
    assert (out["lo"], out["tensors"], cells.size) == (None, [], 0)
    heat.add(("a",), np.array([0]), np.array([[3.0]]), np.ones((1, 1), bool))
    out, cells = decoded(heat)
    assert (out["lo"], out["hi"], cells.tolist()) == (3.0, 3.0, [[0]])


def test_batches_that_share_a_bin_and_other_tensors_are_joined() -> None:
    heat = HeatMap("amax", ["a", "b"], first=0, last=99, columns=1)
    heat.add(("b", "z"), np.array([0]), np.array([[7.0, 99.0]]), np.ones((1, 2), bool))
    heat.add(("a", "b"), np.array([50]), np.array([[1.0, 3.0]]), np.ones((1, 2), bool))
    out, cells = decoded(heat)
    assert (out["lo"], out["hi"]) == (1.0, 7.0)
    assert cells.tolist() == [[0], [253]]


def test_very_many_tensors_get_fewer_columns() -> None:
    heat = HeatMap("amax", [f"t{i}" for i in range(100_000)], first=0, last=9999, columns=500)
    assert len(heat.to_json()["from"]) == 20


def test_a_run_that_diverged_lists_a_bounded_number_of_cells() -> None:
    tensors = [f"t{i}" for i in range(150)]
    heat = HeatMap("amax", tensors, first=0, last=499, columns=500)
    values = np.full((500, 150), math.nan)
    values[0, :3] = [math.inf, 1.0, 2.0]
    heat.add(tensors, np.arange(500), values, None)
    out, cells = decoded(heat)
    assert (len(out["nan"]), out["nan_left_out"]) == (50_000, 150 * 500 - 3 - 50_000)
    assert (out["inf"], "inf_left_out" in out) == ([[0, 0, 1]], False)
    assert out["nan"][:2] == [[0, 1, 1], [0, 2, 1]]
    assert np.count_nonzero(cells == NON_FINITE) == 150 * 500 - 2


def test_columns_begin_at_multiples_of_their_width_and_end_with_the_span() -> None:
    out = HeatMap("amax", ["a"], first=5, last=21, columns=5).to_json()
    assert (out["from"], out["to"]) == ([5, 8, 12, 16, 20], [7, 11, 15, 19, 21])


@pytest.mark.parametrize("stat", ["amax", "headroom_log2"])
def test_a_level_counts_as_its_rows_do(stat: str) -> None:
    step = np.array([3, 4, 9, 10, 16, 17])
    values = np.array([[1.0, math.nan], [5.0, 2.0], [math.inf, 3.0], [0.0, 4.0], [7.0, 1.0], [2.0, 2.0]])
    by_rows, by_level = (HeatMap(stat, ["a", "b"], first=3, last=17, columns=3) for _ in range(2))
    by_rows.add(("a", "z", "b"), step, values[:, [0, 0, 1]], None)
    by_level.add_level(("a", "b"), summarise(step, values, None, 4))
    assert by_level.to_json() == by_rows.to_json()

"""Reduction for the screen: no spike, NaN or gap is lost at any zoom."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest

from floatscope_server.reduce import COLUMNS, MISSING, NON_FINITE, HeatMap, bin_starts, summarise


def reduced(value: list[float], points: int, *, first: int = 0) -> dict[str, list[Any]]:
    step = np.arange(first, first + len(value))
    return summarise(step, np.array(value), points, first=first, last=first + len(value) - 1)


@pytest.mark.parametrize("points", [1, 7, 100, 900, 9999])
def test_one_spike_and_one_nan_in_many_steps_are_in_every_answer(points: int) -> None:
    value = np.ones(10_000)
    value[7777] = 1e9
    value[1234] = math.nan
    value[4321] = -math.inf
    out = summarise(np.arange(10_000), value, points, first=0, last=9999)
    assert max(v for v in out["max"] if v is not None) == 1e9
    assert sum(out["nan"]) == 1
    assert sum(out["inf"]) == 1
    assert sum(out["count"]) == 10_000
    assert len(out["step"]) <= points


def test_columns_of_one_bin() -> None:
    out = reduced([1.0, math.nan, 4.0, math.inf, 1.0, math.nan], 1)
    assert out == {
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
    out = reduced([1.0, math.nan, 3.0], 3)
    assert out["mean"] == [1.0, None, 3.0]
    assert out["last"] == [1.0, None, 3.0]
    assert out["nan"] == [0, 1, 0]


def test_nothing_gives_empty_columns() -> None:
    assert reduced([], 10) == {name: [] for name in COLUMNS}


def test_means_of_huge_numbers_do_not_overflow() -> None:
    assert reduced([1.6e308, 1.6e308, 1.6e308], 1)["mean"] == [pytest.approx(1.6e308)]


def test_bins_have_equal_widths_in_steps_and_gaps_stay_gaps() -> None:
    step = np.array([0, 1, 2, 3, 50, 51, 97, 98, 99])
    starts = bin_starts(step, 4, first=0, last=99)
    assert step[starts].tolist() == [0, 50, 97]


def test_few_sparse_values_are_not_merged() -> None:
    step = np.arange(0, 10_000, 100)
    assert len(bin_starts(step, 100, first=0, last=9999)) == 100


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
    assert len(heat.to_json()["from"]) == 25

"""Thinned curves: the same however the run was cut, no spike and no bad value lost."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.curves import POINTS, Curve, Curves


def feed(values: list[float], cuts: list[int]) -> Curve:
    curve = Curve()
    array = np.array(values)
    bounds = [0, *sorted({c for c in cuts if 0 < c < len(values)}), len(values)]
    for a, b in itertools.pairwise(bounds):
        rows = np.arange(a, b)
        curve.add(rows, rows + 1, array[a:b])
    return curve


@given(
    st.lists(st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf, -np.inf]), min_size=1, max_size=3000),
    st.lists(st.integers(1, 3000), max_size=20),
)
def test_bins_do_not_depend_on_batches(values: list[float], cuts: list[int]) -> None:
    whole, pieces = feed(values, []), feed(values, cuts)
    for field in dataclasses.fields(Curve):
        a, b = getattr(whole, field.name), getattr(pieces, field.name)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-6, err_msg=field.name)


def test_one_spike_and_one_nan_in_a_million_are_kept() -> None:
    values = np.full(1_000_000, 2.0)
    values[777_777], values[123_456], values[500_000] = 41.2, np.nan, -7.0
    curve = Curve()
    rows = np.arange(len(values))
    for start in range(0, len(values), 50_000):
        curve.add(rows[start : start + 50_000], rows[start : start + 50_000], values[start : start + 50_000])
    assert len(curve) <= POINTS
    assert (np.nanmax(curve.high), np.nanmin(curve.low)) == (41.2, -7.0)
    assert (curve.nan.sum(), curve.inf.sum(), curve.bad.sum()) == (1, 0, 1)
    assert curve.finite.sum() == len(values) - 1


def batch(step: list[int], **scalars: list[float]) -> Batch:
    values = np.array(list(scalars.values())).T
    return Batch(
        step=np.array(step),
        time=np.full(len(step), np.nan),
        scalar_names=tuple(scalars),
        scalars=values,
        scalars_present=np.ones(values.shape, bool),
    )


def test_steps_that_go_back_are_drawn_one_behind_the_other() -> None:
    curves = Curves()
    curves.add(0, batch(list(range(10)), loss=[1.0] * 10))
    curves.add(0, batch(list(range(5, 15)), loss=[2.0] * 10))
    assert curves.seams == (10,)
    assert curves.span() == (0.0, 19.0)
    assert curves.ends() == (0, 14)
    assert curves.at(7, 0) == 7.0
    assert curves.at(7, 1) == 12.0
    assert curves.step_at(12.0) == 7


def test_without_a_loss_other_series_are_drawn_those_called_loss_first() -> None:
    curves = Curves()
    names = {name: [1.0, 2.0] for name in ("acc", "a", "b", "c", "d", "g_loss", "epoch")}
    curves.add(0, batch([1, 2], **names))
    assert list(curves.series) == ["acc", "a", "b", "g_loss"]


def test_only_the_first_rank_is_drawn() -> None:
    curves = Curves()
    curves.add(1, batch([1, 2], loss=[1.0, 1.0]))
    curves.add(0, batch([1, 2], loss=[9.0, 9.0]))
    assert curves.series["loss"].count == 2
    assert curves.series["loss"].last_value == 1.0


@pytest.mark.parametrize("value", [1e300, -1e300, np.finfo(float).max])
def test_values_without_bounds_keep_a_finite_mean(value: float) -> None:
    curve = feed([value, value], [])
    assert np.isfinite(curve.mean).all()

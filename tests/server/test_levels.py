"""Levels say exactly what a look at every value says, at every width, however they were put together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from floatscope.protocol.batch import Bool, Float64, Int64
from floatscope_server.levels import FEW_BINS, Level, merge, summarise, widths
from floatscope_server.store.level_format import pack_level, unpack_level

VALUES = st.sampled_from([0.0, -0.0, 1.5, -3.25, 1e30, float("nan"), float("inf"), float("-inf")])


@st.composite
def tables(draw: st.DrawFn) -> tuple[Int64, Float64, Bool]:
    rows, columns = draw(st.integers(1, 80)), draw(st.integers(1, 3))
    step = np.cumsum(draw(st.lists(st.integers(1, 40), min_size=rows, max_size=rows))).astype(np.int64)
    cells = rows * columns
    values = np.array(draw(st.lists(VALUES, min_size=cells, max_size=cells))).reshape(rows, columns)
    present = np.array(draw(st.lists(st.booleans(), min_size=cells, max_size=cells))).reshape(rows, columns)
    return step, np.where(present, values, 0.0), present


def check(level: Level, step: Int64, values: Float64, present: Bool) -> None:
    number = step // level.width
    assert level.bins.tolist() == sorted(set(number.tolist()))
    for b, bin_number in enumerate(level.bins):
        for s in range(values.shape[1]):
            inside = values[:, s][(number == bin_number) & present[:, s]]
            finite = inside[np.isfinite(inside)]
            assert level.count[s, b] == len(inside)
            assert level.nan[s, b] == np.isnan(inside).sum()
            assert level.inf[s, b] == np.isinf(inside).sum()
            assert level.mean is not None
            assert level.last is not None
            if len(finite):
                assert level.minimum[s, b] == finite.min()
                assert level.maximum[s, b] == finite.max()
                assert level.last[s, b] == finite[-1]
                np.testing.assert_allclose(level.mean[s, b], finite.mean(), rtol=1e-12, atol=1e-300)
            else:
                assert np.isnan(
                    [level.minimum[s, b], level.maximum[s, b], level.mean[s, b], level.last[s, b]]
                ).all()


@given(tables(), st.sampled_from([1, 4, 16, 64, 1024]))
def test_a_level_is_what_its_values_say(table: tuple[Int64, Float64, Bool], width: int) -> None:
    level = summarise(*table, width)
    check(level, *table)
    check(unpack_level(pack_level(level)), *table)


@given(tables(), st.data())
def test_levels_of_pieces_make_the_level_of_the_whole(
    table: tuple[Int64, Float64, Bool], data: st.DataObject
) -> None:
    step, values, present = table
    cut = data.draw(st.integers(0, len(step)))
    fine = data.draw(st.sampled_from([1, 4, 16]))
    parts = [
        summarise(step[part], values[part], present[part], fine)
        for part in (slice(0, cut), slice(cut, None))
        if len(step[part])
    ]
    check(merge(parts, 64), step, values, present)


def test_all_present_is_the_same_as_no_mask() -> None:
    step, values = np.arange(5, 90), np.random.default_rng(1).normal(size=(85, 4))
    check(summarise(step, values, None, 16), step, values, np.ones(values.shape, bool))


def test_the_mean_of_huge_values_does_not_overflow() -> None:
    level = summarise(np.arange(4), np.full((4, 1), 1.7e308), None, 16)
    assert level.mean is not None
    np.testing.assert_allclose(level.mean[0, 0], 1.7e308)


def test_a_thin_reading_leaves_out_mean_and_last() -> None:
    level = unpack_level(
        pack_level(summarise(np.arange(64), np.ones((64, 2), np.float32), None, 16)), thin=True
    )
    assert level.mean is None
    assert level.maximum.dtype == np.float32


@given(st.integers(1, 5000), st.integers(1, 3000), st.integers(0, 10**9))
def test_widths_are_powers_of_four_that_save_something(rows: int, pitch: int, first: int) -> None:
    step = first + pitch * np.arange(rows)
    for width in widths(step):
        assert width & (width - 1) == 0
        assert len(set((step // width).tolist())) * 8 <= rows
    if rows >= 1000:
        assert len(set((step // widths(step)[-1]).tolist())) <= FEW_BINS

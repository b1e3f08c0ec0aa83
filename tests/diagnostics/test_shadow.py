"""The shadow scale against Transformer Engine's rule written plainly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.shadow import FLT_MAX, STAIRS, TOLERANCE_LOG2, ShadowScale
from tests.diagnostics.synthetic import History

AMAX = st.one_of(
    st.floats(1e-3, 1e3),
    st.sampled_from([0.0, math.inf, math.nan, 1e-38, 448.0]),
)


def columns(*, history: int, algo: str = "max", margin: float = 0.0) -> Columns:
    recipe = {
        "name": "fp8_delayed_scaling",
        "amax_history_len": history,
        "amax_compute_algo": algo,
        "margin": margin,
    }
    out = Columns(RunInfo.from_json({"recipe": recipe, "tensors": {"a/input": {"format": "e4m3"}}}))
    out.add(["a/input"])
    return out


def off_by(low: float, high: float, scale: float) -> float:
    """How far a scale lies outside the interval, in octaves; 0 inside or where nothing is known."""
    if not math.isfinite(scale) or scale <= 0:
        return 0.0
    above = math.log2(scale) - math.log2(high) if high > 0 and math.isfinite(high) else 0.0
    below = math.log2(low) - math.log2(scale) if low > 0 and math.isfinite(low) else 0.0
    return max(above, below, 0.0)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(AMAX, min_size=1, max_size=60),
    st.sampled_from([1, 2, 3, 8, 40]),
    st.sampled_from(["max", "most_recent"]),
    st.sampled_from([0.0, 2.0]),
    st.integers(0, 20),
)
def test_a_correct_scale_is_never_outside(
    amaxes: list[float], history: int, algo: str, margin: float, unseen: int
) -> None:
    """Whatever the amaxes, also from the middle of a run whose earlier history nobody logged."""
    table = columns(history=history, algo=algo, margin=margin)
    shadow = ShadowScale(1)
    truth = History(448.0, history, margin, algo)
    for step, amax in enumerate(amaxes):
        if step >= unseen:
            used = np.array([truth.scale])
            low, high = shadow.step(step, np.array([amax]), used, table)
            if not (math.isinf(max(amaxes[:unseen], default=0.0)) or any(math.isnan(a) for a in amaxes)):
                assert off_by(float(low[0]), float(high[0]), truth.scale) < TOLERANCE_LOG2
        truth.update(amax)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=30, max_size=80), st.sampled_from([4, 8]), st.integers(20, 25))
def test_after_a_full_window_every_wrong_scale_is_outside(
    amaxes: list[float], history: int, fault: int
) -> None:
    table = columns(history=history)
    shadow = ShadowScale(1)
    truth = History(448.0, history)
    for step, amax in enumerate(amaxes[: fault + 1]):
        used = truth.scale * (1.1 if step == fault else 1.0)
        low, high = shadow.step(step, np.array([amax]), np.array([used]), table)
        if step == fault:
            assert off_by(float(low[0]), float(high[0]), used) == pytest.approx(math.log2(1.1), abs=1e-6)
        truth.update(amax)


def test_the_scale_before_the_log_bounds_what_was_not_seen() -> None:
    """From the middle of a run: a scale lower than both the seen amaxes and the first scale explain is wrong
    at once."""
    table = columns(history=32)
    shadow = ShadowScale(1)
    shadow.step(0, np.array([1.0]), np.array([448.0 / 8.0]), table)  # an unseen amax of 8 in the history
    low, high = shadow.step(1, np.array([1.0]), np.array([448.0 / 8.0]), table)
    assert low[0] == pytest.approx(56.0)
    assert high[0] == pytest.approx(448.0)
    low, _ = shadow.step(2, np.array([1.0]), np.array([448.0 / 20.0]), table)
    assert off_by(float(low[0]), math.inf, 448.0 / 20.0) > 1.0


def test_a_hole_in_the_log_leaves_only_the_upper_bound() -> None:
    table = columns(history=4)
    shadow = ShadowScale(1)
    for step in range(10):
        shadow.step(step, np.array([2.0]), np.array([224.0]), table)
    low, high = shadow.step(13, np.array([1.0]), np.array([10.0]), table)
    assert low[0] == 0.0
    assert high[0] >= 224.0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 10.0), st.sampled_from(["row", "row", "row", "no amax", "no row"])),
             min_size=10, max_size=80),
    st.sampled_from([2, 4, 8]),
)  # fmt: skip
def test_a_correct_scale_is_never_outside_however_much_of_the_log_is_missing(
    rows: list[tuple[float, str]], history: int
) -> None:
    """What a gap hides below a logged amax comes to light when that one leaves the window."""
    table = columns(history=history)
    shadow = ShadowScale(1)
    truth = History(448.0, history)
    for step, (amax, logged) in enumerate(rows):
        if logged != "no row":
            seen = np.array([amax if logged == "row" else math.nan])
            low, high = shadow.step(step, seen, np.array([truth.scale]), table)
            assert off_by(float(low[0]), float(high[0]), truth.scale) < TOLERANCE_LOG2
        truth.update(amax)


def test_a_tiny_amax_gives_flt_max() -> None:
    table = columns(history=1, algo="most_recent")
    shadow = ShadowScale(1)
    shadow.step(0, np.array([1e-38]), np.array([448.0]), table)
    low, high = shadow.step(1, np.array([1.0]), np.array([FLT_MAX]), table)
    assert low[0] == high[0] == FLT_MAX


def test_a_falling_series_longer_than_the_staircase_widens_the_interval_and_never_lies() -> None:
    history = 3 * STAIRS
    table = columns(history=history)
    shadow = ShadowScale(1)
    truth = History(448.0, history)
    for step in range(8 * STAIRS):
        amax = 100.0 * 0.99**step
        low, high = shadow.step(step, np.array([amax]), np.array([truth.scale]), table)
        if step:
            assert off_by(float(low[0]), float(high[0]), truth.scale) < TOLERANCE_LOG2
        truth.update(amax)


def test_several_passes_a_step_widen_the_interval() -> None:
    """Inside the interval nothing is checked; above what any pass allows is a violation."""
    table = columns(history=4)
    shadow = ShadowScale(1)
    for step in range(6):
        low, high = shadow.step(step, np.array([2.0]), np.array([224.0]), table, passes=2)
    assert low[0] <= 224.0 <= high[0]
    assert high[0] == pytest.approx(224.0)

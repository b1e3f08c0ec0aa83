"""Delayed scaling against a literal transcription of Transformer Engine's kernel, special values included."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_trainer.emulated.recipes import AmaxAlgo
from floatscope_trainer.emulated.scaling import FLT_MAX, ScalingArena

E4M3_MAX, E5M2_MAX = 448.0, 57344.0


def f32(value: float) -> float:
    """Rounded to float32."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def fmaxf(a: float, b: float) -> float:
    if math.isnan(a):
        return b
    return a if math.isnan(b) else max(a, b)


def kernel(
    history: list[float], scale: float, *, fp8_max: float, algo: str, margin: int
) -> tuple[list[float], float]:
    """`kernel_bulk` of delayed_scaling.cu for one slot, statement by statement. Returns (history, scale)."""
    length = len(history)
    last_amax = history[0]
    amax = 0.0
    if last_amax != 0.0:
        rolled = list(history)
        for i in range(length):
            a = history[i + 1] if i < length - 1 else last_amax
            amax = fmaxf(amax, a)
            rolled[i] = a if i > 0 else 0.0
        history = rolled
    if algo == "most_recent":
        amax = last_amax
    if math.isfinite(amax) and amax > 0:
        quotient = f32(fp8_max * 2.0**-margin) / amax
        scale = f32(quotient) if quotient < 1e300 else math.inf
    if math.isinf(scale):
        scale = FLT_MAX
    return history, scale


amaxes = st.one_of(
    st.floats(min_value=0, max_value=1e6, width=32),
    st.sampled_from([0.0, math.inf, math.nan, 1e-45, 1e-38, 3e38, 448.0]),
)


@settings(max_examples=200, deadline=None)
@given(
    passes=st.lists(st.tuples(amaxes, amaxes), min_size=1, max_size=12),
    length=st.integers(1, 5),
    algo=st.sampled_from(["max", "most_recent"]),
    margin=st.integers(0, 3),
)
def test_update_is_the_kernels(
    passes: list[tuple[float, float]], length: int, algo: AmaxAlgo, margin: int
) -> None:
    arena = ScalingArena([E4M3_MAX, E5M2_MAX], history_len=length)
    expected = [([0.0] * length, 1.0), ([0.0] * length, 1.0)]
    for pair in passes:
        arena.amax_history[0] = torch.tensor(pair)
        arena.update(algo=algo, margin=margin)
        for slot, fp8_max in enumerate((E4M3_MAX, E5M2_MAX)):
            history, scale = expected[slot]
            history[0] = f32(pair[slot])
            expected[slot] = kernel(history, scale, fp8_max=fp8_max, algo=algo, margin=margin)
        for slot, (history, scale) in enumerate(expected):
            assert arena.amax_history[:, slot].tolist() == pytest.approx(history, abs=0, nan_ok=True)
            assert arena.scale[slot].item() == pytest.approx(scale, rel=1e-6)


def arena_after(*amax: float, length: int = 4, algo: AmaxAlgo = "max", margin: int = 0) -> ScalingArena:
    arena = ScalingArena([E4M3_MAX], history_len=length)
    for value in amax:
        arena.amax_history[0, 0] = value
        arena.update(algo=algo, margin=margin)
    return arena


def test_first_pass_runs_at_scale_one() -> None:
    assert ScalingArena([E4M3_MAX], history_len=4).scale.tolist() == [1.0]


def test_zero_amax_rolls_nothing_and_keeps_the_scale() -> None:
    before, after = arena_after(2.0, 1.0), arena_after(2.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    assert torch.equal(before.amax_history, after.amax_history)
    assert torch.equal(before.scale, after.scale)


def test_infinite_amax_freezes_the_scale_until_it_leaves_the_window() -> None:
    scales = [arena_after(8.0, math.inf, *[6.0] * n).scale.item() for n in range(5)]
    assert scales == pytest.approx([56.0, 56.0, 56.0, 56.0, 448.0 / 6.0])


def test_nan_amax_is_dropped_from_the_maximum_but_stops_most_recent() -> None:
    assert arena_after(4.0, math.nan).scale.item() == 112.0
    assert arena_after(4.0, 8.0, math.nan).scale.item() == 56.0
    assert arena_after(4.0, math.nan, algo="most_recent").scale.item() == 112.0


def test_tiny_amax_gives_flt_max() -> None:
    assert arena_after(1e-38).scale.item() == FLT_MAX


def test_margin_gives_headroom_in_bits() -> None:
    assert arena_after(2.0, margin=1).scale.item() == 112.0
    assert arena_after(2.0, margin=3).scale.item() == 28.0


def test_newest_row_is_last_and_row_zero_is_open() -> None:
    assert arena_after(1.0, 2.0, 3.0).amax_history[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert arena_after(1.0, length=1).amax_history[:, 0].tolist() == [0.0]


def test_outlier_stays_for_the_whole_window() -> None:
    """Length L: the scale that follows an outlier is in force for exactly L passes."""
    scales = [arena_after(1.0, 100.0, *[1.0] * n).scale.item() for n in range(5)]
    assert scales == pytest.approx([4.48, 4.48, 4.48, 4.48, 448.0])


def test_views_of_modules_see_updates_and_write_through() -> None:
    arena = ScalingArena([E4M3_MAX] * 6, history_len=4)
    second = arena.columns(3, 3)
    second.amax_history[0, 1] = 2.0
    arena.update(algo="max", margin=0)
    assert second.scale.tolist() == [1.0, 224.0, 1.0]
    assert second.amax_history[-1].tolist() == [0.0, 2.0, 0.0]

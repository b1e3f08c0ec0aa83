"""Predictions beside true casts, what is flagged, and odd statistics."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from floatscope.protocol.names import HIST_BINS
from floatscope_diagnostics.whatif.document import what_if_document
from floatscope_diagnostics.whatif.grids import variant, variants
from floatscope_diagnostics.whatif.measure import measure, measured
from floatscope_diagnostics.whatif.predict import answer, predict
from floatscope_diagnostics.whatif.spread import BlockAmax, Spread, spread_of
from floatscope_diagnostics.whatif.stored import what_if

SHAPE = (256, 512)


def gaussian(seed: int = 5) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def log_normal(sigma: float, seed: int = 6) -> NDArray[np.float32]:
    made = np.random.default_rng(seed)
    x = np.exp(sigma * made.standard_normal(SHAPE)) * made.choice([-1, 1], SHAPE)
    return np.asarray(x, np.float32)


def outliers() -> NDArray[np.float32]:
    x = gaussian(7)
    x[:, [3, 99, 260]] *= 60.0
    return x


def by_row() -> NDArray[np.float32]:
    rows = np.exp(1.5 * np.random.default_rng(8).standard_normal((SHAPE[0], 1)))
    return (gaussian(9) * rows).astype(np.float32)


def worst(values: NDArray[np.float32]) -> tuple[float, float]:
    """Largest errors of valid predictions: points of underflow, dB of SQNR."""
    told, truth = answer(spread_of(values)).predicted, measure(values)
    under = sqnr = 0.0
    for guess, real in zip(told, truth, strict=True):
        if not guess.valid or guess.underflow_pct is None or real.underflow_pct is None:
            continue
        under = max(under, abs(guess.underflow_pct - real.underflow_pct))
        if guess.sqnr_db is not None and real.sqnr_db is not None:
            sqnr = max(sqnr, abs(guess.sqnr_db - real.sqnr_db))
    return under, sqnr


@pytest.mark.parametrize(
    ("values", "points", "db"),
    [
        (gaussian(), 1.0, 1.0),
        (log_normal(1.0), 1.0, 1.0),
        (outliers(), 3.0, 1.0),
        (by_row(), 1.5, 1.5),
    ],
    ids=["gaussian", "log-normal", "outlier channels", "row scale"],
)
def test_predictions_are_near_the_true_casts(values: NDArray[np.float32], points: float, db: float) -> None:
    """All formats at once, on data that are within what is promised."""
    under, sqnr = worst(values)
    assert under <= points
    assert sqnr <= db


def test_a_prediction_carries_the_error_that_its_class_of_data_had() -> None:
    """Small where blocks are alike, larger for INT4 where rows have sizes of their own."""
    for key in ("e4m3_tensor", "mxfp8_e4m3_up", "nvfp4"):
        one = predict(spread_of(gaussian()), (variant(key),))[0]
        assert one.underflow_error_pct is not None
        assert one.underflow_error_pct < 1.0
        assert one.sqnr_error_db is not None
        assert one.sqnr_error_db < 1.0
    alike, unlike = (predict(spread_of(x), (variant("int4_row"),))[0] for x in (gaussian(), by_row()))
    assert (alike.data_class, unlike.data_class) == ("alike", "unlike")
    assert (unlike.underflow_error_pct or 0.0) > 2 * (alike.underflow_error_pct or 0.0)


def codes(values: NDArray[np.float32]) -> set[str]:
    return {flag.code for flag in answer(spread_of(values)).flags}


def test_what_makes_a_prediction_doubtful_is_flagged() -> None:
    """Rows with own sizes, outliers in fixed channels, power in few elements; nothing on clean data."""
    spiked = gaussian()
    spiked.ravel()[::13_000] = 1000.0
    assert codes(gaussian()) == set()
    assert "blocks_unlike" in codes(by_row())
    assert "blocks_even" in codes(outliers())
    assert "power_concentrated" in codes(spiked)
    assert "too_few" in codes(gaussian()[:1])


def test_without_the_spread_of_blocks_they_are_said_to_be_assumed_alike() -> None:
    """And a smallest block amax that no chance explains tells that they are not."""
    bare = replace(spread_of(by_row()), blocks={})
    found = answer(bare, (variant("mxfp4_up"), variant("mxfp8_e4m3_up")))
    assert {flag.code for flag in found.flags} == {"assumes_blocks_alike"}
    assert all(one.underflow_error_pct is None for one in found.predicted)
    low = replace(bare, amax_min_block=1e-3, min_block_size=32)
    assert not predict(low, (variant("mxfp4_up"),))[0].valid


def test_ends_of_the_histogram_and_numbers_of_another_step_are_flagged() -> None:
    spread = spread_of(gaussian())
    tiny = spread_of(gaussian() * np.float32(2.0**-38))
    huge = spread_of(gaussian() * np.float32(2.0**22))
    assert "below_histogram" in {flag.code for flag in answer(tiny).flags}
    assert "above_histogram" in {flag.code for flag in answer(huge).flags}
    late = replace(spread, step=100, stats_step=90)
    assert "other_step" in {flag.code for flag in answer(late).flags}
    assert "amax_disagrees" in {flag.code for flag in answer(replace(spread, amax=1e9)).flags}
    assert "no_amax" in {flag.code for flag in answer(replace(spread, amax=None)).flags}


def test_a_stale_scale_underflows_or_overflows() -> None:
    """The scale that was used: 8 bits below the best one, and 2 bits above it."""
    values = log_normal(1.5)
    amax = float(np.abs(values).max())
    asked = (variant("e4m3_tensor_as_used"),)
    for bits in (-8.0, 2.0):
        scale = 448.0 / amax * 2.0**bits
        spread = replace(spread_of(values), scale=scale, format_in_use="e4m3")
        found = predict(spread, asked)[0]
        cast = torch.from_numpy(values * np.float32(scale)).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        under = 100.0 * float((cast == 0).float().mean())
        over = 100.0 * float(np.mean(np.abs(values) * scale > 448.0))
        assert found.underflow_pct == pytest.approx(under, abs=0.6)
        assert found.overflow_pct == pytest.approx(over, abs=0.3)
    assert predict(spread_of(values), asked)[0].why_not


def test_measured_casts_are_those_of_torch() -> None:
    """MXFP8 and one scale per tensor by torch's own casts: the same zeros, the same SQNR."""
    values = log_normal(2.0)
    x = torch.from_numpy(values)
    for key, blocks in (("e4m3_tensor", x.reshape(1, -1)), ("mxfp8_e4m3_up", x.reshape(-1, 32))):
        scale = (448.0 / blocks.abs().amax(dim=1, keepdim=True).double()).float()
        if key != "e4m3_tensor":
            scale = torch.exp2(torch.floor(torch.log2(scale)))
        cast = (blocks * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        noise = float(((blocks - cast / scale).double() ** 2).sum())
        said = measure(values, (variant(key),))[0]
        assert said.underflow_pct == pytest.approx(100.0 * float((cast == 0).float().mean()), abs=1e-9)
        assert said.sqnr_db == pytest.approx(
            10 * math.log10(float((x.double() ** 2).sum()) / noise), abs=1e-3
        )


def test_values_that_cannot_be_cast_are_said() -> None:
    """NaN and infinity are left out, a tensor of zeros has no answer, rows must cover the values."""
    values = gaussian()
    values[0, :2] = (np.nan, np.inf)
    assert "not_finite" in {flag.code for flag in measured(values).flags}
    all_nan = measured(np.full(SHAPE, np.nan, np.float32))
    assert "every value is zero" not in " ".join(flag.sentence.lower() for flag in all_nan.flags)
    assert all(one.why_not == "no value but zeros is finite" for one in all_nan.found)
    nothing = measured(np.zeros(SHAPE, np.float32))
    assert all(one.sqnr_db is None and not one.valid for one in nothing.found)
    with pytest.raises(ValueError, match="rows of 7"):
        measure(gaussian(), row_length=7)


counts = st.lists(st.integers(0, 2**32 - 1), min_size=HIST_BINS, max_size=HIST_BINS)
odd = st.one_of(
    st.none(), st.floats(allow_nan=True, allow_infinity=True), st.just(0.0), st.floats(1e-12, 1e6)
)


@settings(max_examples=40, deadline=None)
@given(
    st.one_of(counts, st.lists(st.sampled_from([0, 0, 0, 1, 5, 10**6]), min_size=64, max_size=64)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("amax", "scale", "zero_pct", "row_amax_sd_log2"), odd)),
    st.fixed_dictionaries({}, optional={"row_length": st.integers(-1, 2**40), "format": st.text(max_size=5)}),
)
def test_odd_statistics_never_raise(
    found: list[int], stats: dict[str, float | None], facts: dict[str, object]
) -> None:
    """Whatever a run has stored, the document has numbers within their bounds or says why not."""
    one = what_if("x", found, stats, facts, variants=[variants()[k] for k in (1, 2, 3, 6, 21, 24)])
    document = what_if_document(run="r", step=1, tensors=[one])
    for row in document["tensors"][0]["variants"]:
        if row["underflow_pct"] is None:
            assert row["why_not"]
        else:
            assert 0 <= row["underflow_pct"] <= 100
            assert 0 <= row["overflow_pct"] <= 100


@pytest.mark.parametrize("value", [1e308, 3.5e38, 5e-324, 0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("stat", ["amax", "scale"])
def test_what_float32_cannot_hold_is_missing(stat: str, value: float) -> None:
    """In the last bin only amax says where it ends: 1e308 there would overflow."""
    counts = [0] * (HIST_BINS - 2) + [1000, 10]
    stats = {"amax": 2.0**23.5, "scale": 1e-5} | {stat: value}
    odd = what_if("x", counts, stats, {"format": "e4m3"})
    without = what_if("x", counts, {name: stats[name] for name in stats if name != stat}, {"format": "e4m3"})
    assert odd.predicted == without.predicted


def test_an_empty_histogram_has_an_answer() -> None:
    """All zeros: no numbers, and why."""
    found = answer(Spread(np.zeros(HIST_BINS, np.int64)))
    assert {flag.code for flag in found.flags} == {"all_zero"}
    assert all(one.underflow_pct is None and one.why_not for one in found.predicted)


def test_a_block_as_long_as_a_row_goes_by_the_rows() -> None:
    """Rows of 96 in blocks of 128: the spread of the rows decides."""
    values = by_row()[:, :96]
    spread = replace(spread_of(np.ascontiguousarray(values)), row_length=96)
    assert 128 not in spread.blocks
    found = answer(spread, (variant("e4m3_block128"),))
    assert {flag.code for flag in found.flags} == {"blocks_unlike"}
    assert replace(spread, blocks={0: BlockAmax(0.1)}).blocks[0].mean is None

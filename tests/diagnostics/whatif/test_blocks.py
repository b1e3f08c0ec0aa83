"""Which blocks are taken as alike, and what follows for zeros, shorter blocks and large rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from floatscope_diagnostics.whatif.grids import variant
from floatscope_diagnostics.whatif.measure import measure
from floatscope_diagnostics.whatif.predict import answer, predict
from floatscope_diagnostics.whatif.spread import BlockAmax, spread_of
from floatscope_diagnostics.whatif.stored import MOST_OCTAVES, spread_from, what_if

SHAPE = (256, 512)
ASKED = tuple(
    variant(key) for key in ("e4m3_row", "e4m3_block128", "mxfp8_e4m3_up", "mxfp8_e5m2_up", "mxfp4_up")
)


def gaussian(shape: tuple[int, int] = SHAPE, seed: int = 5) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def large_rows() -> NDArray[np.float32]:
    x = gaussian()
    x[:13] *= 100.0
    return x


def large_row() -> NDArray[np.float32]:
    x = gaussian()
    x[7] *= 100.0
    return x


def outliers() -> NDArray[np.float32]:
    """Two of four in the same block of 128."""
    x = gaussian()
    x[:, [40, 90, 300, 400]] *= 60.0
    return x


def scattered_zeros() -> NDArray[np.float32]:
    return np.asarray(np.maximum(gaussian(), 0.0) ** 2, np.float32)


def padded() -> NDArray[np.float32]:
    x = gaussian()
    x[100:] = 0.0
    return x


def uniform() -> NDArray[np.float32]:
    return np.random.default_rng(3).uniform(-1, 1, SHAPE).astype(np.float32)


def codes(values: NDArray[np.float32]) -> set[str]:
    return {flag.code for flag in answer(spread_of(values)).flags}


@pytest.mark.parametrize(
    ("values", "points", "db"),
    [
        (large_rows(), 3.0, 1.0),
        (large_row(), 1.5, 1.0),
        (outliers(), 1.0, 1.0),
        (scattered_zeros(), 0.5, 0.5),
        (padded(), 0.5, 0.5),
        (uniform(), 0.5, 0.5),
        (gaussian((256, 300)), 0.5, 0.5),
    ],
    ids=["5 % of rows", "one row", "channels", "zeros", "padding", "uniform", "300 wide"],
)
def test_predictions_are_near_the_true_casts(values: NDArray[np.float32], points: float, db: float) -> None:
    """Also where the spread of block amax looks usual and only their mean is not."""
    for guess, real in zip(predict(spread_of(values), ASKED), measure(values, ASKED), strict=True):
        assert guess.valid
        assert guess.underflow_pct == pytest.approx(real.underflow_pct, abs=points), guess.variant.key
        assert guess.sqnr_db == pytest.approx(real.sqnr_db, abs=db), guess.variant.key


@pytest.mark.parametrize("values", [large_rows(), large_row()], ids=["rows", "row"])
def test_large_values_that_keep_together_are_flagged(values: NDArray[np.float32]) -> None:
    """The mean of log2 block amax is below that of blocks that are alike."""
    assert "blocks_unlike" in codes(values)


@pytest.mark.parametrize(
    "values", [scattered_zeros(), padded(), uniform()], ids=["zeros", "padding", "uniform"]
)
def test_zeros_and_flat_densities_are_not_flagged(values: NDArray[np.float32]) -> None:
    """Zeros among the others make blocks smaller, rows of zeros do not; both are explained."""
    assert codes(values) == set()


def test_a_gaussian_of_any_size_is_not_flagged() -> None:
    """Wherever amax lies in its bin of the histogram."""
    for k in range(8):
        assert codes(gaussian() * np.float32(1e-5 * 2.0 ** (k / 8))) == set()


def test_without_the_mean_the_spread_alone_decides() -> None:
    """Logs that have only the spread of log2 block amax."""
    spread = spread_of(gaussian())
    alone = replace(spread, blocks={32: BlockAmax(spread.blocks[32].sd)})
    wide = replace(spread, blocks={32: BlockAmax(3.0)})
    asked = (variant("mxfp8_e4m3_up"),)
    assert not answer(alone, asked).flags
    assert {flag.code for flag in answer(wide, asked).flags} == {"blocks_unlike"}


def test_equal_spikes_are_told_from_the_rms() -> None:
    """They hold the power; a histogram alone spreads them over their bin and is 10 dB off."""
    values = gaussian()
    values.ravel()[::13_000] = 1000.0
    keys = ("bf16", "e4m3_tensor", "mxfp8_e4m3_floor", "mxfp4_up")
    asked = tuple(variant(key) for key in keys)
    spread = spread_of(values)
    for guess, real in zip(predict(spread, asked), measure(values, asked), strict=True):
        assert guess.data_class.endswith("power concentrated")
        assert guess.sqnr_db == pytest.approx(real.sqnr_db, abs=0.6)
        assert guess.underflow_error_pct is not None
    blind = predict(replace(spread, rms=None), asked[1:2])[0]
    assert abs((blind.sqnr_db or 0.0) - (measure(values, asked[1:2])[0].sqnr_db or 0.0)) > 5.0


def test_an_rms_that_the_histogram_cannot_have_is_left_out() -> None:
    spread = spread_of(gaussian())
    expected = predict(replace(spread, rms=None), ASKED)
    for rms in (0.0, 1e-3, 5.0, float("nan"), float("inf")):
        assert predict(replace(spread, rms=rms), ASKED) == expected
    counts, stats = spread.counts.tolist(), {"amax": spread.amax, "rms": 1.2, "zero_pct": 0.0}
    assert spread_from(counts, stats, step=5).rms == 1.2
    assert spread_from(counts, stats, step=5, stats_step=4).rms is None
    assert spread_from(counts, {"amax": spread.amax, "rms": 1.2}, step=5).rms is None


def test_what_chance_does_to_the_sqnr_is_in_its_error() -> None:
    """Ten tensors with the same histogram and amax: their true SQNR spreads as far as was told."""
    rng = np.random.default_rng(11)
    values = np.exp(2.0 * rng.standard_normal(SHAPE)).astype(np.float32)
    asked = tuple(variant(key) for key in ("e4m3_tensor", "mxfp8_e5m2_up"))
    size = values.ravel().astype(np.float64)
    amax, floor = size.max(), np.exp2(np.floor(np.log2(size)))
    few = (size > np.sort(size)[-200]) & (floor < np.exp2(np.floor(np.log2(amax))))
    found = []
    for _ in range(40):
        moved = size.copy()
        moved[few] = floor[few] * np.exp2(rng.uniform(0.0, 1.0, int(few.sum())))
        rng.shuffle(moved)
        found.append([one.sqnr_db for one in measure(moved.reshape(SHAPE).astype(np.float32), asked)])
    spread = replace(spread_of(values), rms=None)
    for guess, sd in zip(predict(spread, asked), np.std(np.array(found, float), axis=0), strict=True):
        assert 0.5 < (guess.sqnr_chance_db or 0.0) / sd < 2.0
        assert (guess.sqnr_error_db or 0.0) >= 2.0 * (guess.sqnr_chance_db or 0.0) > 0.3
    few_matter = predict(spread_of(gaussian()), asked[:1])[0]
    assert (few_matter.sqnr_chance_db or 0.0) < 0.05


@pytest.mark.parametrize("sd", [1e8, 1e30, MOST_OCTAVES])
def test_a_spread_that_no_float_has_takes_no_memory(sd: float) -> None:
    """Such statistics come from a log that was made up; a server answers for it too."""
    counts = [1] + [0] * 62 + [10**17]
    stats = {"amax": 4.0, "block16_amax_sd_log2": sd, "block16_amax_mean_log2": -1e30}
    assert set(spread_from(counts, stats).blocks) == ({16} if sd <= MOST_OCTAVES else set())
    found = what_if("t", counts, stats, variants=(variant("nvfp4"),))
    assert len(found.predicted) == 1

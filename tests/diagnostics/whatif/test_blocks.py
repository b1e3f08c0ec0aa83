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


def test_where_few_elements_hold_the_power_sqnr_has_no_error_to_show() -> None:
    """It depends on where just these lie; underflow keeps its own."""
    values = gaussian()
    values.ravel()[::13_000] = 1000.0
    one = predict(spread_of(values), (variant("e4m3_tensor"),))[0]
    assert one.data_class == "tensor, power concentrated"
    assert one.sqnr_error_db is None
    assert one.underflow_error_pct is not None


@pytest.mark.parametrize("sd", [1e8, 1e30, MOST_OCTAVES])
def test_a_spread_that_no_float_has_takes_no_memory(sd: float) -> None:
    """Such statistics come from a log that was made up; a server answers for it too."""
    counts = [1] + [0] * 62 + [10**17]
    stats = {"amax": 4.0, "block16_amax_sd_log2": sd, "block16_amax_mean_log2": -1e30}
    assert set(spread_from(counts, stats).blocks) == ({16} if sd <= MOST_OCTAVES else set())
    found = what_if("t", counts, stats, variants=(variant("nvfp4"),))
    assert len(found.predicted) == 1

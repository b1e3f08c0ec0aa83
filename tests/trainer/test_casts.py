"""Casts against the format table, code by code, and against torch's own conversions."""

from __future__ import annotations

import math

import pytest
import torch

from floatscope.protocol.formats import FORMATS
from floatscope_trainer.emulated.casts import CAST_MODES, CastMode, amax, cast_, decode

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def codes(fmt: str) -> torch.Tensor:
    """All 256 codes."""
    return torch.arange(256, dtype=torch.uint8).view(DTYPES[fmt])


def cast_one(value: float, *, fmt: str, mode: CastMode) -> float:
    return float(cast_(torch.tensor([value]), fmt=fmt, mode=mode).item())


@pytest.mark.parametrize("fmt", DTYPES)
def test_decode_equals_torch_for_every_code(fmt: str) -> None:
    expected = codes(fmt).to(torch.float32)
    torch.testing.assert_close(decode(codes(fmt), has_nan=True), expected, rtol=0, atol=0, equal_nan=True)
    finite = torch.isfinite(expected)
    assert torch.equal(decode(codes(fmt)[finite], has_nan=False), expected[finite])


@pytest.mark.parametrize("mode", CAST_MODES)
@pytest.mark.parametrize("fmt", DTYPES)
def test_representable_values_stay(fmt: str, mode: CastMode) -> None:
    values = codes(fmt).to(torch.float32)
    finite = values[torch.isfinite(values)]
    assert torch.equal(cast_(finite.clone(), fmt=fmt, mode=mode), finite)


@pytest.mark.parametrize(
    ("fmt", "mode", "value", "expected"),
    [
        ("e4m3", "saturating", 500.0, 448.0),
        ("e4m3", "saturating", math.inf, 448.0),
        ("e4m3", "saturating", -math.inf, -448.0),
        ("e4m3", "saturating", math.nan, math.nan),
        ("e5m2", "saturating", 61440.0, 57344.0),
        ("e5m2", "saturating", math.inf, 57344.0),
        ("e5m2", "saturating", math.nan, math.nan),
        ("e4m3", "nonsaturating", 464.0, 448.0),
        ("e4m3", "nonsaturating", 464.1, math.nan),
        ("e4m3", "nonsaturating", math.inf, math.nan),
        ("e5m2", "nonsaturating", 61439.0, 57344.0),
        ("e5m2", "nonsaturating", 61440.0, math.inf),
        ("e5m2", "nonsaturating", -math.inf, -math.inf),
        ("e4m3", "rtz", 500.0, 448.0),
        ("e4m3", "rtz", 1.999, 1.875),
        ("e4m3", "rtz", -1.999, -1.875),
        ("e5m2", "rtz", 1.999, 1.75),
        ("e4m3", "rtz", math.nan, math.nan),
    ],
)
def test_limits(fmt: str, mode: CastMode, value: float, expected: float) -> None:
    assert cast_one(value, fmt=fmt, mode=mode) == pytest.approx(expected, abs=0, nan_ok=True)


@pytest.mark.parametrize("fmt", DTYPES)
def test_underflow_starts_at_half_the_smallest_subnormal(fmt: str) -> None:
    smallest = FORMATS[fmt].min_subnormal
    assert cast_one(smallest / 2, fmt=fmt, mode="saturating") == 0.0  # a tie goes to even, zero
    assert cast_one(smallest * 0.51, fmt=fmt, mode="saturating") == smallest
    assert cast_one(smallest * 0.99, fmt=fmt, mode="rtz") == 0.0


@pytest.mark.parametrize("fmt", DTYPES)
def test_round_toward_zero_takes_the_next_code_down(fmt: str) -> None:
    grid = codes(fmt).to(torch.float32)
    grid = grid[torch.isfinite(grid)].sort().values
    values = torch.empty(4000).uniform_(
        -1, 1, generator=torch.Generator().manual_seed(3)
    ) * 2.0 ** torch.randint(-12, 9, (4000,), generator=torch.Generator().manual_seed(4))
    got = cast_(values.clone(), fmt=fmt, mode="rtz")
    limit = FORMATS[fmt].max_finite
    clipped = values.clamp(-limit, limit)
    below = grid[(torch.searchsorted(grid, clipped.abs(), right=True) - 1)]
    assert torch.equal(got.abs(), below)
    assert bool(((got == 0) | (got.sign() == values.sign())).all())


@pytest.mark.parametrize("fmt", DTYPES)
def test_rounding_error_is_at_most_half_a_step(fmt: str) -> None:
    limits = FORMATS[fmt]
    values = torch.empty(4000).uniform_(limits.min_normal, limits.max_finite)
    error = (cast_(values.clone(), fmt=fmt) - values).abs() / values
    assert error.max().item() <= limits.eps / 2


def test_amax_drops_nan_and_keeps_infinity() -> None:
    assert amax(torch.tensor([1.0, -3.0, math.nan])).item() == 3.0
    assert amax(torch.tensor([math.nan, -math.inf])).item() == math.inf
    assert amax(torch.tensor([math.nan, math.nan])).item() == 0.0
    assert amax(torch.zeros(0)).item() == 0.0
    assert amax(torch.tensor([-0.5, 0.25])).item() == 0.5

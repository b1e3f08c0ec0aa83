"""Rounding onto the formats' grids, bit by bit beside torch and beside the grids' own values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from floatscope_diagnostics.whatif.grids import Grid, grids, quantize, variant, variants
from floatscope_diagnostics.whatif.scales import scales

TORCH = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "bf16": torch.bfloat16,
}


def odd_values() -> NDArray[np.float32]:
    """Finite float32 of all sizes, and many around the formats' ranges with all their ties."""
    made = np.random.default_rng(0)
    bits = made.integers(0, 2**32, 60_000, dtype=np.uint32).view(np.float32)
    near = np.exp2(made.uniform(-20, 18, 60_000)) * made.choice([-1, 1], 60_000)
    return np.concatenate([bits[np.isfinite(bits)], near, np.arange(-8192, 8192) / 256]).astype(np.float32)


@pytest.mark.parametrize("name", TORCH)
def test_every_value_is_rounded_as_torch_rounds_it(name: str) -> None:
    """0 mismatches on 130,000 values, in float32 and in float64."""
    grid, values = grids()[name], odd_values()
    cast = torch.from_numpy(values.copy()).clamp(-grid.max, grid.max).to(TORCH[name]).float().numpy()
    assert np.array_equal(quantize(values, grid), cast)
    assert np.array_equal(quantize(values.astype(np.float64), grid), cast)


def values_of(grid: Grid) -> list[float]:
    """All values of a format, by the definition of its fields."""
    if grid.step is not None:
        return [k * grid.step for k in range(round(grid.max / grid.step) + 1)]
    least = 2.0 ** (grid.min_exponent - grid.mantissa_bits)
    found = [k * least for k in range(2**grid.mantissa_bits)]
    exponent = grid.min_exponent
    while found[-1] < grid.max:
        unit = 2.0 ** (exponent - grid.mantissa_bits)
        found += [unit * (2**grid.mantissa_bits + k) for k in range(2**grid.mantissa_bits)]
        exponent += 1
    return [value for value in found if value <= grid.max]


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "mxint8", "int8", "int4"])
def test_the_nearest_value_is_chosen_and_ties_go_to_the_even_one(name: str) -> None:
    """Beside a search through all values of the format, halfway points included."""
    grid = grids()[name]
    known = np.array(values_of(grid))
    made = np.random.default_rng(1)
    x = np.concatenate([(known[1:] + known[:-1]) / 2, known, made.uniform(0, 1.3 * grid.max, 3_000)])
    distance = np.abs(x[:, None] - known)
    nearest = distance == distance.min(axis=1, keepdims=True)
    for value, near, got in zip(x, nearest, quantize(x, grid), strict=True):
        places = np.flatnonzero(near)
        assert got == known[places[0] if len(places) == 1 else places[places % 2 == 0][0]], value
    assert np.array_equal(quantize(-x, grid), -quantize(x, grid))


def test_values_of_the_small_formats() -> None:
    """FP4 has 15 values; the largest of each format is that of the specification."""
    assert values_of(grids()["e2m1"]) == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    largest = {
        "e3m2": 28.0,
        "e2m3": 7.5,
        "e4m3": 448.0,
        "e5m2": 57344.0,
        "e4m3fnuz": 240.0,
        "mxint8": 127 / 64,
    }
    assert {name: grids()[name].max for name in largest} == largest
    assert grids()["e4m3"].smallest == 2.0**-9
    assert grids()["e5m2"].smallest == 2.0**-16


def test_infinity_saturates_and_nan_stays() -> None:
    """As the saturating casts of kernels do."""
    got = quantize(np.array([np.inf, -np.inf, np.nan, 0.0]), grids()["e4m3"])
    assert got[:2].tolist() == [448.0, -448.0]
    assert np.isnan(got[2])
    assert got[3] == 0


@given(st.floats(1e-30, 1e30))
def test_scales_keep_their_rules(amax: float) -> None:
    """Rounded-up MX never clips amax, OCP's floor is at most a factor two above; NVFP4's tensor amax fits."""
    e4m3, e2m1 = grids()["e4m3"], grids()["e2m1"]
    one = np.array([amax])
    up, floor = (float(scales(one, e4m3, kind, amax)[0]) for kind in ("pow2", "ocp"))
    if 2.0**-100 < up < 2.0**100:
        assert amax * up <= 448.0 < 2 * amax * up
        assert np.log2(up) == round(np.log2(up))
        assert floor in (up, 2 * up)
        assert amax * floor < 512.0
    assert amax * float(scales(one, e2m1, "nv", amax)[0]) == pytest.approx(6.0)
    assert amax * float(scales(one, e4m3, "fp32", amax)[0]) == pytest.approx(448.0)


def test_every_variant_has_a_grid_and_its_own_key() -> None:
    """The table is consistent, and an unknown key is answered with those there are."""
    assert len({one.key for one in variants()}) == len(variants())
    assert all(one.format in grids() for one in variants())
    with pytest.raises(ValueError, match="mxfp8_e4m3_up"):
        variant("mxfp9")

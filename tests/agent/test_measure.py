"""Statistics of one tensor against their definitions, computed here in float64 numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from floatscope.probes.blocks import block_amax, block_shape, spread_scale
from floatscope.probes.measure import FIELDS, from_device, on_cpu, on_device
from floatscope.probes.statistics import block_of, combine, statistics
from floatscope.protocol.formats import FORMATS, FloatFormat

FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-30, -1e30, 3e38, 2e-38)


def cast(x: Tensor, scale: Tensor, fmt: str, *, saturate: bool = True) -> Tensor:
    """What a GEMM would use."""
    limit = FORMATS[fmt].max_finite
    scaled = x.float() * scale
    if saturate:
        scaled = torch.where(scaled.isnan(), scaled, scaled.clamp(-limit, limit))
    return scaled.to(FP8[fmt]).float() / scale


def reference(
    x: Tensor, used: Tensor | None, scale: Tensor | None, fmt: FloatFormat | None
) -> dict[str, float]:
    """The protocol's definitions, one after the other."""
    values = x.double().numpy().reshape(-1)
    out: dict[str, Any] = {"nan_count": np.isnan(values).sum(), "inf_count": np.isinf(values).sum()}
    finite = values[np.isfinite(values)]
    if (~np.isnan(values)).any():
        out["amax"] = float(np.abs(values[~np.isnan(values)]).max())
    if finite.size:
        out["rms"] = float(np.sqrt(np.mean(finite**2)))
    out["zero_pct"] = 100 * np.mean(values == 0)
    if used is not None and scale is not None and fmt is not None:
        after = used.double().numpy().reshape(-1)
        factor = scale.double().numpy().reshape(-1)
        with np.errstate(invalid="ignore", over="ignore"):
            out["overflow_pct"] = 100 * np.mean(
                np.float32(np.abs(values)) * np.float32(factor) > fmt.max_finite
            )
        out["underflow_pct"] = 100 * np.mean((values != 0) & (after == 0))
        both = np.isfinite(values) & np.isfinite(after)
        signal, noise = np.sum(values[both] ** 2), np.sum((values[both] - after[both]) ** 2)
        if signal > 0 and noise > 0:
            out["sqnr_db"] = 10 * np.log10(signal / noise)
        out["scale"] = float(factor[0])
    return out


def device_list(x: Tensor, used: Tensor | None, scale: Tensor | None, fmt: FloatFormat | None) -> list[float]:
    vector = on_device(x, used, scale, fmt).double().numpy()
    return [float(value) for value in from_device(vector)[0]]


def found_by(measured: list[float], *, has_scale: bool) -> dict[str, float]:
    block = statistics(np.array([measured]), names=("t",), has_scale=np.array([has_scale]))
    return {name: float(values[0]) for name, values in block.stats.items() if block.present[name][0]}


def sqnr_tolerance_db(sqnr_db: float) -> float:
    """0.02 dB, and what rounding the error itself to float32 does where it is tiny beside the signal."""
    amplitude_ratio: float = 10.0 ** (min(sqnr_db, 300.0) / 20.0)
    return 0.02 + 20.0 / math.log(10.0) * 2.0**-23 * amplitude_ratio


def assert_close(found: dict[str, float], wanted: dict[str, float]) -> None:
    assert set(found) == {name for name, value in wanted.items() if abs(value) < 3.4e38 or math.isinf(value)}
    for name, value in found.items():
        relative, absolute = (0.0, sqnr_tolerance_db(wanted[name])) if name == "sqnr_db" else (2e-5, 1e-12)
        assert value == pytest.approx(wanted[name], rel=relative, abs=absolute), name


elements = st.one_of(st.floats(-1e4, 1e4, width=32), st.sampled_from(SPECIAL))
scales = st.one_of(st.floats(2.0**-10, 2.0**20, width=32), st.sampled_from((0.0, math.nan, math.inf, 3e38)))


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(elements, min_size=1, max_size=40),
    scale=scales,
    fmt=st.sampled_from(("e4m3", "e5m2")),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    saturate=st.booleans(),
)
def test_both_ways_follow_the_definitions(
    values: list[float], scale: float, fmt: str, dtype: torch.dtype, saturate: bool
) -> None:
    x = torch.tensor(values, dtype=torch.float32).to(dtype)
    factor = torch.tensor(scale, dtype=torch.float32)
    used = cast(x, factor, fmt, saturate=saturate)
    wanted = reference(x, used, factor, FORMATS[fmt])
    cpu = found_by(on_cpu(x, used, factor, FORMATS[fmt]), has_scale=True)
    device = found_by(device_list(x, used, factor, FORMATS[fmt]), has_scale=True)
    if not math.isfinite(scale):
        for found in (cpu, device):
            assert repr(found.pop("scale")) == repr(scale)
        wanted.pop("scale")
    is_lost = wanted.get("sqnr_db", 0.0) > 300  # noise whose square is nothing beside the signal's in float32
    is_tiny = wanted.get("rms", 1.0) < 1e-15  # a signal whose square is nothing in float32
    if is_lost or is_tiny:
        for found in (cpu, device, wanted):
            found.pop("sqnr_db", None)
    assert_close(cpu, wanted)
    assert_close(device, wanted)


@settings(max_examples=100, deadline=None)
@given(st.lists(elements, min_size=1, max_size=40))
def test_without_a_cast_there_are_only_counts_and_sizes(values: list[float]) -> None:
    x = torch.tensor(values)
    for measured in (
        on_cpu(x, None, None, FORMATS["bf16"]),
        device_list(x, None, None, FORMATS["bf16"]),
    ):
        assert_close(found_by(measured, has_scale=False), reference(x, None, None, None))


def test_what_does_not_fit_into_fp16_is_counted() -> None:
    x = torch.tensor([1.0, 7e4, -1e5, 1e-9, 0.0, math.inf, math.nan])
    for measured in (
        on_cpu(x, None, None, FORMATS["fp16"]),
        device_list(x, None, None, FORMATS["fp16"]),
    ):
        found = found_by(measured, has_scale=False)
        assert found["overflow_pct"] == pytest.approx(100 * 3 / 7)
        assert found["underflow_pct"] == pytest.approx(100 / 7)


@pytest.mark.parametrize("exponent", [-30, -18, 0, 18, 30])
def test_sizes_survive_squares_that_do_not(exponent: int) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 10.0**exponent
    used = x * 1.01
    scale = torch.ones(())
    for measured in (
        on_cpu(x, used, scale, FORMATS["e4m3"]),
        device_list(x, used, scale, FORMATS["e4m3"]),
    ):
        found = found_by(measured, has_scale=True)
        assert found["rms"] == pytest.approx(float(np.sqrt(np.mean(x.double().numpy() ** 2))), rel=1e-4)
        assert found["sqnr_db"] == pytest.approx(40.0, abs=0.01)


def test_an_infinite_scale_overflows_and_underflows_at_once() -> None:
    x = torch.tensor([1.0, 0.0, -2.0, 3.0])
    used = torch.zeros(4)  # a saturating cast divided by infinity
    found = found_by(on_cpu(x, used, torch.tensor(math.inf), FORMATS["e4m3"]), has_scale=True)
    assert (found["overflow_pct"], found["underflow_pct"], found["scale"]) == (75.0, 75.0, math.inf)


@pytest.mark.parametrize(
    ("shape", "block"),
    [((4, 256), (1, 128)), ((256, 256), (128, 128)), ((3, 100), (1, 32)), ((200, 130), (128, 128))],
)
def test_blocks_are_recognised_by_the_shape_of_the_scales(
    shape: tuple[int, int], block: tuple[int, int]
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    grid = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    scale = torch.rand(grid) + 0.5
    assert block_shape(scale, x) == tuple(
        min(b, n) if g == 1 else b for b, n, g in zip(block, shape, grid, strict=True)
    )
    spread, largest = spread_scale(scale, x), block_amax(x, scale)
    assert spread is not None
    assert largest is not None
    for i in range(grid[0]):
        for j in range(grid[1]):
            part = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            assert (spread[part] == scale[i, j]).all()
            assert largest[i, j] == x[part].abs().max()


def test_block_statistics_use_the_smallest_scale_and_the_smallest_amax() -> None:
    x = torch.full((2, 64), 1.0)
    x[1, 32:] = 8.0
    x[0, :32] = 0.25
    scale = torch.tensor([[1792.0, 448.0], [448.0, 60.0]])  # the last one is a little too large: 480
    used = cast(x, torch.ones(()), "e4m3")
    for measured in (
        on_cpu(x, used, scale, FORMATS["mxfp8_e4m3"]),
        device_list(x, used, scale, FORMATS["mxfp8_e4m3"]),
    ):
        found = found_by(measured, has_scale=True)
        assert (found["scale"], found["amax"], found["amax_min_block"]) == (60.0, 8.0, 0.25)
        assert found["overflow_pct"] == 25.0


def test_scales_that_do_not_tile_the_tensor_leave_overflow_missing() -> None:
    x = torch.randn(10, 10)
    found = found_by(on_cpu(x, x, torch.ones(3, 7), FORMATS["e4m3"]), has_scale=True)
    assert "overflow_pct" not in found
    assert found["scale"] == 1.0


def field(rows: NDArray[np.float64], name: str) -> float:
    return float(rows[0, FIELDS.index(name)])


def test_passes_of_a_step_become_one_measurement() -> None:
    parts = [torch.randn(50, generator=torch.Generator().manual_seed(i)) * 10.0**i for i in range(3)]
    factors = [torch.tensor(v) for v in (1.0, 50.0, 0.5)]
    calls = [on_cpu(x, cast(x, s, "e4m3"), s, FORMATS["e4m3"]) for x, s in zip(parts, factors, strict=True)]
    joined = combine(np.array(calls), np.zeros(3, np.intp), 1)
    whole = torch.cat(parts)
    used = torch.cat([cast(x, s, "e4m3") for x, s in zip(parts, factors, strict=True)])
    wanted = on_cpu(whole, used, torch.tensor(1.0), FORMATS["e4m3"])
    for name in ("n", "amax", "norm", "nan", "zero", "under", "signal", "noise"):
        assert field(joined, name) == pytest.approx(wanted[FIELDS.index(name)], rel=1e-5), name
    assert field(joined, "scale") == 0.5
    assert field(joined, "over") == sum(call[FIELDS.index("over")] for call in calls)


def test_a_pass_of_nothing_but_nan_does_not_hide_the_others() -> None:
    calls = [on_cpu(torch.full((4,), math.nan), None, None, None), on_cpu(torch.ones(4), None, None, None)]
    joined = combine(np.array(calls), np.zeros(2, np.intp), 1)
    assert (field(joined, "amax"), field(joined, "nan")) == (1.0, 4.0)


def test_a_number_beyond_float32_is_left_out_and_an_infinity_stays() -> None:
    block = block_of(("a", "b", "c"), {"amax": np.array([1e39, math.inf, 1.0])}, {})
    assert block.present["amax"].tolist() == [False, True, True]

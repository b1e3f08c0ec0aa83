"""Measuring a very large tensor takes bounded memory: rows are picked before anything is computed."""

from __future__ import annotations

import logging
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from floatscope.catalog import Catalog
from floatscope.guard import Guard
from floatscope.look import SAMPLE
from floatscope.probes.blocks import spread_scale
from floatscope.probes.counters import MOST_ELEMENTS, DeviceCounters
from floatscope.probes.measure import on_cpu
from floatscope.probes.naming import CallOrder
from floatscope.probes.readout import Readout
from floatscope.probes.row_sample import row_sample
from floatscope.probes.te_scales import dequantised, is_cast_of, scales_of
from floatscope.probes.tensor_stats import TensorStats
from floatscope.probes.torchao_float8 import Float8Casts
from floatscope.protocol.formats import FORMATS
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Row
from tests.agent.test_no_waiting import NoWaiting

ROWS, COLUMNS = 8192, 16384  # eight times what is measured at a time
E4M3 = SimpleNamespace(name="kFloat8E4M3")


class Memory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes that one operation has allocated for its results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = all(returned.alias_info is None for returned in func._schema.returns)
        if is_new and isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel() * result.element_size())
        return result


def stats_of(guard: Guard | None = None, **settings: Any) -> TensorStats:
    guard = Guard(strict=True) if guard is None else guard
    stats = TensorStats(catalog=Catalog(RunInfo(name="x")), order=CallOrder(), guard=guard, **settings)
    stats.begin(SAMPLE)
    return stats


def quantised(kind: str) -> Any:
    """A tensor of zeros as Transformer Engine keeps it on a GPU."""

    def codes(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.uint8, device="cuda")

    if kind == "tensor":
        scale = torch.ones(1, device="cuda")
        return SimpleNamespace(_data=codes(ROWS, COLUMNS), _scale_inv=scale, _fp8_dtype=E4M3)
    found = SimpleNamespace(_rowwise_data=codes(ROWS, COLUMNS), _fp8_dtype=E4M3)
    if kind == "block":
        found._rowwise_scale_inv = torch.ones(ROWS // 128, COLUMNS // 128, device="cuda")
        found._is_2D_scaled = True
    elif kind == "mxfp8":
        found._rowwise_scale_inv = codes(ROWS, COLUMNS // 32)
    else:
        found._rowwise_data = codes(ROWS, COLUMNS // 2)
        found._rowwise_scale_inv = codes(ROWS, COLUMNS // 16)
        found._amax_rowwise = torch.ones(1, device="cuda")
    return found


@pytest.mark.parametrize("kind", ["tensor", "block", "mxfp8", "nvfp4"])
def test_what_a_cast_left_is_dequantised_for_the_rows_that_are_looked_at(kind: str) -> None:
    """On a GPU, without waiting: operations make some MOST_ELEMENTS values, of 8 times as many."""
    with FakeTensorMode():
        cast = quantised(kind)
        x = torch.ones(ROWS // 4, 4, COLUMNS, dtype=torch.bfloat16, device="cuda")
        found = scales_of(cast)
        assert found is not None
        assert is_cast_of(cast, found, x)
        stats = stats_of()
        with NoWaiting(), Memory() as memory:
            used = partial(dequantised, cast, found)
            stats.measure("layer", "input", x, used=used, scale=found.scale, fmt=found.fmt)
    assert 4 * MOST_ELEMENTS <= memory.largest <= 10 * MOST_ELEMENTS


def test_a_cast_of_torchao_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on the CPU, with a smaller limit."""
    monkeypatch.setattr("floatscope.probes.tensor_stats.MOST_ELEMENTS", 1024)
    guard = Guard(strict=True)
    stats = stats_of(guard)
    area = guard.area("casts", loses="all")
    probe = Float8Casts(stats, {}, Catalog(RunInfo(name="x")), area, guard=guard)
    x = torch.randn(64, 128)
    scale = 448.0 / x.abs().amax(dim=1, keepdim=True)
    cast = SimpleNamespace(_data=(x * scale).to(torch.float8_e4m3fn), _scale=scale)
    with Memory() as memory:
        probe._measure("layer", "input", x, cast)
    assert 0 < memory.largest <= 4 * 1024
    (measured,) = (values for _, values in stats._real._host)
    assert measured[0] == 1024
    assert 20 < 20 * math.log10(measured[8] / measured[9]) < 40


class Fused:
    """The fused kernel, which takes a contiguous tensor of any size where it is and allocates nothing."""

    def __init__(self) -> None:
        self.elements: list[int] = []

    def measure(self, x: Tensor, *args: Any, with_histogram: bool) -> tuple[Tensor, None]:
        assert not with_histogram
        self.elements.append(x.numel())
        return torch.ones(12, device="cuda"), None


@pytest.mark.parametrize("check_format", [None, "e4m3", "nvfp4"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_with_the_fused_kernel_too(
    check_format: str | None, is_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads a tensor whole. Histograms, formats to check and transposed tensors need copies: of rows."""
    fused = Fused()
    monkeypatch.setattr(DeviceCounters, "is_fused_for", lambda self, x: True)
    monkeypatch.setattr(DeviceCounters, "_kernel", lambda self: fused)
    with FakeTensorMode():
        stats = stats_of(check_format=check_format)
        x = torch.ones(ROWS, COLUMNS, dtype=torch.bfloat16, device="cuda")
        if is_transposed:
            x = torch.ones(COLUMNS, ROWS, dtype=torch.bfloat16, device="cuda").transpose(0, 1)
        with NoWaiting(), Memory() as memory:
            stats.measure("layer", "input", x, is_cast=False)
    assert fused.elements[0] == (MOST_ELEMENTS if is_transposed or check_format else ROWS * COLUMNS)
    assert memory.largest <= 10 * MOST_ELEMENTS


@pytest.mark.parametrize(
    ("shape", "scale_shape", "kept"),
    [
        ((64, 48), (), 8),
        ((4, 16, 48), (64, 1), 8),
        ((64, 48), (1, 48), 8),
        ((512, 256), (4, 2), 256),
        ((500, 256), (4, 2), 256),
        ((64, 64), (64, 2), 8),
    ],
    ids=["one", "rows", "columns", "blocks", "blocks, the last cut off", "blocks of a row"],
)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_rows_casts_and_scales_stay_together(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], kept: int, is_transposed: bool
) -> None:
    """What is found for the picked rows is what is found when all scales are spread out first."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    if is_transposed:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    scale = torch.rand(scale_shape) * 100 + 1
    whole = spread_scale(scale, x)
    assert whole is not None
    codes = (x * whole).to(torch.float8_e4m3fn)
    sample = row_sample(x, scale, most=x.numel() // 8 if kept < 128 else x.numel() // 2)
    assert sample is not None
    picked, scales = sample.of(x), sample.scales(scale)
    assert picked.shape == (kept, shape[-1])
    spread = spread_scale(scales, picked)
    assert spread is not None
    used = sample.of(codes).float() / spread
    expected = sample.of(codes.float() / whole)
    assert torch.equal(used, expected)
    rows = x.reshape(-1, shape[-1])
    height = sample.height
    wanted = [row for row in range(sample.bands * height) if row // height % sample.every == 0]
    assert torch.equal(picked, rows[wanted])
    assert on_cpu(picked, used, scales, FORMATS["e4m3"])[9] > 0


def test_scales_that_do_not_tile_are_not_guessed() -> None:
    assert row_sample(torch.ones(70, 50), torch.ones(3, 17), most=100) is None


def test_no_memory_left_ends_the_statistics_of_whole_tensors_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first time and with one line: each try would empty the allocator's cache and make all wait."""
    tries = []

    def no_memory(*args: Any) -> Any:
        tries.append(args)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    monkeypatch.setattr("floatscope.probes.tensor_stats.on_cpu", no_memory)
    guard = Guard()
    stats = stats_of(guard)
    with caplog.at_level(logging.WARNING, "floatscope"):
        for _ in range(5):
            stats.measure("one", "input", torch.ones(4, 4))
            stats.measure("two", "weight", torch.ones(4, 4))
    assert len(tries) == 1
    (line,) = (record.getMessage() for record in caplog.records)
    assert "out of memory" in line
    assert "switched off" in line
    assert "statistics of whole tensors" in line


def test_a_step_that_never_ends_fills_no_memory() -> None:
    """Passes beyond the 64th are counted and not kept; the next step begins afresh."""
    stats = stats_of()
    for _ in range(1000):
        stats.measure("layer", "input", torch.ones(4, 4))
    assert len(stats._real._host) == 64
    assert stats.passes == 1000
    readout = Readout()
    stats.collect(readout)
    row = Row(0, 0.0)
    for work in readout._ready:
        work(row)
    assert row.blocks[0].stats["amax"].tolist() == [1.0]
    stats.measure("layer", "input", torch.ones(4, 4))
    assert stats.passes == 1

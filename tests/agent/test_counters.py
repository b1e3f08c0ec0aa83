"""Tensors of a device are measured by the fused kernel where it works, and by eager operations where not."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from floatscope.catalog import Catalog
from floatscope.guard import Guard
from floatscope.probes.counters import MOST_ELEMENTS, MOST_FUSED_ELEMENTS, DeviceCounters
from floatscope.probes.exponents import exponents
from floatscope.probes.measure import on_device
from floatscope.probes.naming import CallOrder
from floatscope.probes.tensor_stats import TensorStats
from floatscope.protocol.runinfo import RunInfo

X = torch.arange(12.0).reshape(3, 4)


class Fused:
    """A stand-in for the kernel's module."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls = 0

    def measure(self, x: Tensor, *others: Any, with_histogram: bool) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return torch.full((12,), 7.0), None


class OnGpu(DeviceCounters):
    """Takes every tensor for one of a GPU."""

    def __init__(self, guard: Guard, fused: Fused) -> None:
        super().__init__(guard)
        self._fused = fused
        self._is_tried = True

    def is_fused_for(self, x: Tensor) -> bool:
        return True


def test_a_kernel_that_works_is_used() -> None:
    """And tensors up to its own limit are measured whole."""
    counters = OnGpu(Guard(strict=True), Fused())
    assert counters.measure(X, None, None, None, with_histogram=False)[0].tolist() == [7.0] * 12
    assert counters.most_elements(X) == MOST_FUSED_ELEMENTS


def test_a_kernel_that_fails_is_given_up_for_good(caplog: pytest.LogCaptureFixture) -> None:
    """No compiler, say: eager operations measure the same tensor at once, and it is said once."""
    caplog.set_level(logging.INFO, "floatscope")
    fused = Fused(RuntimeError("Failed to find C compiler"))
    counters = OnGpu(Guard(strict=True), fused)
    for _ in range(3):
        vector, histogram = counters.measure(X, None, None, None, with_histogram=True)
        assert torch.equal(vector, on_device(X, None, None, None))
        assert histogram is not None
        assert torch.equal(histogram, exponents(X))
    assert fused.calls == 1
    assert counters.most_elements(X) == MOST_ELEMENTS
    assert sum("C compiler" in r.getMessage() for r in caplog.records) == 1


def test_the_kernel_is_only_for_plain_tensors_of_a_cuda_device() -> None:
    """Everything else goes the eager way, also where triton is installed."""
    counters = DeviceCounters(Guard(strict=True))
    assert not counters.is_fused_for(X)
    assert torch.equal(
        counters.measure(X, None, None, None, with_histogram=False)[0], on_device(X, None, None, None)
    )


@pytest.mark.parametrize(("with_casts", "launches"), [(False, 2), (True, 4)])
def test_the_kernel_is_compiled_for_each_kind_of_tensor(with_casts: bool, launches: int) -> None:
    fused = Fused()
    dtypes = (torch.bfloat16, torch.float32)
    OnGpu(Guard(strict=True), fused).prepare(torch.device("cpu"), dtypes, with_casts=with_casts)
    assert fused.calls == launches
    DeviceCounters(Guard(strict=True)).prepare(torch.device("cpu"), dtypes, with_casts=with_casts)


@pytest.mark.parametrize(
    ("is_initialized", "is_capturing", "prepared"),
    [(True, False, [torch.bfloat16, torch.float32]), (False, False, None), (True, True, None)],
    ids=["CUDA is in use", "not yet", "a graph is recorded"],
)
def test_it_is_compiled_when_watching_begins(
    is_initialized: bool, is_capturing: bool, prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For what the model may compute in, if CUDA is in use: no sample waits for a compiler."""
    stats = TensorStats(catalog=Catalog(RunInfo(name="x")), order=CallOrder(), guard=Guard(strict=True))
    asked: list[Any] = []
    monkeypatch.setattr(
        stats._counters,
        "prepare",
        lambda device, dtypes, with_casts: asked.append((device, dtypes, with_casts)),
    )
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: is_initialized)
    monkeypatch.setattr("floatscope.probes.tensor_stats.is_capturing", lambda: is_capturing)
    on_gpu = SimpleNamespace(device=torch.device("cuda", 1), dtype=torch.float32)
    weights: list[Any] = [torch.ones(2), on_gpu]
    stats.prepare(weights, with_casts=True)
    assert asked == ([] if prepared is None else [(on_gpu.device, prepared, True)])
    stats.prepare(weights[:1], with_casts=True)
    assert len(asked) == (prepared is not None)

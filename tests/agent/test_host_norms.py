"""Norms on the CPU: right where torch's own are not, and the same for every dtype and layout."""

from __future__ import annotations

import math

import pytest
import torch

from floatscope.probes.gradients import norms_of
from floatscope.probes.host_norms import CHUNK, host_amax, host_norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 1000, CHUNK, 2 * CHUNK + 7])
def test_a_norm_is_that_of_float64(dtype: torch.dtype, size: int) -> None:
    """Within 1e-4 for equal elements, the worst case for sums in float32."""
    x = torch.full((size,), 0.1).to(dtype)
    assert host_norm(x) == pytest.approx(float(x.double().norm()), rel=1e-4)


@pytest.mark.parametrize("size", [1e19, 1e30])
def test_squares_that_float32_cannot_hold(size: float) -> None:
    """A large finite norm is no infinity."""
    x = torch.tensor([3.0, 4.0]) * size
    assert host_norm(x) == pytest.approx(5 * size, rel=1e-5)


def test_bad_elements_and_other_layouts() -> None:
    """NaN and infinity show; a transposed view counts as what it shows."""
    assert math.isnan(host_norm(torch.tensor([1.0, math.nan, math.inf])))
    assert host_norm(torch.tensor([1.0, -math.inf])) == math.inf
    x = torch.arange(12.0).reshape(3, 4)
    assert host_norm(x.t()) == pytest.approx(float(x.norm()))
    many = x.repeat(100, 100)
    found = norms_of([x, x.double(), x.bfloat16(), many]).tolist()
    assert found == pytest.approx([float(x.norm())] * 3 + [100 * float(x.norm())], rel=1e-2)


def test_the_largest_magnitude() -> None:
    """Of either sign; NaN propagates."""
    assert float(host_amax(torch.tensor([1.0, -3.0]))) == 3.0
    assert float(host_amax(torch.tensor([-math.inf, 2.0]))) == math.inf
    assert math.isnan(float(host_amax(torch.tensor([1.0, math.nan]))))

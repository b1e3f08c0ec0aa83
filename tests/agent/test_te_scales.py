"""Reading scales of quantised tensors neither waits for a device nor fails on what it does not know.

That they are read right is checked on the package's own classes in tests/te_contract/test_scales.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from floatscope.probes.measure import on_device
from floatscope.probes.te_scales import dequantised, scales_of, smallest
from floatscope.protocol.formats import FORMATS
from tests.agent.test_no_waiting import NoWaiting

E4M3 = SimpleNamespace(name="kFloat8E4M3")


def codes(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8, device="cuda")


def tensors() -> dict[str, Any]:
    """One quantised 256 x 256 tensor of each kind, of zeros on a GPU."""
    return {
        "tensor": SimpleNamespace(
            _data=codes(256, 256), _scale_inv=torch.ones(1, device="cuda"), _fp8_dtype=E4M3
        ),
        "block": SimpleNamespace(
            _rowwise_data=codes(256, 256),
            _rowwise_scale_inv=torch.ones(2, 256, device="cuda"),
            _fp8_dtype=E4M3,
            _is_2D_scaled=False,
        ),
        "mxfp8": SimpleNamespace(
            _rowwise_data=codes(256, 256), _rowwise_scale_inv=codes(256, 8), _fp8_dtype=E4M3
        ),
        "nvfp4": SimpleNamespace(
            _rowwise_data=codes(256, 128),
            _rowwise_scale_inv=codes(256, 16),
            _amax_rowwise=torch.ones(1, device="cuda"),
        ),
    }


@pytest.mark.parametrize("kind", ["tensor", "block", "mxfp8", "nvfp4"])
def test_nothing_waits(kind: str) -> None:
    with FakeTensorMode():
        tensor = tensors()[kind]
        x = torch.ones(256, 256, dtype=torch.bfloat16, device="cuda")
        with NoWaiting():
            found = scales_of(tensor)
            assert found is not None
            used = dequantised(tensor, found)
            assert used is not None
            assert used.shape == x.shape
            assert smallest(found).shape == ()
            on_device(x, used, found.scale, FORMATS[found.fmt])


@pytest.mark.parametrize(
    "tensor",
    [
        object(),
        SimpleNamespace(_scale_inv=None),
        SimpleNamespace(_scale_inv=torch.ones(1), _fp8_dtype="of a version to come"),
        SimpleNamespace(_scale_inv=torch.ones(3), _fp8_dtype=E4M3),
        SimpleNamespace(_rowwise_data=None, _rowwise_scale_inv=torch.ones(2, 2)),
        SimpleNamespace(_rowwise_data=torch.zeros(4, 4), _rowwise_scale_inv=torch.ones(2), _fp8_dtype=E4M3),
        SimpleNamespace(
            _rowwise_data=torch.zeros(300, 300, dtype=torch.uint8),
            _rowwise_scale_inv=torch.ones(1, 1),
            _fp8_dtype=E4M3,
            _is_2D_scaled=True,
        ),
        SimpleNamespace(
            _rowwise_data=torch.zeros(64, 32, dtype=torch.uint8),
            _rowwise_scale_inv=torch.zeros(64, 4, dtype=torch.uint8),
            _amax_rowwise=None,
        ),
    ],
    ids=str,
)
def test_a_layout_that_is_not_known_is_not_guessed(tensor: Any) -> None:
    assert scales_of(tensor) is None


def test_without_codes_there_are_scales_but_no_values() -> None:
    """A tensor whose rows were given up after their last use."""
    tensor = SimpleNamespace(_data=None, _scale_inv=torch.full((1,), 0.25), _fp8_dtype=E4M3)
    found = scales_of(tensor)
    assert found is not None
    assert float(found.scale) == 4.0
    assert dequantised(tensor, found) is None

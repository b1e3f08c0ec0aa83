"""Nothing in the hot path waits for a device.

Without a GPU, the probes run on fake CUDA tensors, on which everything that would look at a value raises:
item, bool, float, tolist, boolean masks, nonzero, cpu, numpy. A dispatch mode refuses blocking copies and
counts kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from floatscope.catalog import Catalog
from floatscope.guard import Guard
from floatscope.probes.inputs import InputCheck
from floatscope.probes.loss_scaler import LossScalerProbe
from floatscope.probes.measure import on_device
from floatscope.probes.naming import CallOrder
from floatscope.probes.optimizer import OptimizerProbe
from floatscope.probes.readout import Readout
from floatscope.probes.weight_updates import WeightUpdates
from floatscope.protocol.formats import FORMATS
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Row

VIEWS = frozenset(
    {"view", "detach", "reshape", "alias", "split", "expand", "slice", "unsqueeze", "narrow", "_unsafe_view"}
)
"""Operations without a kernel."""


class NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses copies to the host that block, and counts kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        self.kernels += name.split(".")[1] not in VIEWS
        to_host = (
            name.startswith("aten._to_copy") and args[0].device.type == "cuda" and result.device.type == "cpu"
        )
        if to_host or name.startswith("aten._local_scalar_dense"):
            raise AssertionError(f"{name} waits for the device")
        return result


def catalog(**known: Any) -> Catalog:
    return Catalog(RunInfo(name="x", **known))


@pytest.mark.parametrize(
    "look", [lambda x: x.item(), bool, lambda x: x.cpu(), lambda x: x[x > 0], lambda x: float(x.sum())]
)
def test_the_fake_gpu_catches_what_waits(look: Callable[[Tensor], object]) -> None:
    with FakeTensorMode():
        x = torch.ones((), device="cuda")
        with NoWaiting(), pytest.raises(Exception, match=r".+"):
            look(x)


def test_the_optimizer_probe() -> None:
    with FakeTensorMode():
        model = nn.ParameterList([nn.Parameter(torch.ones(64, 64, device="cuda")) for _ in range(40)])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        guard = Guard(strict=True)
        probe = OptimizerProbe(
            model,
            optimizer,
            catalog=catalog(),
            order=CallOrder(),
            area=guard.area("probe", loses="all"),
            updates=WeightUpdates(budget_bytes=2**25, turn_steps=50),
            on_first_steps=lambda: None,
        )
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for is_sampled, most in ((False, 3), (True, 400)):
            probe.is_sampled = is_sampled
            with NoWaiting() as mode:
                probe._before_step(optimizer, (), {})
                probe._after_step(optimizer, (), {})
                readout = Readout()
                probe.collect(readout, Row(0, 0.0))
            assert not readout.is_empty
            assert mode.kernels <= most, f"sampled: {is_sampled}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fmt", ["e4m3", "mxfp8_e4m3", "fp16", "bf16"])
def test_the_measurement_of_a_tensor(dtype: torch.dtype, fmt: str) -> None:
    with FakeTensorMode():
        x = torch.ones(64, 256, device="cuda", dtype=dtype)
        scale = torch.ones(64, 8, device="cuda") if fmt.startswith("mx") else torch.ones((), device="cuda")
        with NoWaiting() as mode:
            vector = on_device(x, x, scale if FORMATS[fmt].is_scaled else None, FORMATS[fmt])
        assert vector.shape == (12,)
        assert mode.kernels < 140


def test_the_input_check_and_the_loss_scale() -> None:
    with FakeTensorMode():
        guard = Guard(strict=True)
        check = InputCheck(catalog=catalog(vocab_size=100), area=guard.area("inputs", loses="all"))
        ids = torch.ones(4, 16, device="cuda", dtype=torch.int64)
        pixels = torch.ones(3, device="cuda")

        class Scaler:
            _scale = torch.ones((), device="cuda")

        with NoWaiting():
            check.see({"input_ids": ids, "labels": ids, "pixels": pixels})
            readout = Readout()
            check.collect(readout, Row(0, 0.0))
            LossScalerProbe(Scaler(), area=guard.area("scaler", loses="all")).collect(readout)
        assert not readout.is_empty

"""Hashes, readings before clipping and checks of an optimizer's state never wait for a device.

On fake CUDA tensors, as in ``test_no_waiting``: whatever would look at a value raises. Kernels are counted.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from floatscope.guard import Guard
from floatscope.look import EXTRA, GLANCE, SAMPLE
from floatscope.probes.gradients import RootOfSquares
from floatscope.probes.hashes import HashProbe, hash_of
from floatscope.probes.naming import CallOrder
from floatscope.probes.optimizer import OptimizerProbe
from floatscope.probes.optimizer_state import StateCheck
from floatscope.probes.readout import Readout
from floatscope.probes.weight_updates import WeightUpdates
from floatscope.probes.weights import Weight
from floatscope.rows import Row
from tests.agent.test_no_waiting import NoWaiting, catalog
from tests.agent.test_row_sample import Memory


def parameters(count: int = 40) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)) for _ in range(count)]


def test_a_hash_of_many_weights() -> None:
    with FakeTensorMode():
        weights: list[Tensor] = list(parameters(300))
        guard = Guard(strict=True)
        area = guard.area("hashes", loses="all")
        probe = HashProbe(lambda: weights, lambda: [torch.ones(9, device="cuda")], [], area=area)
        for look, is_due in ((GLANCE, False), (EXTRA, False), (SAMPLE, True)):
            readout = Readout()
            probe.begin(look)
            with NoWaiting() as mode:
                probe.collect(readout, Row(0, 0.0))
            assert readout.is_empty != is_due
            assert mode.kernels <= (65 if is_due else 0), "small weights are hashed together"


def test_a_hash_of_large_weights() -> None:
    """Two billion weights: 128 chunks of eight kernels, and little memory beside the weights."""
    with FakeTensorMode():
        weights = [torch.ones(2**16, 2**13, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        with NoWaiting() as mode, Memory() as memory:
            hash_of(weights)
    chunks = 4 * 2**29 * 2 // 8 // 2**22
    assert mode.kernels <= 8 * chunks + 20
    assert memory.largest <= 2**25


def test_gradients_before_clipping() -> None:
    with FakeTensorMode():
        model = nn.ParameterList(parameters())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        guard = Guard(strict=True)
        probe = OptimizerProbe(
            model,
            optimizer,
            catalog=catalog(),
            order=CallOrder(),
            area=guard.area("probe", loses="all"),
            updates=None,
            on_first_steps=lambda: None,
            scale_of=lambda optimizer: torch.ones((), device="cuda"),
        )
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        given = list(model.parameters())
        with NoWaiting() as mode:
            probe._before_clip(given, torch.ones((), device="cuda"))
            probe._after_clip(given)
            probe._before_step(optimizer, (), {})
            probe._after_step(optimizer, (), {})
            readout = Readout()
            probe.collect(readout, Row(0, 0.0))
        assert not readout.is_empty
        assert mode.kernels <= 6


@pytest.mark.parametrize("on_device", [True, False])
def test_the_state_of_an_optimizer(on_device: bool) -> None:
    with FakeTensorMode():
        optimizer: Any = torch.optim.AdamW(parameters(), 0.1)
        weights = [
            Weight(p, "a/weight", is_sharded=False, is_plain=True)
            for p in optimizer.param_groups[0]["params"]
        ]
        for weight in weights:
            step = torch.tensor(3.0, device="cuda" if on_device else "cpu")
            optimizer.state[weight.parameter] = {
                "step": step if on_device else 3,
                "exp_avg": torch.ones(64, 64, device="cuda"),
                "exp_avg_sq": torch.ones(64, 64, device="cuda"),
            }
        readout = Readout()
        with NoWaiting() as mode:
            StateCheck(lambda key, text: None).read(optimizer, weights, readout)
        assert not readout.is_empty
        assert mode.kernels <= 40 + 10


def test_pieces_of_a_weight_that_is_larger_than_the_budget() -> None:
    with FakeTensorMode():
        weights = [Weight(p, "a/weight", is_sharded=False, is_plain=True) for p in parameters(3)]
        updates = WeightUpdates(budget_bytes=1000, turn_steps=1)
        readout = Readout()
        for _ in range(4):
            with NoWaiting() as mode:
                updates.before(weights, is_sampled=True)
                assert updates.copied_bytes <= 1000
                updates.after(readout, RootOfSquares("update_norm"))
            assert mode.kernels <= 40
        assert not readout.is_empty

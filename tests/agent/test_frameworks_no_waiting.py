"""What integrations take from a framework on the device is handed on without waiting for it."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from floatscope.guard import Guard
from floatscope.integrations.means import MeanLoss
from floatscope.integrations.megatron import loss_scale_of, losses_of
from floatscope.integrations.wrapping import wrap
from floatscope.look import GLANCE
from floatscope.probes.deepspeed import DeepSpeedProbe
from floatscope.probes.readout import Readout
from floatscope.rows import Row
from tests.agent.test_no_waiting import NoWaiting


class Engine:
    """What a DeepSpeed engine answers; ``norm`` is its gradient norm."""

    def __init__(self, norm: Any, *, overflow: bool = False, skipped: int = 0) -> None:
        self.optimizer = types.SimpleNamespace(cur_scale=1024.0, overflow=overflow)
        self.skipped_steps = skipped
        self._norm = norm

    def fp16_enabled(self) -> bool:
        return True

    def get_global_grad_norm(self) -> Any:
        return self._norm


def collected(engine: Engine, row: Row) -> Readout:
    probe = DeepSpeedProbe(engine, engine.optimizer, area=Guard(strict=True).area("x", loses="x"))
    readout = Readout()
    probe.begin(GLANCE)
    engine.optimizer.cur_scale = 512.0  # the step lowers it
    probe.collect(readout, row)
    return readout


def test_a_deepspeed_norm_on_the_device_is_read_later() -> None:
    """Loss scale and skipped steps are numbers and there at once."""
    row = Row(0, 0.0)
    with FakeTensorMode():
        norm = torch.ones((), device="cuda")
        with NoWaiting():
            readout = collected(Engine(norm, skipped=3), row)
    assert row.scalars == {"loss_scale": 1024.0, "skipped_steps": 3.0}
    assert not readout.is_empty


@pytest.mark.parametrize(("norm", "expected"), [(float("inf"), float("inf")), (0.5, None), (None, None)])
def test_the_norm_of_a_skipped_step_is_not_that_of_the_step_before(norm: Any, expected: float | None) -> None:
    """Older engines leave the last one standing; newer ones say that it is infinite."""
    row = Row(0, 0.0)
    collected(Engine(norm, overflow=True, skipped=1), row)
    assert row.scalars.get("grad_norm") == expected


def test_what_the_loop_gives_itself_stays() -> None:
    """A probe adds what is missing."""
    row = Row(0, 0.0, scalars={"grad_norm": 7.0, "loss_scale": 8.0})
    collected(Engine(0.5), row)
    assert (row.scalars["grad_norm"], row.scalars["loss_scale"]) == (7.0, 8.0)


def test_losses_and_scales_stay_on_the_device() -> None:
    """Sums and copies there, and nothing is asked of a value."""
    with FakeTensorMode():
        losses = [torch.ones((1,), device="cuda"), torch.ones((), device="cuda")]
        scale = torch.ones((1,), device="cuda")
        optimizer = types.SimpleNamespace(grad_scaler=object(), get_loss_scale=lambda: scale)
        mean = MeanLoss()
        with NoWaiting():
            for loss in losses:
                mean.add(loss)
            mean.add(torch.ones(3, device="cuda"))
            mean.add("not a loss")
            found = mean.take()
            copy = loss_scale_of(optimizer)
            named = dict(losses_of({"mtp loss": losses[0], "lm loss": losses[1]}))
    assert found.device.type == "cuda"
    assert found.shape == ()
    assert copy is not scale
    assert named["loss"] is losses[1]
    assert mean.take() is None


def test_a_mean_and_a_sum() -> None:
    """Numbers and tensors; a loss that is changed in place later does not change it."""
    mean = MeanLoss()
    buffer = torch.tensor(1.0)
    mean.add(buffer)
    buffer.fill_(100.0)
    mean.add(3.0)
    assert mean.take() == 2.0
    mean.add(1)
    mean.add(2)
    assert mean.take_sum() == 3


def test_a_wrapped_function_behaves_as_before() -> None:
    """Arguments, result and exception are the function's; what fails in ours stays inside."""
    thing = types.SimpleNamespace(double=lambda x, *, plus=0: 2 * x + plus)
    original = thing.double
    seen: list[Any] = []
    area = Guard().area("wrapping", loses="nothing")
    undo = wrap(
        thing,
        "double",
        area=area,
        before=lambda x, **kwargs: seen.append(x),
        after=lambda result, x, **kwargs: seen.append(result / 0),
    )
    assert thing.double(3, plus=1) == 7
    assert seen == [3]
    assert area.failures == 1
    with pytest.raises(TypeError, match="unsupported operand"):
        thing.double(None, plus=1)
    undo()
    assert thing.double is original


def test_a_wrapped_function_under_another_wrapper_passes_through_when_it_is_put_back() -> None:
    """Somebody who wrapped it after us keeps a working function."""

    class Thing:
        def value(self) -> int:
            return 1

    thing = Thing()
    calls: list[int] = []
    undo = wrap(thing, "value", area=Guard().area("x", loses="x"), after=calls.append)
    ours = thing.value
    thing.value = lambda: ours() + 10  # type: ignore[method-assign]
    undo()
    assert thing.value() == 11
    assert calls == []
    del thing.value
    assert thing.value() == 1

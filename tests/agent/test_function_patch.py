"""Watching a function of another package: nothing of ours stays or reaches the caller."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from floatscope.guard import Area, Guard
from floatscope.probes.clipping import ClipWatch
from floatscope.probes.function_patch import FunctionPatch, Observer
from tests.agent.training import small_model


def module() -> Any:
    made = ModuleType("package")
    made.double = lambda x, times=2: x * times  # type: ignore[attr-defined]
    return made


def area(guard: Guard | None = None) -> Area:
    return (guard or Guard(strict=True)).area("watching", loses="what is watched")


def test_observers_see_result_and_arguments_and_leave_in_any_order() -> None:
    package = module()
    original = package.double
    seen: list[Any] = []
    one = FunctionPatch(package, "double", Observer(area(), lambda *call: seen.append(("one", *call))))
    two = FunctionPatch(
        package,
        "double",
        Observer(area(), lambda *call: seen.append(("two", *call)), lambda *call: seen.append(call)),
    )
    assert package.double(3, times=4) == 12
    one.remove()
    one.remove()
    assert package.double(5) == 10
    two.remove()
    assert package.double is original
    assert seen == [
        ((3,), {"times": 4}),
        ("one", 12, (3,), {"times": 4}),
        ("two", 12, (3,), {"times": 4}),
        ((5,), {}),
        ("two", 10, (5,), {}),
    ]


def test_what_somebody_else_put_over_it_stays() -> None:
    package = module()
    seen: list[Any] = []
    patch = FunctionPatch(package, "double", Observer(area(), lambda *call: seen.append(call)))
    below = package.double
    package.double = lambda x: below(x) + 1
    above = package.double
    patch.remove()
    assert package.double is above
    assert package.double(2) == 5
    assert seen == []
    again = FunctionPatch(package, "double", Observer(area(), lambda *call: seen.append(call[0])))
    assert package.double(2) == 5
    again.remove()
    assert package.double is above
    assert seen == [5]


def test_an_observer_that_fails_does_not_reach_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and after some failures the observer is not called any more; others go on."""
    package = module()
    calls: list[str] = []
    seen: list[Any] = []

    def broken(*call: Any) -> None:
        calls.append("broken")
        raise RuntimeError("broken")

    guard = Guard(limit=3)
    FunctionPatch(package, "double", Observer(area(guard), broken, broken))
    FunctionPatch(package, "double", Observer(area(), lambda *call: seen.append(call[0])))
    with caplog.at_level(logging.WARNING, "floatscope"):
        assert [package.double(n) for n in range(5)] == [0, 2, 4, 6, 8]
    assert seen == [0, 2, 4, 6, 8]
    assert len(calls) == 3
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "floatscope: watching failed",
        "floatscope: watching failed 3 times and is switched off for this run.",
    ]


class Strange(list[Any]):
    """Parameters that only torch can read."""

    def __iter__(self) -> Any:
        if Path(sys._getframe(1).f_code.co_filename).parent.name == "probes":
            raise RuntimeError("not for you")
        return super().__iter__()


def test_parameters_that_cannot_be_read_are_clipped_all_the_same() -> None:
    """Reading them is inside the guard as well, before and after the clipping."""
    model = small_model()
    guard = Guard()
    watch = ClipWatch(lambda parameters, norm: None, lambda parameters: None, area=area(guard))
    watch.install()
    try:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.nn.utils.clip_grad_value_(Strange(model.parameters()), 0.5)
    finally:
        watch.remove()
    assert all(bool((parameter.grad == 0.5).all()) for parameter in model.parameters())
    assert guard.failures == {"watching": 2}

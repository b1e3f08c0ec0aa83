"""Watching a function of another package: several observers come and go, and nothing of ours stays."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from floatscope.probes.torchao_casts import FunctionTap
from floatscope.probes.torchao_recipe import describe


def module() -> Any:
    made = ModuleType("package")
    made.double = lambda x, times=2: x * times  # type: ignore[attr-defined]
    return made


def test_observers_see_result_and_arguments_and_leave_in_any_order() -> None:
    package = module()
    original = package.double
    seen: list[tuple[str, Any, Any, Any]] = []
    one = FunctionTap(package, "double", lambda *call: seen.append(("one", *call)))
    two = FunctionTap(package, "double", lambda *call: seen.append(("two", *call)))
    assert package.double(3, times=4) == 12
    one.remove()
    one.remove()
    assert package.double(5) == 10
    two.remove()
    assert package.double is original
    assert seen == [
        ("one", 12, (3,), {"times": 4}),
        ("two", 12, (3,), {"times": 4}),
        ("two", 10, (5,), {}),
    ]


def test_what_somebody_else_put_over_it_stays() -> None:
    package = module()
    seen: list[Any] = []
    tap = FunctionTap(package, "double", lambda *call: seen.append(call))
    below = package.double
    package.double = lambda x: below(x) + 1
    above = package.double
    tap.remove()
    assert package.double is above
    assert package.double(2) == 5
    assert seen == []
    again = FunctionTap(package, "double", lambda *call: seen.append(call[0]))
    assert package.double(2) == 5
    again.remove()
    assert package.double is above
    assert seen == [5]


def test_no_layers_have_no_recipe() -> None:
    assert describe([], version="0.18") == {}

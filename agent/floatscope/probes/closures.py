"""Optimizer steps that are given a closure: forward and backward pass run inside the step.

Lightning always trains so, Composer by default. A hook before the step then comes before the gradients; what
it wants to read is there when the closure returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def with_reading(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], read: Callable[[], None]
) -> Arguments | None:
    """The arguments of ``optimizer.step`` with a closure that calls ``read`` when it is through, the first
    time it is called; None if there is no closure.

    args: as a step hook gets them, the optimizer first.
    """
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _reading(kwargs["closure"], read)}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _reading(args[1], read), *args[2:]), dict(kwargs)
    return None


def _reading(closure: Callable[..., Any], read: Callable[[], None]) -> Callable[..., Any]:
    waiting = [read]

    def closure_and_reading(*args: Any, **kwargs: Any) -> Any:
        result = closure(*args, **kwargs)
        if waiting:
            waiting.pop()()
        return result

    return closure_and_reading

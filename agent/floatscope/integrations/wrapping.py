"""Wraps a function of somebody else's object or module, so that it can be put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from floatscope.guard import Area


def wrap(
    owner: Any,
    name: str,
    *,
    area: Area,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> Callable[[], None]:
    """Calls ``before(*args)`` ahead of each call of ``owner.name`` and ``after(result, *args)`` behind it.

    owner: an object or a module. What ``owner.name`` takes, returns and raises stays as it is; ``after`` is
    not called if it raises. What fails in the two stays in ``area``.
    Returns what puts it back; where somebody has wrapped it again meanwhile, ours becomes a pass-through.
    """
    own = vars(owner)
    is_own, original = name in own, getattr(owner, name)
    is_on = True

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if before is not None and is_on and not area.tripped:
            with area:
                before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None and is_on and not area.tripped:
            with area:
                after(result, *args, **kwargs)
        return result

    setattr(owner, name, wrapper)

    def undo() -> None:
        nonlocal is_on
        is_on = False
        if vars(owner).get(name) is wrapper:
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

    return undo

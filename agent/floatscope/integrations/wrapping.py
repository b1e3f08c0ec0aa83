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
    is_own, original = name in vars(owner), getattr(owner, name)
    wrapped = _Wrapped(owner, name, original, area=area, before=before, after=after)
    setattr(owner, name, wrapped)

    def undo() -> None:
        wrapped.is_on = False
        if vars(owner).get(name) is wrapped:
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

    return undo


class _Wrapped:
    """Stands in for a function of one object, and not for that of the object's copies.

    A copy of the object, or a pickled one, is not watched: it gets its own method, since this one would go on
    calling the first object's.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        original: Callable[..., Any],
        *,
        area: Area,
        before: Callable[..., None] | None,
        after: Callable[..., None] | None,
    ) -> None:
        functools.update_wrapper(self, original)
        self.is_on = True
        self._owner = owner
        self._name = name
        self._original = original
        self._area = area
        self._before = before
        self._after = after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._before is not None and self.is_on and not self._area.tripped:
            with self._area:
                self._before(*args, **kwargs)
        result = self._original(*args, **kwargs)
        if self._after is not None and self.is_on and not self._area.tripped:
            with self._area:
                self._after(result, *args, **kwargs)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return getattr(memo.get(id(self._owner), self._owner), self._name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, self._name)

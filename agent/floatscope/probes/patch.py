"""Wraps a class method so that several observers can come and go in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MARK = "__floatscope_observers__"


class Patch:
    """Calls ``before`` with the arguments of a class's method ahead of each call, until removed.

    All patches of one method share one wrapper. When the last leaves, the original comes back; if somebody
    else has wrapped the method on top of ours meanwhile, our wrapper stays below as a pass-through.
    """

    def __init__(self, owner: type, name: str, *, before: Callable[..., None]) -> None:
        self._owner = owner
        self._name = name
        self._before = before
        current = owner.__dict__.get(name)
        observers = getattr(getattr(current, "__func__", None), _MARK, None)
        if observers is None:
            observers = self._wrap(current)
        self._observers: list[Callable[..., None]] = observers
        self._observers.append(before)

    def _wrap(self, current: Any) -> list[Callable[..., None]]:
        observers: list[Callable[..., None]] = []
        owner, name = self._owner, self._name
        bound_elsewhere = None if current is not None else getattr(owner, name).__func__

        def wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
            for before in tuple(observers):
                before(*args, **kwargs)
            function = bound_elsewhere if bound_elsewhere is not None else current.__func__
            return function(cls, *args, **kwargs)

        wrapper.__name__ = name
        setattr(wrapper, _MARK, observers)
        wrapper.__dict__["__floatscope_original__"] = current
        setattr(owner, name, classmethod(wrapper))
        return observers

    def remove(self) -> None:
        """Stops observing; a second call does nothing."""
        if self._before in self._observers:
            self._observers.remove(self._before)
        current = self._owner.__dict__.get(self._name)
        function = getattr(current, "__func__", None)
        if self._observers or getattr(function, _MARK, None) is not self._observers:
            return
        original = function.__dict__["__floatscope_original__"]
        if original is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, original)

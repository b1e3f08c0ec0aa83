"""Watches a function of a module that others call by its global name, so that observers can come and go."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

_MARK = "__floatscope_observers__"

Observer = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""Called after the function with its result and its arguments."""


class FunctionTap:
    """Calls ``see`` after each call of a module's function, until removed.

    All taps of one function share one wrapper. When the last leaves, the original comes back; if somebody
    else has put a function over ours meanwhile, ours stays below as a pass-through.
    """

    def __init__(self, module: ModuleType, name: str, see: Observer) -> None:
        self._module = module
        self._name = name
        self._see = see
        current = getattr(module, name)
        observers = getattr(current, _MARK, None)
        if observers is None:
            observers = self._wrap(current)
        self._observers: list[Observer] = observers
        self._observers.append(see)

    def _wrap(self, original: Callable[..., Any]) -> list[Observer]:
        observers: list[Observer] = []

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            for see in tuple(observers):
                see(result, args, kwargs)
            return result

        wrapper.__name__ = self._name
        wrapper.__dict__[_MARK] = observers
        wrapper.__dict__["__wrapped__"] = original
        setattr(self._module, self._name, wrapper)
        return observers

    def remove(self) -> None:
        """Stops watching; a second call does nothing."""
        if self._see in self._observers:
            self._observers.remove(self._see)
        current = getattr(self._module, self._name, None)
        if not self._observers and getattr(current, _MARK, None) is self._observers:
            setattr(self._module, self._name, current.__dict__["__wrapped__"])

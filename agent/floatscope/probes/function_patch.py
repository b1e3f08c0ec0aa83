"""Wraps a function of a module so that several observers can come and go in any order.

The sibling of ``patch.Patch``, which wraps methods of classes. Nothing that an observer does reaches the
caller. Only calls that look the function up in the
module are seen; a name imported from it earlier goes on meaning the original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from floatscope.guard import Area
from floatscope.probes.naming import is_compiling

_MARK = "__floatscope_observers__"
_ORIGINAL = "__floatscope_original__"


@dataclass(frozen=True, eq=False)
class Observer:
    """Sees each call, inside ``area``: what fails here stays here.

    before: called with the positional arguments and the keyword arguments.  after: with what the function has
    returned, and then those.
    """

    area: Area
    after: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
    before: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The call is about to be made."""
        if self.before is not None and not self.area.tripped:
            with self.area:
                self.before(args, kwargs)

    def leave(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It has returned."""
        if not self.area.tripped:
            with self.area:
                self.after(result, args, kwargs)


def _as_they_are(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


class FunctionPatch:
    """Lets ``observer`` see each call of ``module.name`` until removed.

    All patches of one function share one wrapper. When the last leaves, the original comes back; if somebody
    else has wrapped the function on top of ours meanwhile, our wrapper stays below as a pass-through.
    prepare: makes arguments that can be read twice of those given, for iterators.
    Raises AttributeError if the module has no such function.
    """

    def __init__(
        self,
        module: ModuleType,
        name: str,
        observer: Observer,
        *,
        prepare: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _as_they_are,
    ) -> None:
        self._module = module
        self._name = name
        self._observer = observer
        current = getattr(module, name)
        observers = getattr(current, _MARK, None)
        self._observers: list[Observer] = self._wrap(current, prepare) if observers is None else observers
        self._observers.append(observer)

    def _wrap(self, original: Any, prepare: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> list[Observer]:
        observers: list[Observer] = []

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not observers:
                return original(*args, **kwargs)
            args = prepare(args)
            present = tuple(observers)
            for observer in present:
                observer.enter(args, kwargs)
            result = original(*args, **kwargs)
            for observer in present:
                observer.leave(result, args, kwargs)
            return result

        setattr(wrapper, _MARK, observers)
        setattr(wrapper, _ORIGINAL, original)
        setattr(self._module, self._name, wrapper)
        return observers

    def remove(self) -> None:
        """Stops observing; a second call does nothing."""
        if self._observer in self._observers:
            self._observers.remove(self._observer)
        current = getattr(self._module, self._name, None)
        if not self._observers and getattr(current, _MARK, None) is self._observers:
            setattr(self._module, self._name, getattr(current, _ORIGINAL))

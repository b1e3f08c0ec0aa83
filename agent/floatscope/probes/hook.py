"""Hooks on a user's modules that survive what users do with modules.

A model is copied and pickled with its hooks. A copy is not watched, and a pickled model must load where
floatscope is not installed, so both get a hook of the standard library that does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


class Hook:
    """Calls ``function`` with a layer's name and the hook's arguments; returns None: nothing changes."""

    def __init__(self, function: Callable[..., None], layer: str) -> None:
        self._function = function
        self._layer = layer

    def __call__(self, *args: Any) -> None:
        self._function(self._layer, *args)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return nothing()

    def __copy__(self) -> Callable[..., None]:
        return nothing()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def nothing() -> Callable[..., None]:
    """A function that takes anything and returns None, and that every Python can load from a pickle."""
    return contextlib.nullcontext().__exit__

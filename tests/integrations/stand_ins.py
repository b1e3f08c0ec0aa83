"""Empty packages in place of those that need a GPU, so that what names them can be imported.

Whatever is asked of such a package is there and does nothing; a test that reaches into one proves nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Anything:
    """A class, function or object of an empty package. As a decorator it leaves the function as it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self._name}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __getitem__(self, item: object) -> Anything:
        return self

    def __or__(self, other: object) -> Any:
        return object

    __ror__ = __add__ = __radd__ = __or__


class _Empty(types.ModuleType):
    __path__ = []  # noqa: RUF012 - what makes a module a package
    __version__ = "2.10.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if _is_under(name, self._names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


@contextmanager
def empty_packages(*names: str) -> Iterator[None]:
    """Inside the block, these packages and all below them can be imported; afterwards they are gone."""
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [loaded for loaded in sys.modules if _is_under(loaded, names)]:
            del sys.modules[name]


def _is_under(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)

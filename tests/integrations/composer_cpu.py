"""Composer's real package where two things are missing that training does not need.

torchvision's compiled part fits only the torch it was built with, and mcli reports to Composer's platform.
Composer imports both at its start. Where one cannot be imported, names in it are empty classes meanwhile.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any

STOOD_IN = ("torchvision", "mcli")


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module below the packages that are missing."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = tuple(packages)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__["__getattr__"] = _empty_class
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


def _empty_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def load_composer() -> Any:
    """Imports composer and leaves no stand-in behind."""
    import transformers  # first: it asks once whether torchvision is there

    assert transformers.__version__
    finder = _StandIns([name for name in STOOD_IN if not _can_import(name)])
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("composer.algorithms")  # the Trainer imports it, however it is used
        return importlib.import_module("composer")
    finally:
        sys.meta_path.remove(finder)
        for name in list(sys.modules):
            if name.partition(".")[0] in finder.packages:
                del sys.modules[name]


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError, OSError):
        return False
    return True


if __name__ == "__main__":  # composer_cpu.py SCRIPT [ARGUMENT...]: runs a script with such a composer
    load_composer()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")

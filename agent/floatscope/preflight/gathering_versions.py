"""Versions of the installed distributions that preflight knows something about."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from floatscope.preflight.table_reading import read_table
from floatscope.preflight.time_limit import said

_MAX_FILE = 20_000


def read_versions(failed: dict[str, str], *, installed: Callable[[str], str] = version) -> Mapping[str, str]:
    """Distribution -> version, for those of tables/distributions.json that are installed.

    failed: gets what could not be read, by distribution: a damaged installation is not the same as none.
    """
    found = {}
    for name in read_table("distributions")["names"]:
        try:
            text = installed(name)
        except PackageNotFoundError:
            continue
        except Exception as error:  # metadata that is damaged: UnicodeDecodeError, KeyError, OSError
            failed[name] = f"damaged metadata: {said(error)}"
            continue
        if isinstance(text, str) and text:
            found[name] = text[:100]
        else:
            failed[name] = "its metadata has no version"
    return found


def read_libraries(versions: Mapping[str, str]) -> Mapping[str, str]:
    """cublaslt, cudnn and nccl by the packages that bring them; a library path may bring another one."""
    table = read_table("distributions")["libraries"]
    return {
        library: next(versions[name] for name in names if name in versions)
        for library, names in table.items()
        if any(name in versions for name in names)
    }


def torch_build() -> Mapping[str, Any]:
    """ "version", "cuda" and "hip" from torch's version.py, without importing torch; {} where it has none.

    For a torch whose import fails. Raises OSError or ValueError if the file is there and damaged.
    """
    spec = importlib.util.find_spec("torch")  # of a top-level name: imports nothing
    if spec is None or not spec.submodule_search_locations:
        return {}
    path = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8") as file:
        tree = ast.parse(file.read(_MAX_FILE))
    names = {"__version__": "version", "cuda": "cuda", "hip": "hip"}
    found = {}
    for line in tree.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            target, value = line.target.id, line.value
        elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            target, value = line.targets[0].id, line.value
        else:
            continue
        if target in names and isinstance(value, ast.Constant) and isinstance(value.value, str | None):
            found[names[target]] = value.value
    return found

"""Versions of libraries as they are loaded, and of the driver as the kernel has it."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

MAPS = Path("/proc/self/maps")
KERNEL_DRIVER = Path("/proc/driver/nvidia/version")

_CUBLASLT = re.compile(r"\s(/\S*libcublasLt\.so\S*)$", re.MULTILINE)
_SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")
_MAX_BYTES = 8 * 2**20


def kernel_driver(path: Path = KERNEL_DRIVER) -> str:
    """Version of the NVIDIA kernel module, "" where none is loaded. Raises OSError if it cannot be read."""
    if not path.exists():
        return ""
    found = re.search(r"Kernel Module.{0,40}?\s(\d+(?:\.\d+)+)\b", _head(path))
    return found.group(1) if found else ""


def loaded_cublaslt(maps: Path = MAPS) -> str:
    """Version of the cuBLASLt that this process has loaded, "" without one. Loads nothing. Raises OSError."""
    if not maps.exists():
        return ""
    found = _CUBLASLT.search(_head(maps))
    return "" if found is None else _ask(found.group(1), os.RTLD_NOLOAD | os.RTLD_LAZY)


def found_cublaslt(names: Sequence[str] = _SONAMES) -> str:
    """Version of the cuBLASLt that a program would find now, "" without one. Loads it."""
    for name in names:
        try:
            return _ask(name, os.RTLD_LAZY)
        except OSError:
            continue
    return ""


def cublaslt_text(packed: int) -> str:
    """Dotted form: 120804 is 12.8.4; before 12 it was major*1000 (cublas_api.h)."""
    scale = 10000 if packed >= 120000 else 1000
    return f"{packed // scale}.{packed % scale // 100}.{packed % 100}"


def _ask(path: str, mode: int) -> str:
    library = ctypes.CDLL(path, mode=mode)
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return cublaslt_text(int(library.cublasLtGetVersion()))


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "replace")

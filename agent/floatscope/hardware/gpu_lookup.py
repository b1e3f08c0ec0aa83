"""Finds a GPU model by the name that a person, NVML or torch gives it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from floatscope.hardware.gpus import GpuModel

_MAKERS = re.compile(r"\b(nvidia|amd|geforce|instinct|tesla|graphics|gpu)\b")
_MAX_NAME = 200


class UnknownGpuError(ValueError):
    """No such GPU in the table; the text lists the names that look like it."""


@dataclass(frozen=True)
class _Entry:
    model: GpuModel
    keys: frozenset[str]
    power_limit_w: tuple[float, float]


def gpu_models() -> tuple[GpuModel, ...]:
    """All GPU models of the table, in its order (source of each number: its ``source``)."""
    return tuple(entry.model for entry in _entries())


def find_gpu(name: str, power_limit_w: float | None = None) -> GpuModel:
    """The GPU of this name, written as people write it ("H100 SXM", "h100") or as NVML does
    ("NVIDIA H100 80GB HBM3").

    power_limit_w: default power limit in watts, which separates models that share a name (H100 SXM, PCIe,
    NVL). Without one, or when it fits none, the most common of them is taken: look at the answer's name.
    Raises UnknownGpuError with near names. A MIG slice is unknown, because its peak is not that of the GPU.
    """
    key = _key(name[:_MAX_NAME])
    found = [entry for entry in _entries() if key in entry.keys]
    if not found:
        raise UnknownGpuError(_unknown(name[:_MAX_NAME], key))
    if power_limit_w is not None:
        for entry in found:
            if entry.power_limit_w[0] <= power_limit_w <= entry.power_limit_w[1]:
                return entry.model
    return found[0].model


def _unknown(name: str, key: str) -> str:
    names = {alias: entry.model.name for entry in _entries() for alias in entry.keys}
    near = list(
        dict.fromkeys(names[alias] for alias in difflib.get_close_matches(key, names, n=8, cutoff=0.5))
    )
    known = ", ".join(near[:5] if near else [model.name for model in gpu_models()])
    return f"unknown GPU {name!r}; {'near names' if near else 'known GPUs'}: {known}"


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub(" ", name.lower()))


@cache
def _entries() -> tuple[_Entry, ...]:
    text = files("floatscope.hardware").joinpath("gpus.json").read_text(encoding="utf-8")
    return tuple(_entry(row) for row in json.loads(text)["gpus"])


def _entry(row: Mapping[str, Any]) -> _Entry:
    capability = row["capability"]
    model = GpuModel(
        name=row["name"],
        capability=None if capability is None else (capability[0], capability[1]),
        arch=row["arch"],
        bf16_tflops=float(row["bf16_tflops"]),
        fp8_tflops=_number(row["fp8_tflops"]),
        fp4_tflops=_number(row["fp4_tflops"]),
        memory_gb=float(row["memory_gb"]),
        bandwidth_tb_s=float(row["bandwidth_tb_s"]),
        source=row["source"],
        verified=row["verified"],
    )
    low, high = row["power_limit_w"]
    keys = frozenset(_key(name) for name in (row["name"], *row["aliases"]))
    return _Entry(model=model, keys=keys, power_limit_w=(float(low), float(high)))


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)

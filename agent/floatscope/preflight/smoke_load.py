"""What holds a GPU back while it multiplies: clocks and links are only telling under load."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.gpu_visible import used_gpus
from floatscope.preflight.hardware_checks import hardware_checks
from floatscope.preflight.nvml_reading import read_nvml
from floatscope.preflight.smoke_timing import queue_gemms

UNDER_LOAD = {"gpu.throttle": "gemm.load.throttle", "gpu.pcie": "gemm.load.pcie"}
"""Checks of a machine that are asked again, and their names then."""
LIMIT_S = 20.0
LOAD_S = 2.0
"""Work that is queued; reading all of NVML takes less, and clocks react within tenths of a second."""


def load_checks(
    facts: Facts,
    wanted: Wanted,
    *,
    nvml: Any = None,
    queue: Callable[[float], Callable[[], None]] = queue_gemms,
) -> list[Check]:
    """Throttling and PCIe link of the first GPU while it multiplies; none without NVIDIA GPUs.

    nvml: the pynvml module, None to import it.  queue: starts so many seconds of work and returns what waits
    for its end.
    """
    if not facts.gpus or any(gpu.arch.startswith("gfx") for gpu in facts.gpus):
        return []
    try:
        module = nvml or importlib.import_module("pynvml")
        wait = queue(LOAD_S)
    except Exception as error:  # no pynvml, or a GPU that does not multiply, which gemm.speed says
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return [_unread(f"not read under load: {text}")]
    try:
        answer = read_nvml(module, limit_s=LIMIT_S)
    finally:
        wait()
    if answer.error:
        return [_unread(f"not read under load: {answer.error}")]
    first = used_gpus(facts)[0].index if used_gpus(facts) else 0
    busy = tuple(gpu for gpu in answer.gpus if gpu.index == first)
    if not busy:
        return [_unread(f"not read under load: NVML has no GPU {first}")]
    return _named(hardware_checks(replace(facts, gpus=busy), wanted))


def _named(checks: Sequence[Check]) -> list[Check]:
    return [
        replace(one, name=UNDER_LOAD[one.name], area="gemm", read=f"under load: {one.read}")
        for one in checks
        if one.name in UNDER_LOAD
    ]


def _unread(read: str) -> Check:
    why = "an idle GPU lowers its clocks and links, so only a busy one shows what holds it back"
    source = "NVIDIA NVML API reference, nvmlDeviceGetCurrentClocksEventReasons"
    return Check("gemm.load", "gemm", "unknown", read, why, "see gpu.nvml and gemm.speed", source)

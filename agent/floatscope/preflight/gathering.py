"""Reads a machine: packages, torch, GPUs, driver, Transformer Engine, environment, kernel log.

Every part may fail; what failed is in ``Facts.failed`` and nothing is guessed in its place.
"""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from floatscope.preflight.facts import Facts, GpuFacts
from floatscope.preflight.gathering_kernel_log import read_xids
from floatscope.preflight.gathering_libraries import (
    cublaslt_text,
    found_cublaslt,
    kernel_driver,
    loaded_cublaslt,
)
from floatscope.preflight.gathering_te import TeTrial
from floatscope.preflight.gathering_torch import TorchAnswer, read_torch
from floatscope.preflight.gathering_versions import read_libraries, read_versions, torch_build
from floatscope.preflight.nvml_reading import NvmlAnswer, read_nvml
from floatscope.preflight.software_te import PIECES
from floatscope.preflight.time_limit import said, within

T = TypeVar("T")

NVML_LIMIT_S = 5.0
NVML_LIGHT_LIMIT_S = 2.0
TORCH_LIMIT_S = 60.0
TE_LIMIT_S = 60.0


def gather_facts(
    *,
    nvml: Any = None,
    light: bool = False,
    environment: Mapping[str, str] | None = None,
    nvml_limit_s: float | None = None,
    te_limit_s: float = TE_LIMIT_S,
) -> Facts:
    """The facts of this machine and this Python. Raises nothing.

    nvml: the pynvml module or a stand-in. By default pynvml is imported; with ``light`` NVML is left out
    unless it is given.  light: for the agent inside a training process: starts no process, imports no torch,
    does not start CUDA, and asks NVML on a thread of its own.  environment: by default that of the process.
    nvml_limit_s, te_limit_s: seconds to wait for NVML and for the import of Transformer Engine.
    """
    failed: dict[str, str] = {}
    versions = read_versions(failed)
    trial = TeTrial() if not light and any(piece in versions for piece in PIECES) else None
    if nvml_limit_s is None:
        nvml_limit_s = NVML_LIGHT_LIMIT_S if light else NVML_LIMIT_S
    told = _nvml(nvml, light=light, limit_s=nvml_limit_s)
    torch = _torch(light=light)
    failed |= {**told.failed, **torch.failed}
    about_torch = dict(torch.facts)
    if not about_torch:
        about_torch = dict(_try(failed, "torch version.py", torch_build) or {})
    gpus = _merged(told, torch)
    libraries: dict[str, Any] = dict(read_libraries(versions))
    _note(failed, libraries, "kernel_driver", kernel_driver)
    _note(failed, libraries, "xids", read_xids)
    if told.version:
        libraries["nvml"] = told.version
    _cublaslt(failed, libraries, may_load=not light and bool(gpus))
    if trial is not None:
        _te(libraries, trial.finish(te_limit_s))
    elif light:
        failed["te_import"] = "left out inside a training process"
    return Facts(
        python=platform.python_version(),
        versions=versions,
        environment=dict(os.environ if environment is None else environment),
        gpus=gpus,
        nvml=told.error,
        driver=told.driver,
        cuda_driver=told.cuda_driver,
        torch=about_torch,
        libraries=libraries,
        failed=failed,
    )


def _nvml(nvml: Any, *, light: bool, limit_s: float) -> NvmlAnswer:
    if nvml is None and light:
        return NvmlAnswer(error="not asked inside a training process")
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except Exception as error:
            return NvmlAnswer(error=f"import pynvml: {said(error)}")
    return read_nvml(nvml, limit_s=limit_s)


def _torch(*, light: bool) -> TorchAnswer:
    if light:
        return read_torch(may_import=False)
    outcome = within(TORCH_LIMIT_S, lambda: read_torch(may_import=True))
    return outcome.value or TorchAnswer(failed={"torch": outcome.error, "torch_import": outcome.error})


def _merged(told: NvmlAnswer, torch: TorchAnswer) -> tuple[GpuFacts, ...]:
    """NVML's GPUs; torch's where NVML has none: AMD's, or without a working NVML."""
    return tuple(told.gpus) or torch.gpus


def _cublaslt(failed: dict[str, str], libraries: dict[str, Any], *, may_load: bool) -> None:
    """The one that is loaded counts before the one that would be found, and that before the package."""
    text = _try(failed, "cublaslt", loaded_cublaslt)
    origin = "as loaded"
    if not text and may_load:
        text, origin = _try(failed, "cublaslt", found_cublaslt), "as found by the loader"
    if text:
        libraries["cublaslt"] = text
    elif "cublaslt" in libraries:
        origin = "by its package; a library path may bring another one"
    else:
        return
    libraries["cublaslt_from"] = origin


def _te(libraries: dict[str, Any], outcome: Mapping[str, Any]) -> None:
    libraries["te_import"] = {"state": outcome.get("state", "failed"), "error": outcome.get("error", "")}
    if isinstance(outcome.get("available"), dict):
        libraries["te_available"] = outcome["available"]
    if isinstance(outcome.get("cublaslt"), int) and outcome["cublaslt"] > 0:
        libraries["cublaslt"] = cublaslt_text(outcome["cublaslt"])
        libraries["cublaslt_from"] = "as Transformer Engine has it"


def _note(failed: dict[str, str], into: dict[str, Any], name: str, read: Callable[[], Any]) -> None:
    value = _try(failed, name, read)
    if name not in failed:
        into[name] = value


def _try(failed: dict[str, str], name: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception as error:
        failed[name] = said(error)
        return None

"""Reads a machine's GPUs through NVML, for no longer than a while: a sick driver lets a call hang."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from floatscope.preflight.facts import GpuFacts, Version
from floatscope.preflight.nvml_values import read_gpu
from floatscope.preflight.time_limit import said, within

MAX_GPUS = 1024
NOT_INSTALLED = "the package nvidia-ml-py is not installed"


@dataclass
class NvmlAnswer:
    """What NVML told.  error: why it could not be used, "" if it could; what was read before stays.

    doing: the call it was in, for one that hangs.
    """

    driver: str = ""
    cuda_driver: Version = ()
    version: str = ""
    gpus: list[GpuFacts] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    error: str = ""
    doing: str = "loading pynvml"


def read_nvml(nvml: Any, *, limit_s: float) -> NvmlAnswer:
    """Everything NVML tells of this machine. Raises nothing and returns after ``limit_s`` seconds at most.

    nvml: the pynvml module or a stand-in, None where it is not installed. All calls are made on a thread of
    their own, which is left behind if one of them hangs.
    """
    if nvml is None:
        return NvmlAnswer(error=NOT_INSTALLED)
    answer = NvmlAnswer()
    outcome = within(limit_s, lambda: _read(nvml, answer))
    if outcome.error:
        # The thread may still be writing to ``answer``: what is there now is copied.
        hung = f" (in {answer.doing})" if answer.doing else ""
        return NvmlAnswer(
            driver=answer.driver,
            cuda_driver=answer.cuda_driver,
            version=answer.version,
            gpus=list(answer.gpus),
            failed=dict(answer.failed),
            error=f"{outcome.error}{hung}",
        )
    return answer


def _read(nvml: Any, answer: NvmlAnswer) -> bool:
    answer.doing = "nvmlInit"
    nvml.nvmlInit()
    try:
        answer.driver = _ask(nvml, answer, "driver", "nvmlSystemGetDriverVersion")
        answer.version = _ask(nvml, answer, "nvml_version", "nvmlSystemGetNVMLVersion")
        answer.cuda_driver = _cuda_driver(nvml, answer)
        answer.doing = "nvmlDeviceGetCount"
        count = int(nvml.nvmlDeviceGetCount())
        for index in range(min(count, MAX_GPUS)):
            answer.doing = f"the readings of GPU {index}"
            answer.gpus.append(read_gpu(nvml, index))
        answer.doing = ""
    finally:
        try:
            nvml.nvmlShutdown()
        except Exception as error:
            answer.failed["nvmlShutdown"] = said(error)
    return True


def _ask(nvml: Any, answer: NvmlAnswer, name: str, function: str) -> str:
    answer.doing = function
    try:
        value = getattr(nvml, function)()
    except Exception as error:
        answer.failed[name] = said(error)
        return ""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text[:100]


def _cuda_driver(nvml: Any, answer: NvmlAnswer) -> Version:
    """NVML packs it as major*1000 + minor*10 (nvml.h)."""
    answer.doing = "nvmlSystemGetCudaDriverVersion_v2"
    try:
        packed = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except Exception as error:
        answer.failed["cuda_driver"] = said(error)
        return ()
    return packed // 1000, packed % 1000 // 10

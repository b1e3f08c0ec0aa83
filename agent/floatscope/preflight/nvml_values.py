"""What NVML tells of one GPU, reading by reading: one that fails takes no other with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from floatscope.preflight.facts import GpuFacts
from floatscope.preflight.time_limit import said

NOT_SUPPORTED = "not supported"
"""How ``GpuFacts.failed`` begins for what the GPU, its driver or pynvml does not have."""

_ABSENT = ("NVMLError_NotSupported", "NVMLError_FunctionNotFound", "AttributeError")
_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS of nvidia-ml-py 13.615.71
_MAX_PROCESSES = 1000
_UNREADABLE = 2**63  # memory of a process that NVML may not see is the largest unsigned number

Read = Callable[[], Mapping[str, Any]]


def read_gpu(nvml: Any, index: int) -> GpuFacts:
    """All readings of the GPU of that index. Raises nothing: ``failed`` says what could not be read."""
    failed: dict[str, str] = {}
    values: dict[str, Any] = {"from": "nvml"}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        return GpuFacts(index, "", values=values, failed={"handle": said(error)})
    for name, read in _readings(nvml, handle).items():
        try:
            values.update(read())
        except Exception as error:  # NVML's errors have no common ancestor across its versions
            failed[name] = _why(error)
    capability = values.pop("capability", None)
    return GpuFacts(
        index,
        values.pop("name", ""),
        capability=capability,
        memory_bytes=values.pop("memory_bytes", None),
        arch=f"sm_{capability[0]}{capability[1]}" if capability else "",
        values=values,
        failed=failed,
    )


def _why(error: Exception) -> str:
    return f"{NOT_SUPPORTED} ({said(error)})" if type(error).__name__ in _ABSENT else said(error)


def _readings(nvml: Any, handle: Any) -> dict[str, Read]:
    """Reading -> the values it gives. ``nvml.x`` is looked up when called: an old pynvml may not have it."""

    def one(name: str, function: str, scale: float | None = None) -> Read:
        def read() -> Mapping[str, Any]:
            value = getattr(nvml, function)(handle)
            return {name: int(value) if scale is None else float(value) * scale}

        return read

    def ecc_errors(kind: str) -> Read:
        def read() -> Mapping[str, Any]:
            error = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind.upper()}")
            return {
                f"ecc_{kind}": int(nvml.nvmlDeviceGetTotalEccErrors(handle, error, nvml.NVML_VOLATILE_ECC))
            }

        return read

    return {
        "name": lambda: {"name": _text(nvml.nvmlDeviceGetName(handle))},
        "uuid": lambda: {"uuid": _text(nvml.nvmlDeviceGetUUID(handle))},
        "pci_bus_id": lambda: {"pci_bus_id": _text(nvml.nvmlDeviceGetPciInfo(handle).busId)},
        "capability": lambda: {"capability": _pair(nvml.nvmlDeviceGetCudaComputeCapability(handle))},
        "memory": lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle)),
        "mig_mode": lambda: {"mig_mode": _pair(nvml.nvmlDeviceGetMigMode(handle))[0]},
        "mig_handle": lambda: {"mig_handle": bool(nvml.nvmlDeviceIsMigDeviceHandle(handle))},
        "ecc_mode": lambda: dict(
            zip(("ecc_mode", "ecc_pending"), _pair(nvml.nvmlDeviceGetEccMode(handle)), strict=True)
        ),
        "ecc_corrected": ecc_errors("corrected"),
        "ecc_uncorrected": ecc_errors("uncorrected"),
        "remapped_rows": lambda: _rows(nvml.nvmlDeviceGetRemappedRows(handle)),
        "retired_pending": one("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
        "throttle_reasons": lambda: {"throttle_reasons": _throttle(nvml, handle)},
        "power_limit_w": one("power_limit_w", "nvmlDeviceGetPowerManagementLimit", 1e-3),
        "power_default_limit_w": one(
            "power_default_limit_w", "nvmlDeviceGetPowerManagementDefaultLimit", 1e-3
        ),
        "pcie_generation": one("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_generation_max": one("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width": one("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_width_max": one("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
        "pcie_replays": one("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
        "utilization_pct": lambda: {"utilization_pct": float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)},
        "nvlinks": lambda: _links(nvml, handle),
        "fabric": lambda: _fabric(nvml, handle),
        "processes": lambda: _processes(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }


def _text(value: Any) -> str:
    """NVML gives text, in old versions bytes."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise TypeError(f"a text was expected, not {type(value).__name__}")
    return "".join(char for char in text[:200] if char.isprintable())


def _pair(value: Any) -> tuple[int, int]:
    first, second = value
    return int(first), int(second)


def _memory(info: Any) -> Mapping[str, Any]:
    return {
        "memory_bytes": int(info.total),
        "memory_free_bytes": int(info.free),
        "memory_used_bytes": int(info.used),
    }


def _rows(found: Any) -> Mapping[str, Any]:
    corrected, uncorrected, pending, failure = (int(number) for number in found)
    return {
        "remapped_corrected": corrected,
        "remapped_uncorrected": uncorrected,
        "remap_pending": pending,
        "remap_failure": failure,
    }


def _throttle(nvml: Any, handle: Any) -> int:
    read = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if read is None:  # its name in drivers before 535
        read = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return int(read(handle))


def _links(nvml: Any, handle: Any) -> Mapping[str, Any]:
    up: list[int] = []
    down: list[int] = []
    for link in range(_MAX_LINKS):
        try:
            (up if nvml.nvmlDeviceGetNvLinkState(handle, link) else down).append(link)
        except Exception as error:
            # The first link that does not exist ends the list; if that is link 0, there are none.
            if link == 0:
                raise
            if type(error).__name__ not in (*_ABSENT, "NVMLError_InvalidArgument"):
                raise
            break
    return {"nvlinks_up": up, "nvlinks_down": down}


def _fabric(nvml: Any, handle: Any) -> Mapping[str, Any]:
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, info)
    return {"fabric_state": int(info.state), "fabric_status": int(info.status)}


def _processes(found: Any) -> Mapping[str, Any]:
    """Processes other than this one that compute on the GPU, and their memory where NVML shows it."""
    own = os.getpid()
    others = [process for process in list(found)[:_MAX_PROCESSES] if int(process.pid) != own]
    sizes = [int(p.usedGpuMemory) for p in others if p.usedGpuMemory is not None]
    return {
        "other_processes": [int(process.pid) for process in others],
        "other_processes_bytes": sum(size for size in sizes if 0 <= size < _UNREADABLE),
    }

"""A stand-in for the pynvml module: a machine with GPUs, some of whose calls fail, are missing or hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As in pynvml."""


class NVMLError_NotSupported(NVMLError):
    """As in pynvml."""


class NVMLError_InvalidArgument(NVMLError):
    """As in pynvml."""


class NVMLError_GpuIsLost(NVMLError):
    """As in pynvml."""


class NVMLError_LibRmVersionMismatch(NVMLError):
    """As in pynvml."""


class NVMLError_DriverNotLoaded(NVMLError):
    """As in pynvml."""


GIB = 2**30

ANSWERS: Mapping[str, Callable[..., Any]] = {
    "nvmlInit": lambda: None,
    "nvmlShutdown": lambda: None,
    "nvmlSystemGetDriverVersion": lambda: "570.133.20",
    "nvmlSystemGetNVMLVersion": lambda: "12.570.133.20",
    "nvmlSystemGetCudaDriverVersion_v2": lambda: 12080,
    "nvmlDeviceGetCount": lambda: 2,
    "nvmlDeviceGetHandleByIndex": lambda index: index,
    "nvmlDeviceGetName": lambda gpu: b"NVIDIA B200",
    "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}000",
    "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=b"00000000:1B:00.0"),
    "nvmlDeviceGetCudaComputeCapability": lambda gpu: (10, 0),
    "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=180 * GIB, free=179 * GIB, used=GIB // 2),
    "nvmlDeviceGetMigMode": lambda gpu: [0, 0],
    "nvmlDeviceIsMigDeviceHandle": lambda gpu: 0,
    "nvmlDeviceGetEccMode": lambda gpu: [1, 1],
    "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: kind,
    "nvmlDeviceGetRemappedRows": lambda gpu: (1, 0, 0, 0),
    "nvmlDeviceGetRetiredPagesPendingStatus": lambda gpu: 0,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0x4,
    "nvmlDeviceGetPowerManagementLimit": lambda gpu: 1_000_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda gpu: 1_000_000,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: 6,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: 16,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: 16,
    "nvmlDeviceGetPcieReplayCounter": lambda gpu: 0,
    "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=3, memory=1),
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=1, usedGpuMemory=2**64 - 1)],
}


class FakeNvml:
    """answers: function -> what it returns, or an exception that it raises, instead of ANSWERS.

    missing: functions that this pynvml does not have.  hangs: the function that never returns.
    """

    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0
    NVML_VOLATILE_ECC = 0
    links = 18

    def __init__(
        self, answers: Mapping[str, Any] | None = None, *, missing: tuple[str, ...] = (), hangs: str = ""
    ) -> None:
        self.answers = dict(answers or {})
        self.missing = missing
        self.hangs = hangs
        self.released = threading.Event()
        self.threads: set[str] = set()

    def c_nvmlGpuFabricInfo_v2_t(self) -> Any:
        return SimpleNamespace(state=0, status=0)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.missing:
            raise AttributeError(name)
        known = {
            **ANSWERS,
            "nvmlDeviceGetNvLinkState": self._link,
            "nvmlDeviceGetGpuFabricInfoV": self._fabric,
        }
        if name not in known:
            raise AttributeError(name)
        return lambda *arguments: self._call(name, known[name], arguments)

    def _call(self, name: str, answer: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self.threads.add(threading.current_thread().name)
        if name == self.hangs:
            self.released.wait(20)
        given = self.answers.get(name, answer)
        if isinstance(given, Exception):
            raise given
        return given(*arguments) if callable(given) else given

    def _link(self, gpu: int, link: int) -> int:
        if link >= self.links:
            raise NVMLError_InvalidArgument("Invalid Argument")
        return 1

    def _fabric(self, gpu: int, info: Any) -> int:
        info.state, info.status = 3, 0
        return 0

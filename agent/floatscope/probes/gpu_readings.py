"""What is read of a GPU through NVML, value by value: one that is missing takes no other with it.

Names end in their unit. Counters are running totals of the driver; those of errors that are volatile start
anew with the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

GIB = 2**30
GPU_IDLE = 0x1
"""In the bit field of what holds the clocks down; an idle GPU is not held down."""

_ABSENT = ("NVMLError_NotSupported", "NVMLError_FunctionNotFound", "NVMLError_NoPermission")
_MEMORY_TEMP_FIELD = 82  # NVML_FI_DEV_MEMORY_TEMP
_MAX_LINKS = 36

Read = Callable[[], float]


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG slice of one.

    handle: what the process uses.  board: the whole GPU, for what slices do not have; the same without MIG.
    """

    handle: Any
    board: Any


class Readings:
    """Reads one GPU again and again. What it turned out not to offer is not asked for again.

    say: called once for each value whose reading fails otherwise, with its name and the reason.
    """

    def __init__(self, nvml: Any, gpu: Gpu, *, say: Callable[[str, str], None]) -> None:
        self._nvml = nvml
        self._say = say
        self._reads: dict[str, Read] = {}
        self._said: set[str] = set()
        for name, read in _single(nvml, gpu).items():
            self._reads[name] = read
        self._links: list[int] | None = None
        self._gpu = gpu

    def read(self) -> dict[str, float]:
        """One sample. Raises what the driver says if not a single value can be read."""
        found: dict[str, float] = {}
        failure: Exception | None = None
        for name, read in list(self._reads.items()):
            try:
                found[name] = float(read())
            except Exception as error:  # NVML's errors have no common ancestor across its versions
                if _is_absent(error):
                    del self._reads[name]
                else:
                    failure = error
                    self._complain(name, error)
        for group in (self._rows, self._link_errors):
            try:
                found.update(group())
            except Exception as error:
                if not _is_absent(error):
                    self._complain(group.__name__.strip("_"), error)
        if not found and failure is not None:
            raise failure
        return found

    def _complain(self, name: str, error: Exception) -> None:
        if name not in self._said:
            self._said.add(name)
            self._say(name, " ".join(str(error).split())[:120])

    def _rows(self) -> Mapping[str, float]:
        """Memory rows replaced by spares (Ampere and later)."""
        nvml, board = self._nvml, self._gpu.board
        corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(board)
        return {
            "gpu_remapped_rows": float(corrected + uncorrected),
            "gpu_remap_pending": float(pending),
            "gpu_remap_failed": float(failed),
        }

    def _link_errors(self) -> Mapping[str, float]:
        """Errors of all NVLinks in use: replays, recoveries, CRC."""
        nvml, board = self._nvml, self._gpu.board
        if self._links is None:
            self._links = []
            self._links = [link for link in range(_MAX_LINKS) if _is_up(nvml, board, link)]
        if not self._links:
            return {}
        kinds = (
            nvml.NVML_NVLINK_ERROR_DL_REPLAY,
            nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
            nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
            nvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
        )
        try:
            total = sum(
                nvml.nvmlDeviceGetNvLinkErrorCounter(board, link, kind)
                for link in self._links
                for kind in kinds
            )
        except Exception:
            self._links = []  # not asked for again
            raise
        return {"gpu_nvlink_errors": float(total)}


def _single(nvml: Any, gpu: Gpu) -> dict[str, Read]:
    """One value each. ``nvml.x`` is looked up when called: an old pynvml may not have it."""
    handle, board = gpu.handle, gpu.board

    def throttle() -> float:
        read = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        if read is None:  # its name in drivers before 535
            read = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        return int(read(board)) & ~GPU_IDLE

    def memory_temperature() -> float:
        value = nvml.nvmlDeviceGetFieldValues(board, [_MEMORY_TEMP_FIELD])[0]
        if value.nvmlReturn:
            raise AttributeError("the GPU has no such sensor")
        return float(value.value.uiVal)

    def ecc(kind: str) -> Read:
        return lambda: nvml.nvmlDeviceGetTotalEccErrors(
            board, getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC
        )

    return {
        "gpu_util_pct": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "gpu_mem_util_pct": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
        "gpu_mem_gib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / GIB,
        "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(board) / 1000.0,
        "gpu_power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(board) / 1000.0,
        "gpu_temp_c": lambda: nvml.nvmlDeviceGetTemperature(board, nvml.NVML_TEMPERATURE_GPU),
        "gpu_mem_temp_c": memory_temperature,
        "gpu_sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_SM),
        "gpu_mem_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_MEM),
        "gpu_throttle": throttle,
        "gpu_ecc_corrected": ecc("CORRECTED"),
        "gpu_ecc_uncorrected": ecc("UNCORRECTED"),
        "gpu_pcie_replays": lambda: nvml.nvmlDeviceGetPcieReplayCounter(board),
    }


def _is_absent(error: Exception) -> bool:
    """Whether the GPU, the driver or pynvml does not have it, or does not let us."""
    return isinstance(error, AttributeError) or type(error).__name__ in _ABSENT


def _is_up(nvml: Any, board: Any, link: int) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(board, link))
    except Exception:
        return False


def open_gpu(nvml: Any, *, uuid: str | None, index: int) -> Gpu:
    """The GPU of that uuid, or of that index modulo the count. Raises what NVML says.

    uuid: with or without its prefix; that of a MIG slice is tried too.
    """
    handle: Any = None
    if uuid is None:
        count = int(nvml.nvmlDeviceGetCount())
        if count < 1:
            raise RuntimeError("NVML counts 0 devices")
        handle = nvml.nvmlDeviceGetHandleByIndex(index % count)
    else:
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
        except Exception:
            handle = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
    try:
        is_slice = bool(nvml.nvmlDeviceIsMigDeviceHandle(handle))
        board = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_slice else handle
    except Exception:  # drivers that do not know MIG
        board = handle
    return Gpu(handle, board)

"""Readings of the GPU this process trains on, through NVML, on a thread of their own.

NVML calls take milliseconds and can hang with a sick driver; the training loop only picks up the latest
values.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from floatscope.guard import Area, Guard

GIB = 2**30
STALE_AFTER = 4  # readings older than this many intervals are not reported: the thread hangs
_ABSENT = ("NVMLError_NotSupported", "NVMLError_FunctionNotFound", "NVMLError_NoPermission")


@dataclass(frozen=True)
class GpuPlace:
    """Which GPU to read.  uuid: counts before the index, since NVML does not know CUDA_VISIBLE_DEVICES."""

    index: int
    uuid: str | None


def load_pynvml() -> Any:
    """The pynvml module of nvidia-ml-py, or None."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def place_of_process(local_rank: int | None) -> GpuPlace:
    """The GPU that torch uses in this process, or else the local rank's."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return GpuPlace(local_rank or 0, None)
    index = torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    text = None if uuid is None else str(uuid)
    return GpuPlace(index, text if text is None or text.startswith("GPU-") else f"GPU-{text}")


class GpuProbe:
    """Samples one GPU every ``every_s`` seconds.

    nvml: the pynvml module, or a stand-in.  place: called in the thread, when training has begun.
    """

    def __init__(
        self,
        nvml: Any,
        *,
        every_s: float,
        place: Callable[[], GpuPlace],
        guard: Guard,
        area: Area,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._every_s = max(every_s, 0.05)
        self._place = place
        self._guard = guard
        self._area = area
        self._clock = clock
        self._latest: tuple[float, dict[str, float]] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="floatscope-gpu", daemon=True)

    def install(self) -> None:
        """Starts the thread. Where no GPU can be read it says so once and ends."""
        self._thread.start()

    def latest(self) -> dict[str, float]:
        """The newest readings, empty before the first and when they are stale."""
        found = self._latest
        if found is None or self._clock() - found[0] > STALE_AFTER * self._every_s:
            return {}
        return found[1]

    def remove(self) -> None:
        """Stops the thread; it is not waited for if NVML hangs."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(0.2)

    def _run(self) -> None:
        pid = os.getpid()
        handle: Any = None
        try:
            handle = self._open()
        except Exception as error:  # NVML's errors have no common ancestor across its versions
            reason = " ".join(str(error).split())[:120]
            self._guard.say_once("gpu", f"no NVIDIA GPU here ({reason}); gpu_* readings are left out.")
            return
        while not self._stop.is_set() and os.getpid() == pid and not self._area.tripped:
            with self._area:
                self._latest = (self._clock(), read_gpu(self._nvml, handle))
            self._stop.wait(self._every_s)

    def _open(self) -> Any:
        if self._nvml is None:
            raise RuntimeError("the package nvidia-ml-py is not installed")
        self._nvml.nvmlInit()
        place = self._place()
        if place.uuid is not None:
            return self._nvml.nvmlDeviceGetHandleByUUID(place.uuid)
        count = int(self._nvml.nvmlDeviceGetCount())
        if count < 1:
            raise RuntimeError("NVML counts 0 devices")
        return self._nvml.nvmlDeviceGetHandleByIndex(place.index % count)


def read_gpu(nvml: Any, handle: Any) -> dict[str, float]:
    """One sample. A value that this GPU or driver does not offer is left out.

    gpu_throttle: bit field of what holds the clocks down (``nvmlClocksEventReason...``).
    """
    throttle = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if throttle is None:  # its name in drivers before 535
        throttle = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    readings: dict[str, Callable[[], float]] = {
        "gpu_util_pct": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "gpu_mem_gib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / GIB,
        "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
        "gpu_temp_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "gpu_sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "gpu_throttle": lambda: throttle(handle),
    }
    found: dict[str, float] = {}
    for name, read in readings.items():
        try:
            found[name] = float(read())
        except nvml.NVMLError as error:
            if type(error).__name__ not in _ABSENT:
                raise
    return found

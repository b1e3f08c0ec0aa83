"""Readings of the GPU this process trains on, through NVML, on a thread of their own.

NVML calls take milliseconds and can hang with a sick driver; the training loop only picks up the latest
values.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from floatscope.guard import Area, Guard
from floatscope.probes.gpu_errors import XidWatch
from floatscope.probes.gpu_readings import Readings, open_gpu

STALE_AFTER = 4  # readings older than this many intervals are not reported: the thread hangs


@dataclass(frozen=True)
class GpuPlace:
    """Which GPU to read.  uuid: counts before the index, since NVML does not know CUDA_VISIBLE_DEVICES.

    It may come with or without the prefix GPU- or MIG-.
    """

    index: int
    uuid: str | None


def load_pynvml() -> Any:
    """The pynvml module of nvidia-ml-py, or None."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def device_of_thread() -> int | None:
    """Index of the GPU that torch uses in the calling thread, None where it uses none yet.

    Each thread has its own; in a new one it is 0, whatever the training has chosen.
    """
    return int(sys.modules["torch"].cuda.current_device()) if uses_cuda() else None


def place_of_process(local_rank: int | None, device: int | None = None) -> GpuPlace:
    """The GPU that this process trains on.

    device: index of torch's GPU in the training thread, by default the local rank's.
    """
    if not uses_cuda():
        return GpuPlace(local_rank or 0, None)
    torch = sys.modules["torch"]
    index = device if device is not None else (local_rank or 0) % torch.cuda.device_count()
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return GpuPlace(index, None if uuid is None else str(uuid))


def is_on_gpu(model: Any) -> bool:
    """Whether the model, or the first of several, has its parameters on a GPU. Asks nothing of CUDA."""
    parts = model if isinstance(model, list | tuple) else [model]
    parameters = getattr(parts[0], "parameters", None) if parts else None
    first = next(iter(parameters()), None) if callable(parameters) else None
    return getattr(getattr(first, "device", None), "type", "") == "cuda"


def uses_cuda() -> bool:
    """Whether this process has used a GPU through torch. Asking does not start the driver, which would keep
    children that are forked later from using one."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


class GpuProbe:
    """Samples one GPU every ``every_s`` seconds.

    nvml: the pynvml module, or a stand-in.  place: called in the thread, when training has begun.
    is_expected: whether somebody has to hear of it if there is none.
    """

    def __init__(
        self,
        nvml: Any,
        *,
        every_s: float,
        place: Callable[[], GpuPlace],
        guard: Guard,
        area: Area,
        is_expected: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._is_expected = is_expected
        self._every_s = max(every_s, 0.05)
        self._place = place
        self._guard = guard
        self._area = area
        self._clock = clock
        self._latest: tuple[float, dict[str, float]] | None = None
        self._xids: XidWatch | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="floatscope-gpu", daemon=True)

    def install(self) -> None:
        """Starts the thread. Where no GPU can be read it says so once and ends."""
        self._thread.start()

    def latest(self) -> dict[str, float]:
        """The newest readings, none before the first and when they are stale; and XID events."""
        found = self._latest
        xids = {} if self._xids is None else self._xids.take()
        if found is None or self._clock() - found[0] > STALE_AFTER * self._every_s:
            return xids
        return {**found[1], **xids}

    def remove(self) -> None:
        """Stops the thread; it is not waited for if NVML hangs."""
        self._stop.set()
        if self._xids is not None:
            self._xids.remove()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(0.2)

    def _run(self) -> None:
        pid = os.getpid()
        try:
            readings = self._open()
        except Exception as error:  # NVML's errors have no common ancestor across its versions
            reason = " ".join(str(error).split())[:120]
            level = logging.WARNING if self._is_expected() else logging.DEBUG
            text = f"no NVIDIA GPU can be read ({reason}); gpu_* readings are left out."
            self._guard.say_once("gpu", text, level=level)
            return
        while not self._stop.is_set() and os.getpid() == pid and not self._area.tripped:
            with self._area:
                self._latest = (self._clock(), readings.read())
            self._stop.wait(self._every_s)

    def _open(self) -> Readings:
        if self._nvml is None:
            raise RuntimeError("the package nvidia-ml-py is not installed")
        self._nvml.nvmlInit()
        place = self._place()
        gpu = open_gpu(self._nvml, uuid=place.uuid, index=place.index)
        area = self._guard.area("gpu events", loses="gpu_xid")
        self._xids = XidWatch(self._nvml, gpu.board, area=area, say=self._say_xid)
        self._xids.start()
        return Readings(self._nvml, gpu, say=self._say_failed)

    def _say_failed(self, name: str, reason: str) -> None:
        self._guard.say_once(f"gpu {name}", f"{name} cannot be read from the GPU ({reason}); it is left out.")

    def _say_xid(self, xid: int, meaning: str) -> None:
        self._guard.say(f"the GPU driver reports XID {xid}: {meaning}.")

"""XID events: what the driver itself reports of a GPU, on a thread of their own.

NVML lets a thread wait for them. It waits in short turns, so that it ends soon; where the driver hangs it is
left behind.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from floatscope.guard import Area

WAIT_MS = 500
_PAUSE_S = 1.0  # after an error, so that a driver that answers at once is not asked in a loop

XIDS = {
    13: "an exception in a kernel of this or another process",
    31: "a memory page fault, mostly an access out of bounds",
    43: "a kernel of this process stopped the GPU",
    45: "work was cleaned up after an earlier error",
    48: "an uncorrectable memory error (double bit ECC)",
    61: "the GPU's microcontroller halted",
    62: "the GPU's microcontroller halted",
    63: "a memory row is being replaced",
    64: "a memory row could not be replaced",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "a contained uncorrectable memory error",
    95: "an uncontained uncorrectable memory error: the GPU needs a reset",
    119: "the GPU's system processor does not answer",
    120: "an error of the GPU's system processor",
    140: "an unrecovered ECC error",
}
"""In plain words, after NVIDIA's list of XID errors."""


class XidWatch:
    """Waits for the XID events of one GPU.

    board: NVML handle of the whole GPU.  say: called once for each kind of event, with its number and what it
    means.
    """

    def __init__(self, nvml: Any, board: Any, *, area: Area, say: Callable[[int, str], None]) -> None:
        self._nvml = nvml
        self._board = board
        self._area = area
        self._say = say
        self._count: int | None = None
        self._newest: int | None = None
        self._told: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="floatscope-xid", daemon=True)

    def start(self) -> None:
        """Starts the thread. Where events are not offered it ends quietly."""
        self._thread.start()

    def take(self) -> dict[str, float]:
        """``gpu_xid_count``, a running total, and ``gpu_xid``, the newest since the last call if any.

        Empty where events are not offered.
        """
        if self._count is None:
            return {}
        newest, self._newest = self._newest, None
        found = {"gpu_xid_count": float(self._count)}
        if newest is not None:
            found["gpu_xid"] = float(newest)
        return found

    def remove(self) -> None:
        """Stops the thread; it is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        nvml, pid = self._nvml, os.getpid()
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._board, nvml.nvmlEventTypeXidCriticalError, events)
        except Exception:  # no permission, MIG, an old driver or pynvml: there are no events
            return
        self._count = 0
        wait = getattr(nvml, "nvmlEventSetWait_v2", None) or nvml.nvmlEventSetWait
        while not self._stop.is_set() and os.getpid() == pid and not self._area.tripped:
            with self._area:
                try:
                    event = wait(events, WAIT_MS)
                except Exception as error:
                    if type(error).__name__ == "NVMLError_Timeout":
                        continue
                    self._stop.wait(_PAUSE_S)
                    raise
                if int(event.eventType) & int(nvml.nvmlEventTypeXidCriticalError):
                    self._note(int(event.eventData))
        with self._area:
            nvml.nvmlEventSetFree(events)

    def _note(self, xid: int) -> None:
        self._count = (self._count or 0) + 1
        self._newest = xid
        if xid not in self._told:
            self._told.add(xid)
            self._say(xid, XIDS.get(xid, "see NVIDIA's list of XID errors"))

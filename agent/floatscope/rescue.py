"""SIGTERM for a process whose main thread does not come back from native code.

Python runs signal handlers in the main thread, between bytecodes. A main thread that hangs in a collective
never gets there, so a process with a handler would outlive a SIGTERM that would have ended it without one.
Python's wakeup descriptor is written to by the C part of the handler at once; a thread that reads it sees the
signal, and if the main thread has not moved for a while, ends the process itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable

STUCK_S = 3.0  # a main thread that runs Python comes to its handler within milliseconds


class Rescue:
    """Calls ``tell`` and ends the process when SIGTERM came and the main thread stands still.

    is_ours: whether SIGTERM still has our handler. Another one, which may write a checkpoint first, is waited
    for however long the main thread needs.  is_handled: whether the handler in the main thread has begun.
    tell: says how the process ends; bounded.
    Does nothing where somebody else uses the wakeup descriptor.
    """

    def __init__(
        self, *, is_ours: Callable[[], bool], is_handled: Callable[[], bool], tell: Callable[[], None]
    ) -> None:
        self._is_ours = is_ours
        self._is_handled = is_handled
        self._tell = tell
        self._main = threading.main_thread().ident or 0
        self._write = -1
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Takes the wakeup descriptor, if it is free; only in the main thread."""
        if not hasattr(os, "register_at_fork"):
            return  # a system without fork, and without this kind of signal
        read, write = os.pipe()
        os.set_blocking(write, False)
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(read)
            os.close(write)
            return
        self._write = write
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _leave(me()))  # a child's signals are not its parent's
        self._thread = threading.Thread(
            target=self._listen, args=(read,), name="floatscope-sigterm", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Gives the descriptor back, where it is still ours."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        is_ours_no_more = threading.current_thread() is threading.main_thread()
        if is_ours_no_more:
            self.leave()
        with contextlib.suppress(OSError):
            os.write(self._write, b"\0")  # ends the thread
        thread.join(0.5)
        if (
            is_ours_no_more
        ):  # else Python still writes to it, and its number must not be given to another file
            os.close(self._write)
            self._write = -1

    def leave(self) -> None:
        """Takes our descriptor out of Python's hands."""
        if self._write == -1:
            return
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, self._write):
            signal.set_wakeup_fd(before)

    def _listen(self, read: int) -> None:
        while True:
            came = os.read(read, 512)
            if not came or 0 in came:
                break
            if signal.SIGTERM in came and self._is_stuck():
                self._tell()
                _end_by(signal.SIGTERM)
        os.close(read)

    def _is_stuck(self) -> bool:
        """Whether the main thread neither begins its handler nor moves."""
        place = _place(self._main)
        deadline = time.monotonic() + STUCK_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
            if self._is_handled() or not self._is_ours() or _place(self._main) != place:
                return False
        return self._is_ours()


def _place(thread: int) -> tuple[int, int]:
    """Where a thread stands: its frame and the instruction in it."""
    frame = sys._current_frames().get(thread)
    return (id(frame), frame.f_lasti if frame is not None else -1)


def _leave(rescue: Rescue | None) -> None:
    if rescue is not None:
        rescue.leave()


def _end_by(number: int) -> None:
    """Restores the default of a signal and raises it; Python's own way works in the main thread only."""
    restore = ctypes.pythonapi.PyOS_setsig
    restore.argtypes, restore.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    restore(number, None)
    os.kill(os.getpid(), number)

"""Python's fault handler into a file: the stacks of a process that dies of a signal.

SIGABRT is how a CUDA error ends a process whose exception nobody caught: std::terminate, then abort. The
stacks are written by C code that needs no interpreter. SIGTERM is left to ``crash.py``: the fault handler of
Python could not be put back beside its own.
"""

from __future__ import annotations

import faulthandler
import io
import os
import threading
import weakref
from pathlib import Path


class FaultFile:
    """Switches the fault handler on for one file, unless the user has done so already."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None
        self._descriptor = -1
        self._removal = threading.Lock()  # taken by the one thread that removes it, and never given back
        self._pid = os.getpid()

    def install(self) -> None:
        """Opens the file and hands it to the fault handler. Raises OSError."""
        if faulthandler.is_enabled():
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(self.path, flags, 0o600)
        self._file = io.FileIO(self._descriptor, "wb", closefd=False)
        faulthandler.enable(self._file)
        me = weakref.ref(self)

        def in_child() -> None:
            found = me()
            if found is not None:
                found._leave_child()

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=in_child)

    def remove(self) -> None:
        """Switches the handler off if it is still ours, and takes the file away if nothing is in it."""
        if self._file is None or os.getpid() != self._pid or not self._removal.acquire(blocking=False):
            return
        self._let_go()
        is_empty = os.fstat(self._descriptor).st_size == 0
        os.close(self._descriptor)
        if is_empty:
            self.path.unlink(missing_ok=True)

    def _leave_child(self) -> None:
        """A forked child, a data loader's worker perhaps, is as it would be without us."""
        if self._file is not None:
            self._let_go()

    def _let_go(self) -> None:
        """Switches the handler off, unless somebody has chosen another file since and it is theirs.

        The handler holds a reference to its file: if it lives on without ours, the handler is still ours.
        """
        watched = weakref.ref(self._file)
        self._file = None
        if watched() is not None:
            faulthandler.disable()

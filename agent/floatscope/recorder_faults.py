"""Python's fault handler into a file: the stacks of a process that dies of a signal.

SIGABRT is how a CUDA error ends a process whose exception nobody caught: std::terminate, then abort. The
stacks are written by C code that needs no interpreter. SIGTERM is left to ``crash.py``: the fault handler of
Python could not be put back beside its own.
"""

from __future__ import annotations

import faulthandler
import io
import os
import sys
import weakref
from pathlib import Path


class FaultFile:
    """Switches the fault handler on for one file, unless the user has done so already."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None
        self._pid = os.getpid()

    def install(self) -> None:
        """Opens the file and hands it to the fault handler. Raises OSError."""
        if faulthandler.is_enabled():
            return
        self._file = open(self.path, "wb", buffering=0)  # noqa: SIM115 - lives as long as the handler
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
        if self._file is None or os.getpid() != self._pid:
            return
        file, self._file = self._file, None
        # The handler holds a reference to its file. Without it somebody has chosen another file since, and
        # the handler is theirs: two references are the variable's and the argument's.
        if sys.getrefcount(file) > 2:
            faulthandler.disable()
        is_empty = os.fstat(file.fileno()).st_size == 0
        file.close()
        if is_empty:
            self.path.unlink(missing_ok=True)

    def _leave_child(self) -> None:
        """A forked child, a data loader's worker perhaps, is as it would be without us."""
        file, self._file = self._file, None
        if file is None:
            return
        if sys.getrefcount(file) > 2:
            faulthandler.disable()

"""Notices how the process ends: an uncaught exception, or an exit without ``finish``.

Hooks are chained: what was installed before is called first and put back afterwards.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

_REASON_CHARS = 1000

Ending = Callable[[str, str | None], None]
"""Takes status and reason: ("crashed", "IndexError: index out of range") or ("finished", None)."""


class CrashWatch:
    """Calls ``on_end`` once when the process ends by itself.

    A thread's uncaught exception counts only if that thread is the one that trains.
    """

    def __init__(self, on_end: Ending, *, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._on_end = on_end
        self._on_error = on_error  # before on_end, with the exception itself
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._is_on = True
        self._previous = sys.excepthook
        self._previous_thread = threading.excepthook
        self._hook = self._excepthook  # one bound object, so that it can be recognised when it is removed
        self._thread_hook = self._threadhook

    def install(self) -> None:
        """Chains the hooks."""
        sys.excepthook = self._hook
        threading.excepthook = self._thread_hook
        atexit.register(self._at_exit)

    def trains_here(self) -> None:
        """Says that the calling thread is the training thread."""
        self._thread = threading.get_ident()

    def remove(self) -> None:
        """Puts back what was there; below a hook chained on top of ours it becomes a pass-through."""
        self._is_on = False
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous
        if threading.excepthook is self._thread_hook:
            threading.excepthook = self._previous_thread
        atexit.unregister(self._at_exit)

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        try:
            self._previous(kind, error, traceback)
        finally:
            self._end(error)

    def _threadhook(self, args: Any) -> None:
        try:
            self._previous_thread(args)
        finally:
            if args.thread is not None and args.thread.ident == self._thread and args.exc_value is not None:
                self._end(args.exc_value)

    def _end(self, error: BaseException) -> None:
        if self._is_on and os.getpid() == self._pid:
            self._is_on = False
            if self._on_error is not None:
                self._on_error(error)
            self._on_end(status_of(error), reason_of(error))

    def _at_exit(self) -> None:
        if self._is_on and os.getpid() == self._pid:
            self._is_on = False
            self._on_end("finished", None)


def status_of(error: BaseException) -> str:
    """A person who presses Ctrl-C has not crashed the run."""
    return "failed" if isinstance(error, KeyboardInterrupt) else "crashed"


def reason_of(error: BaseException) -> str:
    """Type and message on one line: ``IndexError: index out of range in self``."""
    try:
        text = " ".join(str(error).split())
    except Exception as unprintable:  # a __str__ that fails itself
        text = f"(its message cannot be shown: {type(unprintable).__name__})"
    printable = "".join(c if c.isprintable() else "?" for c in text[:_REASON_CHARS])
    return f"{type(error).__name__}: {printable}" if printable else type(error).__name__

"""Notices how the process ends: an uncaught exception, SIGTERM, or an exit without ``finish``.

Hooks are chained: what was installed before is called first and put back afterwards. SIGTERM is only looked
at where nobody else does; the process then ends by it all the same.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from floatscope.rescue import Rescue

_REASON_CHARS = 1000
SIGNAL_S = 2.0  # longest delay of the end by SIGTERM; launchers wait 30 s before they kill

Ending = Callable[[str, str | None], None]
"""Takes status and reason: ("crashed", "IndexError: index out of range") or ("finished", None)."""


class CrashWatch:
    """Calls ``on_end`` once when the process ends by itself.

    A thread's uncaught exception counts only if that thread is the one that trains.
    on_error: called before, with the exception itself.  on_signal: called instead on SIGTERM, in a thread of
    its own, since the training thread may stand anywhere, with any lock in its hands.
    """

    def __init__(
        self,
        on_end: Ending,
        *,
        on_error: Callable[[BaseException], None] | None = None,
        on_signal: Ending | None = None,
    ) -> None:
        self._on_end = on_end
        self._on_signal = on_signal
        self._previous_signal: Any = None
        self._is_signalled = False
        self._rescue: Rescue | None = None
        self._signal_hook = self._signalled
        self._on_error = on_error
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
        if self._on_signal is not None and threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGTERM)
            if previous is signal.SIG_DFL or _watch_of(previous) is not None:
                self._previous_signal = previous
                signal.signal(signal.SIGTERM, self._signal_hook)
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=_leave_child)
                self._rescue = Rescue(
                    is_ours=lambda: _watch_of(signal.getsignal(signal.SIGTERM)) is not None,
                    is_handled=lambda: self._is_signalled,
                    tell=_tell_all,
                )
                self._rescue.start()

    def trains_here(self) -> None:
        """Says that the calling thread is the training thread."""
        self._thread = threading.get_ident()

    def remove(self) -> None:
        """Puts back what was there; below a hook chained on top of ours it becomes a pass-through."""
        self._is_on = False
        if sys.excepthook is self._hook:
            sys.excepthook = _living(self._previous, "_previous")
        if threading.excepthook is self._thread_hook:
            threading.excepthook = _living(self._previous_thread, "_previous_thread")
        atexit.unregister(self._at_exit)
        if self._rescue is not None:
            self._rescue.stop()
        if (
            self._previous_signal is not None
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == self._signal_hook
        ):
            signal.signal(signal.SIGTERM, _living(self._previous_signal, "_previous_signal"))
        if self._rescue is not None and threading.current_thread() is threading.main_thread():
            for watch in _watches():  # there is one wakeup descriptor in a process: another may have it now
                if watch._is_on and watch._rescue is not None:
                    watch._rescue.start()
                    break

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

    def _signalled(self, number: int, frame: object) -> None:
        """The handler of SIGTERM: says so, within bounds, and lets the signal do what it would have done."""
        self._is_signalled = True
        self._tell_signal()
        if callable(self._previous_signal):
            self._previous_signal(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _tell_signal(self) -> None:
        if self._is_on and os.getpid() == self._pid and self._on_signal is not None:
            self._is_on = False
            _bounded(self._on_signal, "failed", "SIGTERM", timeout_s=SIGNAL_S)

    def _at_exit(self) -> None:
        if self._is_on and os.getpid() == self._pid:
            self._is_on = False
            self._on_end("finished", None)


def _living(hook: Any, previous: str) -> Any:
    """The hook, or what was there before it where it is one of ours that has ended below another."""
    while (watch := _watch_of(hook)) is not None and not watch._is_on:
        hook = getattr(watch, previous)
    return hook


def _watch_of(handler: object) -> CrashWatch | None:
    """Whose hook it is, None if it is none of ours."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, CrashWatch) else None


def _watches() -> Iterator[CrashWatch]:
    """Those that SIGTERM goes through, from the newest on."""
    handler: Any = signal.getsignal(signal.SIGTERM)
    while (watch := _watch_of(handler)) is not None:
        yield watch
        handler = watch._previous_signal


def _tell_all() -> None:
    for watch in _watches():
        watch._tell_signal()


def _leave_child() -> None:
    """A forked child dies of SIGTERM as it would without us, also in native code."""
    handler: Any = signal.getsignal(signal.SIGTERM)
    if _watch_of(handler) is None:
        return
    while (watch := _watch_of(handler)) is not None:
        handler = watch._previous_signal
    signal.signal(signal.SIGTERM, handler)


def _bounded(tell: Ending, status: str, reason: str, *, timeout_s: float) -> None:
    """Calls ``tell`` in a new thread and waits for it a bounded time, with nothing that takes a lock."""
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            tell(status, reason)
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the process can have no more threads
        return
    done.acquire(timeout=timeout_s)


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

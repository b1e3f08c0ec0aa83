"""A thread that works beside requests, from the start of the server to its end."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class BackgroundThread(ABC):
    """``_run`` is the thread: it ends soon after ``_stopping`` is set, and waits on ``_woken`` while it has
    nothing to do.
    """

    def __init__(self, *, name: str) -> None:
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"floatscope-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout: float = 15.0) -> None:
        """Tells the thread to end and waits for what it is at, at most so many seconds."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def alive(self) -> bool:
        return self._thread.is_alive()

    @abstractmethod
    def _run(self) -> None:
        """What the thread does; no exception may end it."""

"""The agent's one thread: takes finished rows from the training loop and hands them to the outlets.

``put`` is what the training loop calls. It takes no lock and waits for nothing: a deque's append is atomic,
and the thread looks by itself several times a second.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from floatscope.guard import Area, Guard
from floatscope.rows import Row

POLL_S = 0.2  # five glances a second cost nothing and are fast enough for a dashboard
INBOX_ROWS = 16_384  # only fills while the thread is stuck, in a disk that hangs perhaps
INBOX_BYTES = 256 * 2**20  # of them; a step with all statistics has a megabyte and more


class Outlet(Protocol):
    """Where rows go: a server, a file."""

    is_done: bool

    def accept(self, rows: Sequence[Row]) -> None:
        """Takes rows over. Must not wait."""

    def work(self) -> float | None:
        """Does one piece of work. Returns seconds until the next, None if there is none."""

    def finish(self, status: str, reason: str | None) -> None:
        """Says that no more rows come; ``is_done`` turns true when everything is delivered."""

    def abort(self) -> None:
        """Ends work under way; callable from another thread."""


class Sender:
    """A bounded queue and a daemon thread. A forked child has the queue but no thread, and stays silent.

    wake: set by an outlet's own thread when there is something to do.
    """

    def __init__(
        self, outlets: Sequence[Outlet], *, name: str, guard: Guard, wake: threading.Event | None = None
    ) -> None:
        self.dropped = 0
        self._outlets = outlets
        self._inbox: deque[Row] = deque()
        self._wake = wake or threading.Event()
        self._shown_dropped = 0
        self._put_bytes = 0  # counted by the training thread
        self._taken_bytes = 0  # counted by this one
        self._ending: tuple[str, str | None] | None = None
        self._pid = os.getpid()
        self._guard = guard
        self._late = guard.area("reading statistics", loses="tensor statistics of some steps")
        self._areas = [
            guard.area(f"sending ({type(outlet).__name__})", loses="what this outlet would have got")
            for outlet in outlets
        ]
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError if the process can have no more threads."""
        self._thread.start()

    def put(self, row: Row) -> None:
        """Hands over a row; drops and counts it if the thread has been stuck for long."""
        is_full = self._put_bytes - self._taken_bytes > INBOX_BYTES or len(self._inbox) >= INBOX_ROWS
        if is_full:
            self.dropped += 1
            self._guard.say_once(
                "inbox", "the steps come faster than they can be taken; some are dropped and counted."
            )
            return
        if self.dropped != self._shown_dropped:
            self._shown_dropped = self.dropped
            row.scalars["agent_dropped_steps"] = float(self.dropped)
        self._put_bytes += row.nbytes
        self._inbox.append(row)

    def close(self, status: str, reason: str | None, *, timeout_s: float) -> bool:
        """Delivers what is left. Waits at most ``timeout_s``; returns whether everything got out in time."""
        if os.getpid() != self._pid or not self._thread.is_alive():
            return False
        self._ending = (status, reason)
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            for outlet in self._outlets:
                outlet.abort()
            self._wake.set()
            self._thread.join(1.0)  # an aborted request ends at once; this lets the log be closed properly
            return False
        return True

    def _run(self) -> None:
        is_told = False
        while True:
            self._wake.clear()  # before looking: what comes after that sets it again
            is_ending = (
                self._ending is not None
            )  # looked at before the inbox: what came before it is in there
            rows = self._take()
            wait = POLL_S
            for outlet, area in self._live():
                with area:
                    if rows:
                        outlet.accept(rows)
                    if is_ending and not is_told and self._ending is not None:
                        outlet.finish(*self._ending)
                    pause = outlet.work()
                    wait = min(wait, POLL_S if pause is None else pause)
            is_told = is_ending
            if is_told and all(outlet.is_done for outlet, _ in self._live()):
                return
            if wait > 0:
                self._wake.wait(wait)

    def _live(self) -> list[tuple[Outlet, Area]]:
        return [pair for pair in zip(self._outlets, self._areas, strict=True) if not pair[1].tripped]

    def _take(self) -> list[Row]:
        """Empties the inbox and does the work that its rows have brought along."""
        rows: list[Row] = []
        with contextlib.suppress(IndexError):
            while True:
                rows.append(self._inbox.popleft())
        self._taken_bytes += sum(row.nbytes for row in rows)
        for row in rows:
            late, row.late, row.late_bytes = row.late, [], 0
            for finish in late:
                with self._late:
                    finish(row)
        return rows

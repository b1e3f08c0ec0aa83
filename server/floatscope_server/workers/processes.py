"""Several worker processes behind one listening socket: started, watched, started again, stopped together."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import connection as waiting
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 30.0  # one that ran for so long had a good start
KILL_AFTER_S = 25.0  # more than a worker takes to finish what it is at
CANNOT_START = 2  # exit code of a worker that will not do better the next time

_log = logging.getLogger(__name__)

Work = Callable[[Mapping[str, Any], socket.socket, int], int]
"""What a process does: with the settings' values, the listening socket and its number; returns its exit
code."""


@dataclass
class _Slot:
    number: int
    process: SpawnProcess | None = None
    started: float = 0.0
    start_at: float = 0.0
    pause_s: float = FIRST_PAUSE_S


class Supervisor:
    """Keeps ``count`` processes at work until it is told to stop (SIGTERM or SIGINT)."""

    def __init__(
        self, work: Work, settings: Mapping[str, Any], listener: socket.socket, *, count: int
    ) -> None:
        self._work = work
        self._settings = settings
        self._listener = listener
        self._context = multiprocessing.get_context("spawn")  # nothing of this process's threads and locks
        self._slots = [_Slot(number) for number in range(count)]
        self._stopping = False
        self._ear, self._bell = os.pipe()

    def run(self) -> int:
        """Returns 0 after it was told to stop, else the exit code of a worker that cannot start."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told)
        code = 0
        while not self._stopping:
            for slot in self._slots:
                self._start_if_due(slot)
            self._wait()
            for slot in self._slots:
                if self._ended(slot) == CANNOT_START:
                    code, self._stopping = CANNOT_START, True
        self._stop_all()
        return code

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        os.write(self._bell, b".")

    def _start_if_due(self, slot: _Slot) -> None:
        if slot.process is not None or time.monotonic() < slot.start_at or self._stopping:
            return
        process = self._context.Process(
            target=_in_process, args=(self._work, dict(self._settings), self._listener, slot.number)
        )
        slot.started = time.monotonic()
        try:
            process.start()
        except OSError as error:  # no memory, no more processes: perhaps later
            self._again(slot, f"could not be started ({error})")
        else:
            slot.process = process

    def _wait(self) -> None:
        sentinels = [slot.process.sentinel for slot in self._slots if slot.process is not None]
        due = [slot.start_at for slot in self._slots if slot.process is None]
        timeout = max(min(due) - time.monotonic(), 0.0) if due else None
        if self._ear in waiting.wait([*sentinels, self._ear], timeout):
            os.read(self._ear, 64)

    def _ended(self, slot: _Slot) -> int | None:
        process = slot.process
        if process is None or process.is_alive():
            return None
        code = process.exitcode
        process.close()
        slot.process = None
        if code == 0:  # somebody told it to stop, and not us
            slot.pause_s = 0.0
        self._again(slot, f"ended with {code}")
        return code

    def _again(self, slot: _Slot, what: str) -> None:
        """Says when the worker is started again: later and later, unless it had worked for a while."""
        now = time.monotonic()
        if now - slot.started >= STEADY_S:
            slot.pause_s = min(slot.pause_s, FIRST_PAUSE_S)
        slot.start_at = now + slot.pause_s
        if not self._stopping:
            _log.warning("worker %d %s; starting it again in %g s", slot.number, what, slot.pause_s)
        slot.pause_s = min(max(slot.pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)

    def _stop_all(self) -> None:
        left = [slot.process for slot in self._slots if slot.process is not None]
        for process in left:
            process.terminate()
        end = time.monotonic() + KILL_AFTER_S
        for process in left:
            process.join(max(end - time.monotonic(), 0.0))
            if process.is_alive():
                _log.error("worker process %d does not stop; it is killed", process.pid)
                process.kill()
                process.join()


def _in_process(work: Work, settings: Mapping[str, Any], listener: socket.socket, number: int) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_stop_with, args=(parent,), name="floatscope-parent", daemon=True).start()
    raise SystemExit(work(settings, listener, number))


def _stop_with(parent: Any) -> None:
    """A supervisor that was killed cannot tell its workers: they notice, and stop as if told."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)

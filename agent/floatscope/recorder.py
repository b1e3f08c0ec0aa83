"""The flight recorder: the last steps in a file that outlives the process however it dies.

The training thread says which step is under way, a few stores into mapped memory. The sender's thread adds
the steps' values as they arrive from the device, some steps late.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from floatscope.config import MonitorConfig
from floatscope.crash import reason_of
from floatscope.guard import Guard
from floatscope.protocol.ring import ENDING, RUN
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps
from floatscope.recorder_disk import is_remote
from floatscope.recorder_faults import FaultFile
from floatscope.recorder_file import RecorderFile, rotate
from floatscope.recorder_notes import (
    BETWEEN,
    IN_STEP,
    STARTING,
    Ending,
    data_id_text,
    description,
    fault_path,
    fitting,
    pack_now,
    pack_scalars,
    shortened,
)
from floatscope.recorder_rows import pack
from floatscope.rows import Row

DESCRIBE_EVERY_S = 1.0  # at most; a run's description grows while its first step runs
_OFF = "Training goes on; you lose the flight recorder."


def recorder_path(config: MonitorConfig, run_id: str) -> Path:
    """Where the recorder of this rank stands."""
    return config.spool_dir / run_id / f"rank{config.rank}.recorder"


class FlightRecorder:
    """Writes ``path``. An outlet of the sender; ``began``, ``ended`` and ``failed`` are for the training
    thread: they take no lock, and where the file is not there yet, or on a remote disk that could hold them
    up, they leave the newest state to the sender's thread.

    A disk that is full or read-only costs the recorder, never the training.
    """

    def __init__(
        self, path: Path, *, run_id: str, config: MonitorConfig, info: Callable[[], RunInfo], guard: Guard
    ) -> None:
        self.path = path
        self.is_done = False
        self._run_id = run_id
        self._config = config
        self._info = info
        self._guard = guard
        self._file: RecorderFile | None = None
        self._faults = FaultFile(fault_path(path))
        self._rows: list[Row] = []
        self._number = 0
        self._is_off = False
        self._told: RunInfo | None = None
        self._told_at = 0.0
        self._step = self._ended = -1
        self._data_id = self._scalars = b""
        self._ended_at = 0.0
        self._unsaved: bytes | None = None  # the newest state, where the training thread cannot write it
        self._saved: bytes | None = None
        self._ending = Ending()
        self._is_ending_written = True
        self._is_last = False

    def began(self, step: int, data_id: int | str | None) -> None:
        """A step has begun, with this batch."""
        if data_id is not None:
            self._data_id = data_id_text(data_id)
        self._step = step
        self._now(IN_STEP)

    def ended(self, step: int, scalars: Mapping[str, float], *, at: float) -> None:
        """A step has ended. scalars: what is known of it on the host.  at: the time in its row."""
        self._step = self._ended = step
        self._ended_at = at
        self._scalars = pack_scalars(scalars)
        self._now(BETWEEN)

    def failed(self, error: BaseException) -> None:
        """An exception ends the run. Also before anything else of its end is known."""
        self._note(ending_of(error, time=time.time()))

    def signalled(self, name: str) -> None:
        """A signal such as ``SIGTERM`` ends the run; keeps where the main thread stood."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        self._note(replace(self._ending, signal=name, traceback=shortened(stack), time=time.time()))

    def accept(self, rows: Sequence[Row]) -> None:
        """Takes rows over; ``work`` writes them."""
        if not self._is_off:
            self._rows.extend(rows)

    def finish(self, status: str, reason: str | None) -> None:
        """Says how the run ended; ``work`` writes it and closes the file."""
        self._ending = replace(self._ending, status=status, reason=reason, time=time.time())
        self._is_ending_written = False
        self._is_last = True

    def work(self) -> float | None:
        """Writes what is there. Returns None: it never has to be called again without new rows."""
        if not self._is_off:
            try:
                self._work()
            except OSError as error:
                self._is_off = True
                self._rows.clear()
                why = error.strerror or error
                self._guard.say_once("recorder", f"cannot write {self.path} ({why}). {_OFF}")
        if self._is_last:
            if self._file is not None and not self._is_ending_written:
                with contextlib.suppress(OSError):  # its room is there, whatever else could not be written
                    self._write_ending(self._file)
            self._close()
            self.is_done = True
        return None

    def abort(self) -> None:
        """Nothing to end: a disk is never waited for longer than it takes."""

    def remove(self) -> None:
        """Puts the fault handler back. The file is closed only by the thread that writes it."""
        with contextlib.suppress(OSError):
            self._faults.remove()

    def _close(self) -> None:
        self._is_off = True
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self.remove()

    def _now(self, phase: int) -> None:
        payload = pack_now(
            self._step,
            self._ended,
            time=time.time(),
            ended_time=self._ended_at,
            phase=phase,
            data_id=self._data_id,
            scalars=self._scalars,
        )
        file = self._file
        if file is not None and file.is_mapped:
            file.now(payload)
        else:
            self._unsaved = payload

    def _note(self, ending: Ending) -> None:
        """Writes an ending at once: the process may not live to the next piece of work."""
        self._ending = ending
        self._is_ending_written = False
        if self._file is not None and self._file.is_mapped:
            self._write_ending(self._file)

    def _work(self) -> None:
        file = self._file
        if file is None:
            file = self._open()
        self._describe(file)
        state = self._unsaved
        if not file.is_mapped and state is not None and state is not self._saved:
            file.now(state)
            self._saved = state
        rows, self._rows = self._rows, []
        for row in rows:
            packed = pack(row, file.number_of)
            is_whole = file.append(self._number, packed)
            self._number += 1
            if file.is_disk_full:
                continue
            if not is_whole or packed.left_out:
                self._guard.say_once(
                    "recorder room",
                    f"the flight recorder has no room for all statistics of a step "
                    f"(recorder_bytes={self._config.recorder_bytes:,}); it keeps what fits.",
                )
        if not self._is_ending_written:
            self._write_ending(file)
        if file.is_disk_full:
            self._guard.say_once(
                "recorder disk",
                f"the disk is full: {self.path} keeps the newest steps in the room that it has, and how the "
                "run ends. Training goes on.",
            )

    def _open(self) -> RecorderFile:
        config = self._config
        try:
            rotate(self.path, self._faults.path)
        except OSError as error:
            self._guard.say_once(
                "recorder before", f"cannot keep the earlier {self.path} ({error.strerror or error})."
            )
        file = RecorderFile(
            self.path,
            size=config.recorder_bytes,
            steps=config.recorder_steps,
            rank=config.rank,
            created=time.time(),
            is_mapped=not is_remote(self.path.parent),
        )
        self._describe(file)
        if self._unsaved is None:
            self._now(STARTING)
        file.now(self._unsaved or b"")
        self._file = file
        with contextlib.suppress(OSError):
            self._faults.install()
        return file

    def _describe(self, file: RecorderFile) -> None:
        """Writes the description, again when the run is known better."""
        info = self._info()
        now = time.monotonic()
        if info is self._told or (now - self._told_at < DESCRIBE_EVERY_S and not self._is_last):
            return
        is_first = self._told is None
        self._told, self._told_at = info, now
        config = self._config
        full = description(info, run_id=self._run_id, rank=config.rank, coordinates=dict(config.coordinates))
        for form in fitting(full):
            if file.slot(RUN, form) or (file.is_disk_full and not is_first):
                return  # an earlier whole description says more than a later short one

    def _write_ending(self, file: RecorderFile) -> None:
        ending = self._ending
        while not file.slot(ENDING, dumps(ending.to_json()).encode()) and ending.traceback:
            shorter = ending.traceback[len(ending.traceback) // 2 + 1 :]  # its end says most
            ending = replace(ending, traceback=shorter)
        self._is_ending_written = True


def ending_of(error: BaseException, *, time: float) -> Ending:
    """An exception with its traceback."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as unprintable:  # an exception whose own text fails
        text = f"(its traceback cannot be shown: {type(unprintable).__name__})"
    kind, _, message = reason_of(error).partition(": ")
    return Ending(kind=kind, message=message, traceback=shortened(text), time=time)

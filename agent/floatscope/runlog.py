"""The floatscope log on disk: what a run without a server leaves behind, ready for ``floatscope diagnose``.

One JSON object a line. The first line describes the run and is padded with spaces, so that it can be
rewritten in place when more is known (tensors, recipe, how the run ended).
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from floatscope.guard import Guard
from floatscope.protocol.json_rows import rows_from_batch
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps, loads
from floatscope.rows import Columns, Row

HEAD_SPARE_BYTES = 8192  # room for a later reason, recipe and a few more tensors
LOST_STEPS = "lost_steps"  # of the head: rows that had no room
MAX_HEAD_BYTES = 64 * 2**20
_COPY_BYTES = 2**20


class RunLog:
    """Writes rows to ``path``. An outlet of the sender (see ``sender.Outlet``).

    A file of the same run is continued, any other is overwritten. A disk that is full or read-only costs the
    log, never the training: the first failure is reported, the rows that did not fit are counted, and the
    head, whose room is there, says so (``lost_steps``).
    """

    def __init__(
        self, path: Path, *, run_id: str, rank: int, info: Callable[[], RunInfo], guard: Guard
    ) -> None:
        self.path = path
        self.is_done = False
        self.written_rows = 0
        self.lost_rows = 0
        self._run_id = run_id
        self._rank = rank
        self._info = info
        self._guard = guard
        self._columns = Columns()
        self._rows: list[Row] = []
        self._file: io.FileIO | None = None
        self._head_bytes = 0
        self._head: dict[str, Any] | None = None
        self._resumed = False
        self._lost_before = 0  # in earlier lives of the run
        self._noted_lost = 0
        self._ending: tuple[str, str | None] | None = None

    def accept(self, rows: Sequence[Row]) -> None:
        """Takes rows over; ``work`` writes them."""
        self._rows.extend(rows)

    def finish(self, status: str, reason: str | None) -> None:
        """Says how the run ended; ``work`` writes it and closes the file."""
        self._ending = (status, reason)

    def work(self) -> float | None:
        """Writes what is there. Returns None: it never has to be called again without new rows."""
        try:
            if self._rows or self._ending is not None:
                self._write()
        except OSError as error:
            self.lost_rows += len(self._rows)
            self._rows.clear()
            self._guard.say_once(
                "run log",
                f"cannot write the run's log {self.path} ({error.strerror or error}). "
                "Training goes on; you lose the log of these steps.",
            )
            self._note_lost()
        if self._ending is not None:
            self._close()
        return None

    def farewell(self) -> str | None:
        """One line for the end of the run, or None if nothing was written."""
        if not self.written_rows:
            return None
        lost = f" ({self.lost_rows} steps could not be written)" if self.lost_rows else ""
        return f"floatscope: wrote {self.path}{lost}; to see what it says: floatscope diagnose {self.path}"

    def abort(self) -> None:
        """Nothing to end: writing to a disk is never waited for longer than the disk takes."""

    def _write(self) -> None:
        self._open_once()
        while self._rows:
            count = next(
                (t for t in range(1, len(self._rows)) if self._rows[t].step <= self._rows[t - 1].step),
                len(self._rows),
            )
            rows = self._rows[:count]
            if self._resumed:
                rows[0] = rows[0].with_default("resumed", 1.0)
                self._resumed = False
            lines = rows_from_batch(self._columns.batch(rows), rank=self._rank)
            data = "".join(dumps(line) + "\n" for line in lines).encode()
            del self._rows[:count]
            try:
                self._append(data)
            except OSError:
                self.lost_rows += count
                raise
            self.written_rows += count
        self._write_head()

    def _note_lost(self) -> None:
        """Says in the head that rows are missing, and how the run ended: at the end, and as they double."""
        if self._file is None or (self._ending is None and self.lost_rows < 2 * self._noted_lost):
            return
        with contextlib.suppress(OSError):
            self._write_head()
            self._noted_lost = self.lost_rows

    def _append(self, data: bytes) -> None:
        """Appends whole lines or nothing, so that a full disk leaves no half line behind."""
        file = self._opened()
        end = file.seek(0, os.SEEK_END)
        try:
            _write_all(file, data)
        except OSError:
            file.truncate(end)
            raise

    def _open_once(self) -> None:
        if self._file is not None:
            return
        self.path = self.path.resolve()  # a link stays a link, its target is written
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not self.path.is_file():
            raise OSError("it is not a regular file")
        head = _read_head(self.path)
        if head is not None and head[0].get("run_id") == self._run_id:
            self._head, self._head_bytes = head
            self._lost_before = whole_or_zero(head[0].get(LOST_STEPS))
            self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - lives as long as the run
            self._mend()
            self._resumed = True
        else:
            self._file = open(self.path, "w+b", buffering=0)  # noqa: SIM115 - lives as long as the run
            self._write_head()

    def _mend(self) -> None:
        """Cuts off a last line that a killed process left unfinished."""
        file = self._opened()
        end = file.seek(0, os.SEEK_END)
        tail = min(end, _COPY_BYTES)
        file.seek(end - tail)
        data = file.read(tail)
        if not data.endswith(b"\n"):
            file.truncate(max(end - tail + data.rfind(b"\n") + 1, self._head_bytes))

    def _write_head(self) -> None:
        head = self._info().to_json() | {"run_id": self._run_id}
        lost = self._lost_before + self.lost_rows
        if lost:
            head[LOST_STEPS] = lost
        if self._ending is not None:
            head["status"], head["reason"] = self._ending
            if head["reason"] is None:
                del head["reason"]
        if head == self._head:
            return
        line = dumps({"run": head}).encode()
        if len(line) < self._head_bytes:
            file = self._opened()
            file.seek(0)
            _write_all(file, line.ljust(self._head_bytes - 1) + b"\n")
        else:
            self._make_room(line, len(line) + max(len(line) // 4, HEAD_SPARE_BYTES) + 1)
        self._head = head

    def _make_room(self, line: bytes, head_bytes: int) -> None:
        """Replaces the file by one with a longer first line; the old one stays if the disk is full."""
        file = self._opened()
        bigger = self.path.with_name(self.path.name + ".new")
        try:
            with open(bigger, "wb", buffering=0) as copy:
                _write_all(copy, line.ljust(head_bytes - 1) + b"\n")
                file.seek(self._head_bytes)
                while chunk := file.read(_COPY_BYTES):
                    _write_all(copy, chunk)
            os.replace(bigger, self.path)
        except OSError:
            bigger.unlink(missing_ok=True)
            raise
        file.close()
        self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - lives as long as the run
        self._head_bytes = head_bytes

    def _opened(self) -> io.FileIO:
        assert self._file is not None
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self.is_done = True


def whole_or_zero(value: object) -> int:
    """A count from a file that anybody may have written."""
    return value if type(value) is int and value > 0 else 0


def _write_all(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def _read_head(path: Path) -> tuple[dict[str, Any], int] | None:
    """The run object and the length of a log's first line, or None if there is no log of ours."""
    try:
        with open(path, "rb") as file:
            line = file.readline(MAX_HEAD_BYTES)
    except FileNotFoundError:
        return None
    try:
        value = loads(line)
        head = value.get("run") if isinstance(value, dict) else None
    except ValueError:
        return None
    return (head, len(line)) if isinstance(head, dict) and line.endswith(b"\n") else None

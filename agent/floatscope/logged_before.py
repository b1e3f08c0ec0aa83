"""What an earlier process of the same run has left in its log, for a diagnosis that goes on with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.strict_json import loads

MAX_HEAD_BYTES = 64 * 2**20
MOST_BYTES = 256 * 2**20  # of the end of a log: about a minute of judging
PIECE_STEPS = 16
_BLOCK_BYTES = 2**16


@dataclass
class LoggedBefore:
    """The rows of a log as it stood when it was looked at; a later end of it is not read.

    file: stays open, since the log may be replaced by one with a longer first line.  is_continued: there were
    rows, so that the next one is the first after a resume.  notes: what could not be read.
    """

    file: BinaryIO | None = None
    first_byte: int = 0
    end: int = 0
    is_continued: bool = False
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path, *, run_id: str) -> LoggedBefore:
        """Looks at a log, without reading its rows. One of another run, which will be replaced, has none."""
        if not path.is_file():  # opening a pipe would wait for its other end
            return cls()
        try:
            file = open(path, "rb")  # noqa: SIM115 - closed when it is read
        except OSError:
            return cls()
        head = file.readline(MAX_HEAD_BYTES)
        if not _is_of(head, run_id):
            file.close()
            return cls()
        end = _end_of_lines(file, len(head))
        found = cls(file, len(head), end, is_continued=True)
        if end - len(head) > MOST_BYTES:
            found.first_byte = end - MOST_BYTES
            found.note(
                f"its first {found.first_byte / 2**20:,.0f} MiB were not judged again after the resume"
            )
        return found

    def batches(self, *, rank: int) -> Iterator[Batch]:
        """The rows of this rank in small batches whose steps ascend. What is no row is counted and noted."""
        rows: list[dict[str, Any]] = []
        for row in self._rows():
            if row.get("rank", 0) != rank:
                continue
            if rows and (len(rows) >= PIECE_STEPS or row["step"] <= rows[-1]["step"]):
                yield from self._batch(rows)
                rows = []
            rows.append(row)
        yield from self._batch(rows)

    def note(self, text: str) -> None:
        """Keeps a sentence for the verdict, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _batch(self, rows: list[dict[str, Any]]) -> Iterator[Batch]:
        if not rows:
            return
        try:
            yield batch_from_rows(rows)
        except ProtocolError as error:
            self.note(f"earlier steps from {rows[0]['step']} on cannot be read: {error}")

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self.file is None:
            return
        with self.file as file:
            file.seek(self.first_byte)
            while file.tell() < self.end:
                row = _row(file.readline())
                if row is not None:
                    yield row


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        value = loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and type(value.get("step")) is int else None


def _is_of(head: bytes, run_id: str) -> bool:
    try:
        value = loads(head)
    except ValueError:
        return False
    run = value.get("run") if isinstance(value, dict) else None
    return isinstance(run, dict) and run.get("run_id") == run_id and head.endswith(b"\n")


def _end_of_lines(file: BinaryIO, head_bytes: int) -> int:
    """Where the last whole line ends; a killed process may have left half of one behind."""
    end = file.seek(0, 2)
    while end > head_bytes:
        start = max(end - _BLOCK_BYTES, head_bytes)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return head_bytes

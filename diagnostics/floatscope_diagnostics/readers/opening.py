"""Opens an input safely: regular files and standard input, gzip or plain, with bounds on size and line
length."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from floatscope_diagnostics.readers.run_log import UnreadableLog

PEEK_BYTES = 1 << 16
MAX_LINE_BYTES = 64 << 20  # a step with 100,000 tensors and 14 statistics is below 40 MiB
MAX_UNPACKED_BYTES = 64 << 30
MAX_RATIO = 500  # unpacked to packed; numbers as JSON compress 5 to 40 times, a bomb 1,000 times
RATIO_FROM_BYTES = 256 << 20
_MAGIC = (
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstandard data", "unpack it first: zstd -d FILE"),
    (b"BZh", "bzip2 data", "unpack it first: bunzip2 FILE"),
    (b"\xfd7zXZ", "xz data", "unpack it first: xz -d FILE"),
    (b"SQLite format 3", "an SQLite database", "use floatscope export on the server's runs"),
    (b"\x89PNG", "an image", "pass the log itself"),
    (b"%PDF", "a PDF", "pass the log itself"),
    (b"\x7fELF", "a program", "pass the log itself"),
    (b"\x80\x02", "a pickle (checkpoint)", "pass the training log, not the checkpoint"),
)


CUT_OFF = (
    "the gzip data ends in the middle: the file is cut off. Copy it again, or salvage what is there with "
    "zcat FILE > part.jsonl"
)


@dataclass
class Opened:
    """An open input. peek: its first bytes, still to be read again."""

    stream: BinaryIO
    peek: bytes
    name: str

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Line number from 1 and the line without its end. Raises UnreadableLog for a line or file beyond the
        bounds."""
        number = 0
        while True:
            line = _guarded(self.stream, MAX_LINE_BYTES + 1)
            if not line:
                return
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise UnreadableLog(
                    f"line {number:,} is longer than 64 MiB: this is not a log with one step a line. "
                    "Check that the file is the training log."
                )
            yield number, line.rstrip(b"\r\n")

    def read_all(self, limit: int) -> bytes:
        """The whole input, at most ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        while size <= limit:
            part = _guarded(self.stream, 1 << 20, whole_lines=False)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
        raise UnreadableLog(
            f"larger than {limit >> 20:,} MiB as one JSON document; write one step a line instead"
        )


def _guarded(stream: BinaryIO, size: int, *, whole_lines: bool = True) -> bytes:
    try:
        return stream.readline(size) if whole_lines else stream.read(size)
    except EOFError as error:
        raise UnreadableLog(
            "the gzip data ends in the middle: the file is cut off. Copy it again, or salvage "
            "what is there with "
            "zcat FILE > part.jsonl"
        ) from error
    except (OSError, zlib.error) as error:
        raise UnreadableLog(f"reading failed: {error}. Check the file or copy it again") from error


class _Bounded(io.RawIOBase):
    """Unpacks gzip and stops at a bomb."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__()
        self._packed = packed
        self._gzip = gzip.GzipFile(fileobj=packed)
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._gzip.read(len(view))
        view[: len(data)] = data
        self._size += len(data)
        packed = max(self._packed.tell(), 1) if self._packed.seekable() else self._size
        too_dense = self._size > RATIO_FROM_BYTES and self._size > MAX_RATIO * packed
        if too_dense or self._size > MAX_UNPACKED_BYTES:
            raise UnreadableLog(
                f"unpacks to more than {self._size >> 20:,} MiB from {packed >> 10:,} KiB: this "
                "is not a training log"
            )
        return len(data)


@contextmanager
def open_log(path: str) -> Iterator[Opened]:
    """Opens ``path`` (``-``: standard input). Raises UnreadableLog with a message that names what to do."""
    with ExitStack() as stack:
        raw: BinaryIO = sys.stdin.buffer if path == "-" else stack.enter_context(_regular_file(path))
        head = _peek(raw)
        stream = raw
        if head[:2] == b"\x1f\x8b":
            stream = stack.enter_context(io.BufferedReader(_Bounded(raw), PEEK_BYTES))
            try:
                head = _peek(stream)
            except EOFError as error:
                raise UnreadableLog(CUT_OFF) from error
            except (OSError, zlib.error) as error:
                raise UnreadableLog(f"the gzip data is damaged ({error}). Copy the file again") from error
        _refuse_foreign(head)
        yield Opened(stream, head, path)


def _peek(stream: BinaryIO) -> bytes:
    peek = getattr(stream, "peek", None)
    if peek is None:
        raise UnreadableLog("standard input cannot be read as a log; pass a file name")
    return bytes(peek(PEEK_BYTES)[:PEEK_BYTES])


def _regular_file(path: str) -> BinaryIO:
    try:
        info = os.stat(path)
    except FileNotFoundError as error:
        raise UnreadableLog(
            "no such file. Check the path; floatscope diagnose takes the training log itself"
        ) from error
    except (OSError, ValueError) as error:
        raise UnreadableLog(f"cannot be opened: {error}") from error
    if stat.S_ISDIR(info.st_mode):
        raise UnreadableLog("is a directory. Name the log files in it, for example DIR/*.jsonl")
    if not stat.S_ISREG(info.st_mode):
        raise UnreadableLog("is a device, pipe or socket, not a file. To read a pipe use - (standard input)")
    try:
        return open(path, "rb")
    except OSError as error:
        raise UnreadableLog(f"cannot be opened: {error.strerror or error}. Check its permissions") from error


def _refuse_foreign(head: bytes) -> None:
    if not head.strip(b"\x00 \t\r\n\xef\xbb\xbf"):
        raise UnreadableLog(
            "is empty. Check that the run has written its log"
            if not head
            else "holds only blanks or NUL bytes"
        )
    for magic, what, advice in _MAGIC:
        if head.startswith(magic):
            raise UnreadableLog(f"is {what}, not a training log: {advice}")
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:256].lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise UnreadableLog(
            "is a web page, not a training log. Download the raw file (for example with ?raw=true)"
        )
    sample = head[:4096]
    strange = sum(b < 9 or 13 < b < 32 for b in sample)
    if strange > len(sample) // 20:
        raise UnreadableLog(
            "is binary, not a training log. Supported: floatscope JSONL (.gz), CSV, trainer_state.json"
        )

"""Opens an input safely: regular files and standard input, packed or plain, with bounds on size and line
length."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from floatscope_diagnostics.readers.foreign import refuse_foreign
from floatscope_diagnostics.readers.recoding import Recoded, utf16_of
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.readers.unpacking import Unpacked, codec_of

PEEK_BYTES = 1 << 16
MAX_LINE_BYTES = 64 << 20  # a step with 100,000 tensors and 14 statistics is below 40 MiB
MAX_TEXT_LINE_BYTES = 1 << 16  # a record of 2,000 named values; a longer line of text is cut
_CHUNK_BYTES = 1 << 18
_OPEN_FLAGS = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")  # those that the system has
_BOM = b"\xef\xbb\xbf"


@dataclass
class Opened:
    """An open input.

    peek: its first bytes, still to be read again.  later: bytes from the middle of a plain file, from a line
    start.  plain: whether the file itself is read, not unpacked or recoded.  notes: what was met while
    reading, complete only at the end.  mapping: our names of columns or curves, as the user gave them.
    """

    stream: BinaryIO
    peek: bytes
    name: str
    later: bytes = b""
    plain: bool = True
    notes: list[str] = field(default_factory=list)
    mapping: Mapping[str, str] = field(default_factory=dict)

    def text_lines(self) -> Iterator[tuple[int, bytes]]:
        """Line number from 1 and the line without its end, if it is not empty.

        What stands between carriage returns (progress bars) comes one by one under the number of its line;
        what is longer than 64 KiB is cut.
        """
        cut = 0
        number = 1
        inside = False  # the rest of a piece that was cut
        for part, ends_line in self._pieces():
            if not inside and part:
                yield number, part[:MAX_TEXT_LINE_BYTES]
                cut += len(part) > MAX_TEXT_LINE_BYTES
            inside = ends_line is None
            number += bool(ends_line)
        if cut:
            self.notes.append(f"lines longer than 64 KiB were cut: {cut:,}")

    def read_all(self, limit: int) -> bytes:
        """The whole input, at most ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        while size <= limit:
            part = self.read(1 << 20)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
        raise UnreadableLog(f"larger than {limit >> 20:,} MiB as one document; write one step a line instead")

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end."""
        try:
            return self.stream.read(size) or b""
        except OSError as error:
            raise UnreadableLog(f"reading failed: {error}. Check the file or copy it again") from error

    def look(self, size: int) -> bytes:
        """The first ``size`` bytes, still to be read again; only before anything else is read."""
        data = self.read(size)
        if self.stream.seekable():
            self.stream.seek(-len(data), os.SEEK_CUR)
        else:
            self.stream = _buffered(_Again(data, self.stream))
        return data

    def _pieces(self) -> Iterator[tuple[bytes, bool | None]]:
        """Pieces between line feeds and carriage returns, and whether a line ends behind it (True), only a
        piece (False), or neither since it was too long to be held (None)."""
        rest = b""
        first = True
        while data := self.read(_CHUNK_BYTES):
            if first:
                data, first = data.removeprefix(_BOM), False
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                *bars, last = line.split(b"\r") if b"\r" in line else (line,)
                for bar in bars:
                    yield bar, False
                yield last, True
            if len(rest) > _CHUNK_BYTES:
                *bars, rest = rest.split(b"\r")
                for bar in bars:
                    yield bar, False
                if len(rest) > _CHUNK_BYTES:
                    yield rest, None
                    rest = b""
        *bars, last = rest.split(b"\r")
        for bar in bars:
            yield bar, False
        yield last, True


@contextmanager
def open_log(path: str, *, on_open: Callable[[BinaryIO], None] | None = None) -> Iterator[Opened]:
    """Opens ``path`` (``-``: standard input). Raises UnreadableLog with a message that names what to do.

    on_open: called once with the raw file, to watch how far it has been read.
    """
    with ExitStack() as stack:
        raw: BinaryIO = sys.stdin.buffer if path == "-" else stack.enter_context(_regular_file(path))
        if on_open is not None:
            on_open(raw)
        notes: list[str] = []
        head, stream = _peek(raw)
        codec = codec_of(head)
        if codec is not None:
            head, stream = _peek(_buffered(Unpacked(stream, codec, notes)))
            inner = codec_of(head)
            if inner is not None:
                raise UnreadableLog(f"is packed twice ({codec.name}, then {inner.name}): unpack it once")
        encoding = utf16_of(head)
        if encoding is not None:
            head, stream = _peek(_buffered(Recoded(stream, encoding)))
        refuse_foreign(head)
        plain = stream is raw and path != "-"
        later = _middle(raw) if plain and len(head) == PEEK_BYTES else b""
        yield Opened(stream, head, path, later, plain, notes)


class _Again(io.RawIOBase):
    """``stream`` with the bytes that were already read from it put back in front."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        super().__init__()
        self._head = head
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._head[: len(view)] or self._stream.read(len(view)) or b""
        self._head = self._head[len(view) :]
        view[: len(data)] = data
        return len(data)


def _buffered(raw: io.RawIOBase) -> BinaryIO:
    return io.BufferedReader(raw, PEEK_BYTES)


def _peek(stream: BinaryIO) -> tuple[bytes, BinaryIO]:
    """The first PEEK_BYTES, or all there is, and a stream that gives them again."""
    try:
        head = stream.read(PEEK_BYTES) or b""
        if stream.seekable():
            stream.seek(-len(head), os.SEEK_CUR)
            return head, stream
    except OSError as error:
        raise UnreadableLog(f"reading failed: {error}. Check the file or copy it again") from error
    return head, _buffered(_Again(head, stream))


def _middle(raw: BinaryIO) -> bytes:
    """PEEK_BYTES from the middle of the file, from the first line start in them."""
    size = os.fstat(raw.fileno()).st_size
    if size <= 2 * PEEK_BYTES:
        return b""
    raw.seek(size // 2)
    middle = raw.read(PEEK_BYTES) or b""
    raw.seek(0)
    return middle.partition(b"\n")[2]


def _regular_file(path: str) -> BinaryIO:
    try:
        _refuse_special(os.stat(path).st_mode)
        # Without waiting: a pipe may have taken the file's place since, and /proc has files that block.
        handle = os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in _OPEN_FLAGS))
    except FileNotFoundError as error:
        raise UnreadableLog(
            "no such file. Check the path; floatscope diagnose takes the training log itself"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableLog(f"cannot be opened: {reason}. Check the path and its permissions") from error
    try:
        _refuse_special(os.fstat(handle).st_mode)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb", PEEK_BYTES)


def _refuse_special(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise UnreadableLog("is a directory. Name the log files in it, for example DIR/*.jsonl")
    if not stat.S_ISREG(mode):
        raise UnreadableLog("is a device, pipe or socket, not a file. To read a pipe use - (standard input)")

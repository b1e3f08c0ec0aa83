"""TFRecord framing: length (uint64), its masked CRC-32C, the data, its masked CRC-32C; little endian.

Format: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from floatscope_diagnostics.readers.crc32c import crc32c, masked
from floatscope_diagnostics.readers.opening import Opened

MAX_RECORD_BYTES = 16 << 20  # an event of scalars is below 1 KiB; beyond it are pictures and graphs
_CHECKED_BYTES = 1 << 16  # the checksum of larger records takes too long and they hold no scalars alone
_SEARCH_BYTES = 1 << 20  # how far a valid record is looked for behind a broken one
_HEADER_BYTES = 12


class Buffer:
    """Bytes of an input that can be looked at before they are taken."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._data = b""
        self._at = 0
        self._ended = False

    def look(self, size: int) -> bytes:
        """The next ``size`` bytes, or what is left; they stay."""
        while len(self._data) - self._at < size and not self._ended:
            part = self._opened.read(max(size, 1 << 20))
            self._ended = not part
            self._data = self._data[self._at :] + part
            self._at = 0
        return self._data[self._at : self._at + size]

    def take(self, size: int) -> bytes:
        data = self.look(size)
        self._at += len(data)
        return data

    def skip(self, size: int) -> int:
        """Passes over bytes without holding them; returns how many there were."""
        left = size
        while left and (part := self.take(min(left, 1 << 20))):
            left -= len(part)
        return size - left


def records(opened: Opened) -> Iterator[bytes]:
    """The records that are whole. Broken, oversized and cut ones are counted in ``opened.notes``."""
    buffer = Buffer(opened)
    broken = large = 0
    while True:
        header = buffer.look(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            cut = len(header) > 0
            break
        length = _length(header)
        if length is None:
            broken += 1
            buffer.take(1)
            if not _seek(buffer):
                cut = True
                break
            continue
        buffer.take(_HEADER_BYTES)
        if length > MAX_RECORD_BYTES:
            large += 1
            cut = buffer.skip(length + 4) < length + 4
            if cut:
                break
            continue
        data = buffer.take(length)
        check = buffer.take(4)
        if len(check) < 4:
            cut = True
            break
        if length <= _CHECKED_BYTES and masked(crc32c(data)) != int.from_bytes(check, "little"):
            broken += 1
            continue
        yield data
    if broken:
        opened.notes.append(f"{broken:,} damaged records were passed over")
    if large:
        opened.notes.append(f"{large:,} records over {MAX_RECORD_BYTES >> 20} MiB were passed over")
    if cut:
        opened.notes.append("the last record is cut off or damaged: the end of the log is missing")


@lru_cache(maxsize=4096)  # few lengths occur, each thousands of times
def _length(header: bytes) -> int | None:
    """The length of a record; None if its checksum says that this is no header."""
    if masked(crc32c(header[:8])) != int.from_bytes(header[8:], "little"):
        return None
    return int.from_bytes(header[:8], "little")


def _seek(buffer: Buffer) -> bool:
    """Moves to the next valid header. Lengths are below 4 GiB, so its upper bytes are four NULs."""
    window = buffer.look(_SEARCH_BYTES)
    at = window.find(b"\x00\x00\x00\x00", 4)
    while at >= 0:
        header = window[at - 4 : at + 8]
        if len(header) == _HEADER_BYTES and _length(header) is not None:
            buffer.take(at - 4)
            return True
        at = window.find(b"\x00\x00\x00\x00", at + 1)
    return False

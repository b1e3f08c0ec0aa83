"""Text in UTF-16, as PowerShell's ``>`` writes it, as UTF-8."""

from __future__ import annotations

import codecs
import io
from typing import Any, BinaryIO

_CHUNK_BYTES = 1 << 16
_SAMPLE_BYTES = 4096


def utf16_of(head: bytes) -> str | None:
    """The codec's name if the first bytes are UTF-16 text: a byte order mark, or a NUL in every other
    byte."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    sample = head[: min(_SAMPLE_BYTES, len(head) & ~1)]
    low, high = sample[0::2].count(0), sample[1::2].count(0)
    most = 0.9 * len(sample) / 2
    if len(sample) >= 8 and min(low, high) == 0 and max(low, high) > most:
        return "utf-16-le" if high > most else "utf-16-be"
    return None


class Recoded(io.RawIOBase):
    """The bytes of ``source`` as UTF-8; what is not valid becomes the replacement character."""

    def __init__(self, source: BinaryIO, encoding: str) -> None:
        super().__init__()
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ready = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        while not self._ready and not self._ended:
            data = self._source.read(_CHUNK_BYTES)
            self._ended = not data
            self._ready = self._decoder.decode(data, final=not data).encode("utf-8", "replace")
        part, self._ready = self._ready[: len(view)], self._ready[len(view) :]
        view[: len(part)] = part
        return len(part)

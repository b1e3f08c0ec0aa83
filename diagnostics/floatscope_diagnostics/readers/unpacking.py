"""Unpacks gzip, bzip2, xz and zstandard as a stream, with bounds on size and density.

What comes out before packed data ends is kept: the log of a run that died is often cut off. Damaged data is
refused.
"""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from floatscope_diagnostics.readers.run_log import UnreadableLog

MAX_UNPACKED_BYTES = 64 << 30
MAX_RATIO = 500  # unpacked to packed; numbers as text compress 5 to 40 times, a bomb 1,000 times
RATIO_FROM_BYTES = 256 << 20
_LZMA_MEMORY_BYTES = 256 << 20  # xz -9 needs 65 MiB; a header may ask for 4 GiB
_ZSTD_WINDOW_BYTES = 128 << 20  # zstd --ultra --long=27; a header may ask for more
_PACKED_CHUNK_BYTES = 1 << 16
_ZSTD_SLICE_BYTES = 1 << 10  # a block of 4 bytes unpacks to at most 128 KiB: at most 32 MiB at once
_CHUNK_BYTES = 1 << 18


class Decoder(Protocol):
    """The interface of bz2.BZ2Decompressor and lzma.LZMADecompressor."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


@dataclass(frozen=True)
class Codec:
    """name: for people.  magic: first bytes.  start: a decoder for one member."""

    name: str
    magic: bytes
    start: Callable[[], Decoder]


class _Gunzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = not self._inner.unconsumed_tail and len(out) < max_length
        return out


class _Unzstd:
    def __init__(self) -> None:
        self._module = _zstandard()
        self._inner: Any = self._module.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
        self._packed = b""
        self._out = b""
        self.unused_data = b""

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof) and not self._out

    @property
    def needs_input(self) -> bool:
        return not self._out and not self._packed

    def decompress(self, data: bytes, max_length: int) -> bytes:
        self._packed += data
        while not self._out and self._packed and not self._inner.eof:
            part, self._packed = self._packed[:_ZSTD_SLICE_BYTES], self._packed[_ZSTD_SLICE_BYTES:]
            try:
                self._out = self._inner.decompress(part)
            except self._module.ZstdError as error:
                raise OSError(str(error)) from error
            if self._inner.eof:
                self.unused_data = self._inner.unused_data + self._packed
        out, self._out = self._out[:max_length], self._out[max_length:]
        return out


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise UnreadableLog(
            "is zstandard data, and the package that unpacks it is not installed: pip install zstandard, "
            "or unpack the file first with zstd -d FILE"
        ) from error


CODECS = (
    Codec("gzip", b"\x1f\x8b\x08", _Gunzip),
    Codec("bzip2", b"BZh", bz2.BZ2Decompressor),
    Codec("xz", b"\xfd7zXZ\x00", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY_BYTES)),
    Codec("zstandard", b"\x28\xb5\x2f\xfd", _Unzstd),
)


def codec_of(head: bytes) -> Codec | None:
    """The codec whose data begins like this."""
    return next((c for c in CODECS if head.startswith(c.magic)), None)


class Unpacked(io.RawIOBase):
    """The unpacked bytes of ``packed``. notes: gets a line where the data ends too early.

    Raises UnreadableLog for a bomb, for damaged data, and where it ends before its first byte.
    """

    def __init__(self, packed: BinaryIO, codec: Codec, notes: list[str]) -> None:
        super().__init__()
        self._packed = packed
        self._codec = codec
        self._notes = notes
        self._decoder = codec.start()
        self._taken = 0
        self._size = 0
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        try:
            data = b"" if self._ended else self._next(min(len(view), _CHUNK_BYTES))
        except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
            # Checksums stand behind the data: what was unpacked before may be wrong as well.
            raise UnreadableLog(
                f"the {self._codec.name} data is damaged ({error}). Copy the file again"
            ) from error
        view[: len(data)] = data
        self._size += len(data)
        too_dense = self._size > RATIO_FROM_BYTES and self._size > MAX_RATIO * max(self._taken, 1)
        if too_dense or self._size > MAX_UNPACKED_BYTES:
            raise UnreadableLog(
                f"unpacks to more than {self._size >> 20:,} MiB from {self._taken >> 10:,} KiB: this "
                "is not a training log"
            )
        return len(data)

    def _next(self, most: int) -> bytes:
        """The next bytes; empty at the end."""
        while True:
            given = b""
            if self._decoder.eof:
                given = self._decoder.unused_data or self._read()
                if not self._next_member(given):
                    return b""
            elif self._decoder.needs_input:
                given = self._read()
                if not given:
                    self._stop()
                    return b""
            data = self._decoder.decompress(given, most)
            if data:
                return data

    def _next_member(self, given: bytes) -> bool:
        """Starts the decoder of the next member, if ``given`` begins one."""
        rest = given.lstrip(b"\x00")  # tools pad with NUL bytes
        if rest.startswith(self._codec.magic[:2]):
            self._decoder = self._codec.start()
            return True
        if rest:
            self._notes.append(f"bytes after the end of the {self._codec.name} data were ignored")
        self._ended = True
        return False

    def _read(self) -> bytes:
        data = self._packed.read(_PACKED_CHUNK_BYTES)
        self._taken += len(data)
        return data

    def _stop(self) -> None:
        if not self._size:
            raise UnreadableLog(
                f"the {self._codec.name} data ends in the middle before its first line. Copy the file again"
            )
        self._notes.append(
            f"the {self._codec.name} data ends in the middle: read up to there, the end of the log is missing"
        )
        self._ended = True

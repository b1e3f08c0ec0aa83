"""The bytes of a file by ordinary reads.

A recorder has holes, and a page of a hole that is touched through mapped memory is allocated first: on a full
tmpfs, on a file that somebody cuts off, or on a bad disk the reader would die of SIGBUS. A read is an error
that can be taken.
"""

from __future__ import annotations

import errno
import os
import weakref

WINDOW_BYTES = 2**20  # read at a time and held


class FileBytes:
    """A file as a sequence of bytes: length, slices and ``find``. It holds one window of it.

    failure: what the disk said where it could not read; such a part, and one that is cut off meanwhile, reads
    as zeros.  Raises OSError if not even the beginning can be read.
    """

    def __init__(self, fd: int) -> None:
        self.failure: str | None = None
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd)
        self._size = os.fstat(self._fd).st_size
        self._window = os.pread(self._fd, WINDOW_BYTES, 0)
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        size = max(stop - start, 0)
        if not self._at <= start <= stop <= self._at + len(self._window):
            if size > WINDOW_BYTES:
                return self._read(start, size)
            self._move(start)
        return self._window[start - self._at : start - self._at + size]

    def find(self, wanted: bytes, start: int, end: int, /) -> int:
        """Offset of the first ``wanted`` that lies between start and end, or -1."""
        end = min(end, self._size)
        while start + len(wanted) <= end:
            if not self._at <= start < self._at + len(self._window) - len(wanted) + 1:
                start = self._data_after(start, end)
                if start + len(wanted) > end:
                    return -1
                self._move(start)
            stop = min(end, self._at + len(self._window))
            found = self._window.find(wanted, start - self._at, stop - self._at)
            if found >= 0:
                return self._at + found
            start = stop - len(wanted) + 1
        return -1

    def _move(self, start: int) -> None:
        self._window, self._at = self._read(start, min(WINDOW_BYTES, self._size - start)), start

    def _data_after(self, start: int, end: int) -> int:
        """The same place, or behind the hole in which it lies, where the system knows of holes."""
        if not hasattr(os, "SEEK_DATA"):
            return start
        try:
            found = os.lseek(self._fd, start, os.SEEK_DATA)
        except OSError as error:
            return end if error.errno == errno.ENXIO else start
        return max(found, start)

    def _read(self, start: int, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = os.pread(self._fd, min(size, WINDOW_BYTES), start)
            except OSError as error:
                self.failure = error.strerror or str(error)
                part = b""
            if not part:
                parts.append(b"\0" * size)
                break
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(parts)

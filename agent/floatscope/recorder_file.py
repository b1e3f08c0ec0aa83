"""Writes the flight recorder's file (see ``protocol.ring``).

The slot of the step under way is mapped into memory, so that the training thread writes it without a system
call; its pages are allocated first, since a full disk answers a store to a hole with SIGBUS. Room for the
ending and a short description is allocated too: a disk that fills up later does not hide how a run ended.
Everything else is written with ``pwrite`` by the sender's thread: the same page cache, which outlives the
process, but a full disk is an error that can be taken, and no page of it counts as memory of the process.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import zlib
from collections import deque
from pathlib import Path

from floatscope.protocol.ring import (
    DETAILS,
    ENDING,
    FRAME_BYTES,
    NAMES,
    NOW,
    PACKED,
    PAGE,
    RUN,
    SCALARS,
    Region,
    halves,
    layout_of,
    newest,
    pack_header,
    seal,
    unpack_header,
    unpacked,
)
from floatscope.protocol.strict_json import loads
from floatscope.recorder_rows import Packed, pack_names

KEPT_BEFORE = 3  # recorders of earlier lives of the run, such as a crash that a requeued job must not destroy
_PACK_BYTES = 512  # of names; less is not worth compressing
_MAX_ENDING_BYTES = 2**22
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RecorderFile:
    """One file, open for writing. Making it creates the file; raises OSError if that cannot be.

    is_mapped: whether ``now`` stores into memory, and may be called by the training thread. Where False it
    writes as everything else does.
    """

    def __init__(
        self, path: Path, *, size: int, steps: int, rank: int, created: float, is_mapped: bool = True
    ) -> None:
        self.path = path
        self.is_mapped = is_mapped
        self.layout = layout_of(size, steps)
        self._numbers: dict[tuple[str, ...], int] = {}
        self._next_number = 0
        self._names, self._names_next = halves(self.layout.names)
        self._names_at = self._names.at
        self._slots = {ENDING: 0, RUN: 0}
        self._is_disk_full = False
        self._now = 0
        self._now_halves = halves(self.layout.now)
        if not hasattr(os, "pwrite"):
            raise OSError("this system cannot write at a place of a file (pwrite)")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.new")
        self._fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            front = self.layout.ending.end
            for at, size in [(0, front), *((half.at, PAGE) for half in halves(self.layout.run))]:
                _allocate(self._fd, at, size)
            _write(self._fd, pack_header(self.layout, rank=rank, created=created).ljust(front, b"\0"), 0)
            self._map = mmap.mmap(self._fd, self.layout.now.end) if is_mapped else None
            os.replace(partial, path)  # a file under this name is always a whole recorder
        except BaseException:
            os.close(self._fd)
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        self._scalars = _Ring(self._fd, self.layout.scalars, SCALARS, most=steps)
        self._details = _Ring(self._fd, self.layout.details, DETAILS, most=steps)

    @property
    def is_disk_full(self) -> bool:
        """Whether something had no room on the disk."""
        return self._is_disk_full or self._scalars.is_disk_full or self._details.is_disk_full

    def now(self, payload: bytes) -> None:
        """Writes the step under way, from one thread. Mapped: takes no lock and makes no system call."""
        self._now += 1
        half = self._now_halves[self._now & 1]
        data = seal(NOW, self._now, payload[: half.size - FRAME_BYTES])
        if self._map is not None:
            self._map[half.at : half.at + len(data)] = data
        else:
            _write(self._fd, data, half.at)

    def slot_room(self, kind: bytes) -> int:
        """Bytes that a payload of ENDING or RUN may have, compressed."""
        return halves(self._slot(kind))[0].size - FRAME_BYTES

    def slot(self, kind: bytes, payload: bytes) -> bool:
        """Writes the ending or the description. False, and what was there stays, if it does not fit."""
        packed = zlib.compress(payload, 6)
        if len(packed) > self.slot_room(kind):
            return False
        number = self._slots[kind] + 1
        half = halves(self._slot(kind))[number & 1]
        if not self._fits(seal(kind, number, packed, flags=PACKED), half.at):
            return False
        self._slots[kind] = number
        return True

    def number_of(self, names: tuple[str, ...]) -> int | None:
        """The number of a list of names, which is written on its first use; None if it does not fit.

        A half of the region that is full gives way to the other; lists in use are written there anew, only
        records from before the last change lose their names.
        """
        number = self._numbers.get(names)
        if number is not None:
            return number
        payload, flags = pack_names(names), 0
        if len(payload) > _PACK_BYTES:
            payload, flags = zlib.compress(payload, 6), PACKED
        frame = seal(NAMES, self._next_number, payload, flags=flags)
        if len(frame) > self._names.size:
            return None
        if self._names_at + len(frame) > self._names.end:
            self._numbers.clear()
            self._names, self._names_next = self._names_next, self._names
            self._names_at = self._names.at
        if not self._fits(frame, self._names_at):
            return None
        self._names_at += len(frame)
        self._numbers[names] = self._next_number
        self._next_number += 1
        return self._numbers[names]

    def append(self, number: int, packed: Packed) -> bool:
        """Writes the records of a step; the oldest make room. False if not all of it fits."""
        is_whole = self._scalars.append(number, packed.scalars)
        if packed.details is None:
            self._details.forget_before(number)
            return is_whole
        return self._details.append(number, packed.details) and is_whole

    def close(self) -> None:
        """Unmaps and closes the file, which stays."""
        if self._map is not None:
            self._map.close()
        os.close(self._fd)

    def _fits(self, data: bytes, at: int) -> bool:
        """Writes it if the disk has room. Raises OSError for anything else."""
        try:
            _write(self._fd, data, at)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._is_disk_full = True
            return False
        return True

    def _slot(self, kind: bytes) -> Region:
        return self.layout.ending if kind == ENDING else self.layout.run


class _Ring:
    """Records one behind the other; at the end of the region it begins again over the oldest.

    The region is used no further than ``most`` records of the largest size need, so that a small run takes
    little of the disk however long it is.
    """

    def __init__(self, fd: int, region: Region, kind: bytes, *, most: int) -> None:
        self.is_disk_full = False
        self._fd = fd
        self._kind = kind
        self._start, self._end = region.at, region.end
        self._at = self._reached = region.at
        self._most = most
        self._largest = 0
        self._live: deque[tuple[int, int]] = deque()  # offset and number of each record, the oldest first

    def append(self, number: int, payload: bytes) -> bool:
        """Writes a record. False if it is larger than the ring or the disk has no room. Raises OSError."""
        self.forget_before(number)
        frame = seal(self._kind, number, payload)
        if len(frame) > self._end - self._start:
            return False
        try:
            self._put(frame, number)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self.is_disk_full = True
            if self._reached == self._start:
                return False
            self._end = self._reached  # the disk is full: go round in what there is
            if len(frame) > self._end - self._start:
                return False
            self._put(frame, number)
        return True

    def forget_before(self, number: int) -> None:
        """Takes away the records of steps that are too old beside this one."""
        while self._live and self._live[0][1] <= number - self._most:
            self._forget()

    def _put(self, frame: bytes, number: int) -> None:
        self._largest = max(self._largest, len(frame))
        if self._at + len(frame) > min(self._end, self._start + (self._most + 1) * self._largest):
            while self._live and self._live[0][0] >= self._at:
                self._forget()
            self._at = self._start
        end = self._at + len(frame)
        while self._live and self._at <= self._live[0][0] < end:
            self._forget()
        _write(self._fd, frame, self._at)
        self._live.append((self._at, number))
        self._reached = max(self._reached, end)
        self._at = end

    def _forget(self) -> None:
        """Takes the mark of the oldest record away, so that no reader finds it behind newer ones."""
        offset, _ = self._live.popleft()
        _write(self._fd, b"\0\0\0\0", offset)


def _allocate(fd: int, at: int, size: int) -> None:
    """Has the disk set blocks aside; a file system that cannot gets real zeros from the caller."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, at, size)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def rotate(path: Path, beside: Path) -> None:
    """Keeps what an earlier life of the run left at ``path`` and ``beside``, unless that life ended well.

    They become ``.1``, what was ``.1`` becomes ``.2``; the oldest of three goes. A file beside it in which
    nothing stands goes at once. Raises OSError.
    """
    if beside.exists() and not beside.stat().st_size:
        beside.unlink(missing_ok=True)
    if not path.exists() or ended_well(path):
        beside.unlink(missing_ok=True)
        return
    for number in range(KEPT_BEFORE, 0, -1):
        for file in (path, beside):
            older = file if number == 1 else file.with_name(f"{file.name}.{number - 1}")
            target = file.with_name(f"{file.name}.{number}")
            if older.exists():
                os.replace(older, target)
            else:
                target.unlink(missing_ok=True)


def ended_well(path: Path) -> bool:
    """Whether this is a recorder whose ending says that the run finished."""
    try:
        with open(path, "rb") as file:
            header = unpack_header(file.read(PAGE))
            file.seek(header.layout.ending.at)
            data = file.read(min(header.layout.ending.size, _MAX_ENDING_BYTES))
        frame = newest(data, Region(0, header.layout.ending.size), ENDING)
        ending = None if frame is None else loads(unpacked(frame, most=_MAX_ENDING_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(ending, dict) and ending.get("status") == "finished"

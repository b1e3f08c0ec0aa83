"""What a server has not acknowledged, on disk: it outlives the process.

A directory with a lock, ``run.json`` (whose steps these are, and how the run ended) and segment files (see
``spool_format``). Everything is written with plain ``write``: it survives the end of the process, however
that comes; a segment that is full is also synced, so that it survives the end of the machine.

Used by one thread. Every method that writes may raise OSError; what was there before is then still there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from floatscope import spool_format as form
from floatscope.protocol.runinfo import TensorTable
from floatscope.protocol.strict_json import dumps
from floatscope.protocol.wire_safetensors import canonical
from floatscope.spool_files import FORMAT, LOCK_FILE, MODE, RUN_FILE, owned, read_file, take_lock
from floatscope.spool_format import Flag, Frame, Kind

SEGMENT_BYTES = 8 * 2**20
MAX_SEGMENT_BYTES = 512 * 2**20  # of a file that is read back; ours are far smaller
TABLES_KEPT = 4


@dataclass(eq=False)
class Segment:
    """One file.  waiting: entries in it that are not delivered.  level: how often it was thinned."""

    path: Path
    size: int
    waiting: int = 0
    level: int = 0
    tables: dict[str, tuple[int, int]] = field(default_factory=dict)  # hash -> where its JSON lies


@dataclass(eq=False)
class Entry:
    """A batch that waits.

    seq: under which it was first sent.  is_own: packed by this process.  is_out: it is on its way.
    """

    segment: Segment
    frame: Frame
    seq: int | None
    is_own: bool = False
    is_out: bool = False


class Spool:
    """The spool of one rank of one run; make one with ``Spool.open``.

    entries: what waits, oldest first, by the number of its first packed batch.  damaged: places in the files
    that could not be read.  was_there: an earlier process has left it.  last_seq: the highest seq under which
    it sent, as far as the files tell.
    """

    def __init__(self, path: Path, lock: int, *, limit_bytes: int) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.segment_bytes = min(SEGMENT_BYTES, limit_bytes // 8)
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.damaged = 0
        self.last_seq: int | None = None
        self.was_there = (path / RUN_FILE).exists()
        self._lock: int | None = lock
        self._segments: list[Segment] = []
        self._file: int | None = None
        self._next = 0
        self._tables: OrderedDict[str, TensorTable] = OrderedDict()

    @classmethod
    def open(cls, path: Path, *, limit_bytes: int) -> Spool:
        """Opens or makes the spool in this directory and takes its lock.

        Raises SpoolBusy where a living process holds it, OSError where the disk does not let us.
        """
        path.mkdir(parents=True, exist_ok=True)
        spool = cls(path, take_lock(path / LOCK_FILE), limit_bytes=limit_bytes)
        try:
            spool._load()
        except BaseException:
            spool.close()
            raise
        return spool

    @property
    def size(self) -> int:
        """Size of the files."""
        return sum(segment.size for segment in self._segments)

    @property
    def steps(self) -> int:
        """Steps that wait."""
        return sum(entry.frame.steps for entry in self.entries.values())

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The files, oldest first; the last one is written to."""
        return tuple(self._segments)

    def append(
        self,
        body: bytes,
        *,
        flags: Flag,
        steps: int,
        detail: int,
        table: TensorTable,
        table_key: str,
        seq: int | None = None,
        instead_of: Sequence[Entry] = (),
    ) -> Entry:
        """Adds a body.

        table: the tensor table that the body names by ``table_key``.  instead_of: the first of the entries
        that wait, whose place it takes.
        """
        if self._file is None or self._segments[-1].size >= self.segment_bytes:
            self.rotate()
        segment = self._segments[-1]
        first = instead_of[0].frame.first if instead_of else self._next
        last = instead_of[-1].frame.last if instead_of else self._next
        data = b""
        is_new_table = bool(table) and table_key not in segment.tables
        if is_new_table:
            text = canonical(table).encode()
            data = form.pack(Kind.TABLE, text)
            place = (segment.size + form.HEAD_BYTES, len(text))
        frame = Frame(Kind.BATCH, flags, first, last, steps, detail, segment.size + len(data), len(body), seq)
        data += form.pack(
            Kind.BATCH, body, flags=flags, first=first, last=last, steps=steps, detail=detail, seq=seq
        )
        self._write(segment, data)
        if is_new_table:
            segment.tables[table_key] = place
            self._keep_table(table_key, table)
        entry = Entry(segment, frame, seq, is_own=not instead_of or instead_of[0].is_own)
        segment.waiting += 1
        self._next = max(self._next, last + 1)
        for other in instead_of:
            del self.entries[other.frame.first]
        self.entries[first] = entry
        if instead_of:
            self.entries.move_to_end(first, last=False)
        for other in instead_of:
            self._done(other)
        return entry

    def stamp(self, entry: Entry, seq: int) -> None:
        """Notes the seq under which an entry is sent for the first time."""
        self._slot(entry, seq, is_delivered=False)
        entry.seq = seq

    def delivered(self, entry: Entry) -> None:
        """The server has it: it is noted, and a file that nobody needs goes."""
        if self.entries.get(entry.frame.first) is not entry:
            return
        del self.entries[entry.frame.first]
        self._done(entry)

    def read(self, entry: Entry) -> bytes:
        """The body of an entry."""
        return self._bytes_at(entry.segment, entry.frame.payload_at, entry.frame.length)

    def find_table(self, segment: Segment, key: str) -> TensorTable | None:
        """The tensor table of that hash, as a body of this segment names it."""
        if key not in self._tables and key in segment.tables:
            value = json.loads(self._bytes_at(segment, *segment.tables[key]))
            self._keep_table(key, value)
        return self._tables.get(key)

    def describe(self, about: Mapping[str, Any]) -> None:
        """Replaces ``run.json``."""
        target = self.path / RUN_FILE
        fresh = target.with_name(RUN_FILE + ".new")
        try:
            with open(fresh, "w", encoding="utf-8", opener=owned) as file:
                file.write(dumps({"format": FORMAT, **about}) + "\n")
            os.replace(fresh, target)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise

    def rotate(self) -> None:
        """Begins a new file; the one before is synced."""
        name = 1 + max((int(segment.path.stem) for segment in self._segments), default=0)
        path = self.path / f"{name:08d}.seg"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        try:
            os.write(file, form.MAGIC)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
        self._file = file
        before = self._segments[-1] if self._segments else None
        self._segments.append(Segment(path, len(form.MAGIC)))
        if before is not None and before.waiting == 0:
            self._drop_file(before)

    def swap(self, segment: Segment, frames: Sequence[tuple[bytes, Frame, Entry | None]], level: int) -> None:
        """Replaces a file that is no longer written to by one with other frames for the same entries.

        frames: bytes and Frame (its ``at`` does not count); an Entry where one is carried over as it is.
        """
        fresh = segment.path.with_suffix(".new")
        placed: list[tuple[Frame, Entry | None]] = []
        size = len(form.MAGIC)
        try:
            with open(fresh, "wb", opener=owned) as file:
                file.write(form.MAGIC)
                for data, frame, entry in frames:
                    placed.append((replace(frame, at=size), entry))
                    size += file.write(data)
            os.replace(fresh, segment.path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        before = {n: entry for n, entry in self.entries.items() if entry.segment is segment}
        for number in before:
            del self.entries[number]
        segment.size, segment.level, segment.waiting = size, level, 0
        segment.tables.clear()
        for (frame, entry), (data, _, _) in zip(placed, frames, strict=True):
            if frame.kind is Kind.TABLE:
                segment.tables[_hash_of(data[form.HEAD_BYTES :])] = (frame.payload_at, frame.length)
                continue
            if entry is None:
                was = before.get(frame.first)
                entry = Entry(segment, frame, frame.seq, is_own=was is not None and was.is_own)
            entry.frame = frame
            self.entries[frame.first] = entry
            segment.waiting += 1
        self.entries = OrderedDict(sorted(self.entries.items()))
        if segment.waiting == 0:
            self._drop_file(segment)

    def forget_seqs(self) -> None:
        """The server numbers differently now: what waits gets a seq when it is sent."""
        for entry in self.entries.values():
            entry.seq = None

    def close(self) -> None:
        """Lets files and lock go; what waits stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Deletes the spool: everything is delivered."""
        for segment in self._segments:
            segment.path.unlink(missing_ok=True)
        self._segments.clear()
        for name in (RUN_FILE, RUN_FILE + ".new", LOCK_FILE):
            (self.path / name).unlink(missing_ok=True)
        self.close()
        for path in (self.path, self.path.parent):
            with contextlib.suppress(OSError):  # other files of the run lie there
                path.rmdir()

    def _load(self) -> None:
        found: dict[int, Entry] = {}
        replaced: list[Entry] = []
        for path in sorted(self.path.glob("*.seg")):
            if not path.stem.isdecimal():
                continue
            data = read_file(path, most=MAX_SEGMENT_BYTES)
            segment = Segment(path, len(data))
            frames, damaged = form.scan(data)
            self.damaged += damaged
            for frame in frames:
                if frame.kind is Kind.TABLE:
                    text = data[frame.payload_at : frame.payload_at + frame.length]
                    segment.tables[_hash_of(text)] = (frame.payload_at, frame.length)
                    continue
                for number in _between(found, frame.first, frame.last):
                    replaced.append(found.pop(number))
                    replaced[-1].segment.waiting -= 1
                self._next = max(self._next, frame.last + 1)
                if frame.seq is not None:
                    self.last_seq = max(self.last_seq or 0, frame.seq)
                found[frame.first] = Entry(segment, frame, frame.seq)
                segment.waiting += 1
            self._segments.append(segment)
        for first in sorted(found):
            entry = found[first]
            if entry.frame.is_delivered:
                entry.segment.waiting -= 1
            else:
                self.entries[first] = entry
        for segment in [s for s in self._segments if s.waiting == 0]:
            self._drop_file(segment)
        for entry in replaced:  # by a process that was killed before it could note that
            if not entry.frame.is_delivered and entry.segment in self._segments:
                with contextlib.suppress(OSError):
                    self._slot(entry, entry.seq, is_delivered=True)

    def _write(self, segment: Segment, data: bytes) -> None:
        """Appends whole frames or nothing, so that a full disk leaves no torn one behind."""
        assert self._file is not None
        view = memoryview(data)
        at = segment.size
        try:
            while view:
                done = os.pwrite(self._file, view, at)
                view, at = view[done:], at + done
        except OSError:
            os.ftruncate(self._file, segment.size)
            raise
        segment.size = at

    def _slot(self, entry: Entry, seq: int | None, *, is_delivered: bool) -> None:
        data = form.slot(seq, is_delivered=is_delivered)
        if entry.segment is self._segments[-1] and self._file is not None:
            os.pwrite(self._file, data, entry.frame.slot_at)
            return
        file = os.open(entry.segment.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(file, data, entry.frame.slot_at)
        finally:
            os.close(file)

    def _done(self, entry: Entry) -> None:
        """An entry less waits in its file; what a later process reads there says so."""
        with contextlib.suppress(OSError):  # then it is sent once more under its seq, which changes nothing
            self._slot(entry, entry.seq, is_delivered=True)
        segment = entry.segment
        segment.waiting -= 1
        if segment.waiting > 0:
            return
        if self._file is None or segment is not self._segments[-1]:
            self._drop_file(segment)
        elif segment.size > self.segment_bytes // 8:
            self._empty(segment, entry)

    def _empty(self, segment: Segment, last: Entry) -> None:
        """Begins the newest file anew; what it keeps of the last entry says how far the server has come."""
        assert self._file is not None
        os.ftruncate(self._file, len(form.MAGIC))
        segment.size = len(form.MAGIC)
        segment.tables.clear()
        frame = last.frame
        mark = form.pack(Kind.BATCH, b"", first=frame.first, last=frame.last, seq=last.seq, is_delivered=True)
        with contextlib.suppress(OSError):
            self._write(segment, mark)

    def _drop_file(self, segment: Segment) -> None:
        if segment in self._segments:
            self._segments.remove(segment)
        segment.path.unlink(missing_ok=True)

    def _bytes_at(self, segment: Segment, at: int, length: int) -> bytes:
        file = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(file, length, at)
        finally:
            os.close(file)

    def _keep_table(self, key: str, table: TensorTable) -> None:
        self._tables[key] = table
        while len(self._tables) > TABLES_KEPT:
            self._tables.popitem(last=False)


def _hash_of(text: bytes) -> str:
    """Hash of a tensor table as it was written, which is canonical JSON."""
    return hashlib.sha256(text).hexdigest()


def _between(found: Mapping[int, Entry], first: int, last: int) -> list[int]:
    if last - first < len(found):
        return [number for number in range(first, last + 1) if number in found]
    return [number for number in found if first <= number <= last]

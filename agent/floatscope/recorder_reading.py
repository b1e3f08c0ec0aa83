"""Reads a flight recorder, of a dead process or a living one, whole or damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import MAX_STEP, check_name
from floatscope.protocol.ring import (
    DETAILS,
    ENDING,
    NAMES,
    NOW,
    RUN,
    SCALARS,
    Buffer,
    Frame,
    Header,
    RingError,
    frame_at,
    newest,
    scan,
    unpack_header,
    unpacked,
)
from floatscope.protocol.strict_json import loads
from floatscope.recorder_bytes import FileBytes
from floatscope.recorder_notes import Ending, Now, unpack_now
from floatscope.recorder_rows import time_of, unpack, unpack_names
from floatscope.rows import Row

MAX_ROWS = 1_000_000
MAX_JSON_BYTES = 128 * 2**20
MAX_NAMES_BYTES = 32 * 2**20
_TEXT_FIELDS = ("status", "reason", "kind", "message", "traceback", "signal")


@dataclass
class Recording:
    """What a file holds.

    description: run_id, rank, coordinates, versions, process, run (see ``recorder_notes.description``).
    missing: steps between the oldest and the newest whose record is damaged.  lost: columns left out by
    ``rows`` since their names are damaged, complete only once all rows are read.
    """

    header: Header
    description: Mapping[str, Any] = field(default_factory=dict)
    now: Now | None = None
    ending: Ending | None = None
    missing: int = 0
    lost: int = 0
    count: int = 0
    notes: list[str] = field(default_factory=list)
    _data: Buffer = b""
    _places: dict[int, list[int | None]] = field(default_factory=dict)
    _names: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Rank of the process."""
        return self.header.rank

    def rows(self) -> Iterator[Row]:
        """The steps in the order in which they were recorded."""
        layout = self.header.layout
        for number in sorted(self._places):
            scalars, details = self._places[number]
            found = (
                _frame(self._data, scalars, layout.scalars.end, SCALARS, number),
                _frame(self._data, details, layout.details.end, DETAILS, number),
            )
            if found == (None, None):
                continue  # a living process has written over it since
            try:
                row, lost = unpack(*found, self._names)
            except (RingError, ProtocolError) as error:
                self._note(f"a record cannot be: it {error}")
                continue
            self.lost += lost
            yield row

    def tail(self) -> Row | None:
        """The step that ended last, if it ended too late for a record: what was known of it on the host."""
        now = self.now
        if now is None or now.ended is None or not now.scalars or now.ended > MAX_STEP:
            return None
        newest = max(self._places, default=None)
        if newest is not None:
            scalars, details = self._places[newest]
            layout = self.header.layout
            payload = _frame(self._data, scalars, layout.scalars.end, SCALARS, newest) or _frame(
                self._data, details, layout.details.end, DETAILS, newest
            )
            if payload is not None and not time_of(payload) < now.ended_time:
                return None
        named = {name: value for name, value in now.scalars.items() if _is_name(name)}
        return Row(now.ended, now.ended_time, named)

    def _note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 16:
            self.notes.append(text)


def read_file(path: str | os.PathLike[str]) -> Recording:
    """Reads a file. Raises OSError, and RingError naming what is wrong."""
    with open(path, "rb") as file:
        data = FileBytes(file.fileno())
    if not len(data):
        raise RingError("is empty")
    return read(data)


def read(data: Buffer) -> Recording:
    """Reads what can be trusted. Raises RingError only if the header is not whole."""
    header = unpack_header(data)
    layout = header.layout
    recording = Recording(header, _data=data)
    if len(data) < layout.names.end:
        recording._note(f"the file is cut off at {len(data):,} bytes")
    recording.description = _json(newest(data, layout.run, RUN), recording) or {}
    frame = newest(data, layout.now, NOW)
    recording.now = None if frame is None else unpack_now(frame.payload)
    recording.ending = _ending(_json(newest(data, layout.ending, ENDING), recording))
    _read_names(data, recording)
    for column, (region, kind) in enumerate(((layout.scalars, SCALARS), (layout.details, DETAILS))):
        for frame in scan(data, region, kind):
            if len(recording._places) >= MAX_ROWS:
                recording._note(f"only the first {MAX_ROWS:,} records are read")
                break
            recording._places.setdefault(frame.number, [None, None])[column] = frame.at
    if isinstance(data, FileBytes) and data.failure is not None:
        recording._note(f"the disk could not read all of it: {data.failure}")
    recording.count = len(recording._places)
    if recording.count:
        first, last = min(recording._places), max(recording._places)
        recording.missing = last - first + 1 - recording.count
    return recording


def _is_name(name: str) -> bool:
    try:
        check_name(name, field="scalar")
    except ProtocolError:
        return False
    return True


def _frame(data: Buffer, at: int | None, end: int, kind: bytes, number: int) -> bytes | None:
    frame = None if at is None else frame_at(data, at, end, kind)
    return frame.payload if frame is not None and frame.number == number else None


def _json(frame: Frame | None, recording: Recording) -> dict[str, Any] | None:
    if frame is None:
        return None
    try:
        value = loads(unpacked(frame, most=MAX_JSON_BYTES))
    except (RingError, ProtocolError) as error:
        recording._note(f"a description cannot be read: {error}")
        return None
    return value if isinstance(value, dict) else None


def _ending(value: Mapping[str, Any] | None) -> Ending | None:
    if value is None:
        return None
    told = {k: v for k, v in value.items() if k in _TEXT_FIELDS and isinstance(v, str)}
    time = value.get("time")
    ending = Ending(**told)  # type: ignore[arg-type]
    is_number = isinstance(time, float | int) and not isinstance(time, bool)
    return replace(ending, time=float(time)) if is_number and time is not None else ending


def _read_names(data: Buffer, recording: Recording) -> None:
    room = MAX_NAMES_BYTES
    for frame in scan(data, recording.header.layout.names, NAMES):
        try:
            names = unpack_names(payload := unpacked(frame, most=room))
        except (RingError, ProtocolError) as error:
            recording._note(f"a list of names cannot be read: {error}")
            continue
        room -= len(payload)
        recording._names.setdefault(frame.number, names)

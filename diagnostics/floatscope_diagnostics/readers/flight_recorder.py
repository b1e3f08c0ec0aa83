"""Reads the flight recorder that a run leaves beside its log, of a process that is dead or alive."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

from floatscope.protocol.batch import Batch
from floatscope.protocol.names import MAX_STATS, MAX_TENSORS
from floatscope.protocol.ring import MAGIC, RingError
from floatscope.protocol.runinfo import RunInfo
from floatscope.recorder_bytes import FileBytes
from floatscope.recorder_reading import Recording
from floatscope.recorder_reading import read as read_recording
from floatscope.rows import Columns, Row
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import ROWS_A_BATCH, RunLog, Tally, UnreadableLog
from floatscope_diagnostics.recorder.story import how_it_ended, info_of, read_fault

FORMAT = "flight_recorder"
MAX_UNPACKED_BYTES = 1 << 30  # of a packed or piped one; a file is read as it is wanted
BATCH_BYTES = 64 << 20


def certainty(head: Head) -> float:
    """Sure of its magic bytes."""
    return 1.0 if head.first.startswith(MAGIC) else 0.0


def read(opened: Opened) -> Iterator[RunLog]:
    """The run of one rank. Raises UnreadableLog if the header is not whole."""
    recording = load(opened)
    tally = Tally()
    status, ended, _ = how_it_ended(recording, fault=read_fault(opened.name) if opened.plain else "")
    info = info_of(recording).merged(RunInfo(status=status, reason=None if status == "running" else ended))
    if recording.ending is not None and recording.ending.status == "finished":
        info = replace(info, reason=recording.ending.reason)
    yield RunLog(info, FORMAT, batches(recording, tally), tally)


def load(opened: Opened) -> Recording:
    """The recording of an input. Raises UnreadableLog."""
    try:
        if opened.plain:
            try:
                return read_recording(FileBytes(opened.stream.fileno()))
            except (OSError, io.UnsupportedOperation) as error:
                raise UnreadableLog(f"cannot be read: {error}. Check the file or copy it again") from error
        return read_recording(opened.read_all(MAX_UNPACKED_BYTES))
    except RingError as error:
        raise UnreadableLog(str(error)) from error


def batches(recording: Recording, tally: Tally) -> Iterator[tuple[int, Batch]]:
    """(rank, batch) with the recorded steps; what could not be read is noted."""
    columns = _Bounded(tally)
    waiting: list[Row] = []
    for row in _rows(recording):
        if waiting and (row.step <= waiting[-1].step or len(waiting) >= ROWS_A_BATCH):
            yield from columns.batches(recording.rank, waiting)
            waiting = []
        waiting.append(row)
    yield from columns.batches(recording.rank, waiting)
    if recording.missing:
        tally.note(f"records that are missing or damaged were passed over: {recording.missing:,}")
    if recording.lost:
        tally.note(f"values were left out since their names are damaged: {recording.lost:,}")
    for note in recording.notes:
        tally.note(note)


def _rows(recording: Recording) -> Iterator[Row]:
    yield from recording.rows()
    tail = recording.tail()
    if tail is not None:
        yield tail


class _Bounded:
    """Rows to batches within the protocol's limits, whatever a file claims."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._columns = Columns()
        self._tensors: set[str] = set()
        self._stats: set[str] = set()

    def batches(self, rank: int, rows: list[Row]) -> Iterator[tuple[int, Batch]]:
        rows = [self._checked(row) for row in rows]
        while rows:
            count = self._columns.fitting(rows, BATCH_BYTES)
            yield rank, self._columns.batch(rows[:count])
            rows = rows[count:]

    def _checked(self, row: Row) -> Row:
        named = [block.names for block in row.blocks] + [part.names for part in row.histograms]
        tensors = self._tensors.union(*named)
        stats = self._stats.union(*(block.stats for block in row.blocks))
        if len(tensors) > MAX_TENSORS or len(stats) > MAX_STATS:
            self._tally.note(
                "more tensors or statistics than a run can have; those of some steps are left out"
            )
            return Row(row.step, row.time, row.scalars)
        self._tensors, self._stats = tensors, stats
        return row

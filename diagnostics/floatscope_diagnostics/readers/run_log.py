"""What a reader hands on: one run of a file, as batches that are read only as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo

ROWS_A_BATCH = 64
MAX_RANKS = 65_536  # a row's rank is outside data; each rank costs detector state


class UnreadableLog(Exception):
    """The input cannot be read as a log. The message says why and what to do."""


@dataclass
class Tally:
    """What a reader met on its way: lines passed over (with the first of them), and remarks for the
    report.

    lines: all lines of a text log that are not blank, 0 where lines are not counted.  steps_from: how steps
    were made where the log prints none.
    """

    skipped: int = 0
    first_skipped: str | None = None
    lines: int = 0
    steps_from: str | None = None
    notes: list[str] = field(default_factory=list)
    mapping: dict[str, str] = field(default_factory=dict)  # name in the log -> our name, where they differ
    first_line: int | None = None  # of those passed over

    def skip(self, line: int, why: str) -> None:
        self.skipped += 1
        if self.first_line is None or line < self.first_line:  # rows are checked in groups, later than lines
            self.first_line = line
            self.first_skipped = f"line {line:,} passed over: {why}"

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 32:
            self.notes.append(text)

    def all_notes(self) -> tuple[str, ...]:
        first = [self.first_skipped] if self.first_skipped is not None else []
        return (*first, *self.notes)


@dataclass
class RunLog:
    """One run. batches: (rank, batch) in file order, to be consumed once; tally fills while they are."""

    run: RunInfo
    format: str
    batches: Iterator[tuple[int, Batch]]
    tally: Tally


class Batcher:
    """Gathers log objects into batches, one buffer a rank, so that each rank keeps its order."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rows: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}

    def add(self, line: int, row: Mapping[str, Any]) -> Iterator[tuple[int, Batch]]:
        """Takes one log object; yields the batches that are full."""
        rank = row.get("rank")
        number = 0 if rank is None else rank
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_RANKS:
            self._tally.skip(line, f"rank is {str(rank)[:40]!r}, expected a whole number from 0")
            return
        if number not in self._rows and len(self._rows) >= 1024:
            self._tally.skip(line, "more than 1,024 ranks in one file")
            return
        rows = self._rows.setdefault(number, [])
        rows.append((line, row))
        if len(rows) >= ROWS_A_BATCH:
            yield from self.flush()

    def flush(self) -> Iterator[tuple[int, Batch]]:
        """The rest, rank by rank."""
        for rank in sorted(self._rows):
            rows, self._rows[rank] = self._rows[rank], []
            if rows:
                yield from self._batches(rank, rows)

    def _batches(
        self, rank: int, rows: Sequence[tuple[int, Mapping[str, Any]]]
    ) -> Iterator[tuple[int, Batch]]:
        try:
            yield rank, batch_from_rows([row for _, row in rows], strict=False)
        except ProtocolError:
            for line, row in rows:  # one of them is bad: find it, keep the others
                try:
                    batch = batch_from_rows([row], strict=False)
                except ProtocolError as error:
                    self._tally.skip(line, str(error)[:200])
                else:
                    yield rank, batch

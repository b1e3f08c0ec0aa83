"""Rows in memory: on their way to the spool, or waiting for the server where there is no spool."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from floatscope.rows import Row


class Backlog:
    """A queue of rows that gives up detail before it gives up steps, and counts both.

    Over ``most_bytes`` the oldest rows lose their histograms and tensor statistics, over ``most_rows`` the
    oldest are dropped.
    """

    def __init__(self, *, most_rows: int, most_bytes: int) -> None:
        self.most_rows = most_rows
        self.dropped = 0
        self.thinned = 0
        self._most_bytes = most_bytes
        self._rows: deque[tuple[Row, float]] = deque()
        self._bytes = 0
        self._first_full = 0  # rows before this one have no statistics left to give up

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def fill(self) -> float:
        """How full it is, from 0 to 1."""
        return max(len(self._rows) / self.most_rows, self._bytes / self._most_bytes)

    def add(self, rows: Sequence[Row], now: float) -> None:
        """Appends rows that came at ``now`` (monotonic seconds)."""
        for row in rows:
            self._rows.append((row, now))
            self._bytes += row.nbytes
        while self._bytes > self._most_bytes and self._first_full < len(self._rows):
            row = self._rows[self._first_full][0]
            self._first_full += 1
            if row.blocks or row.histograms:
                self._bytes -= row.nbytes
                row.blocks.clear()
                row.histograms.clear()
                self._bytes += row.nbytes
                self.thinned += 1
        while len(self._rows) > self.most_rows or (self._bytes > self._most_bytes and self._rows):
            self._pop()
            self.dropped += 1

    def first(self, most: int) -> list[Row]:
        """Up to ``most`` rows from the front whose steps ascend; they stay."""
        found: list[Row] = []
        for row, _ in islice(self._rows, most):
            if found and row.step <= found[-1].step:
                break
            found.append(row)
        return found

    def take(self, count: int) -> None:
        """Removes rows from the front."""
        for _ in range(count):
            self._pop()

    def wait_s(self, now: float, *, flush_every_s: float, steps: int) -> float:
        """Seconds until a batch is due: ``steps`` rows are there, or the oldest is ``flush_every_s`` old."""
        if not self._rows or len(self._rows) >= steps:
            return 0.0
        return max(self._rows[0][1] + flush_every_s - now, 0.0)

    def clear(self) -> None:
        """Lets everything go."""
        self._rows.clear()
        self._bytes = 0
        self._first_full = 0

    def _pop(self) -> None:
        row, _ = self._rows.popleft()
        self._bytes -= row.nbytes
        self._first_full = max(self._first_full - 1, 0)

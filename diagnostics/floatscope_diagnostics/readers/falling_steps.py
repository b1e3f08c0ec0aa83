"""Steps that fall back again and again are no steps: from there on rows are counted instead.

Each step back is a new life of the run to whoever reads on (a resume), which real logs have some hundred of
at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.readers.run_log import Tally

MOST_BACK = 1_000  # steps back of one log; a job that restarts every hour does so in six weeks
BACK_SHARE = 0.03  # of the rows: lives of fewer than 33 rows each
HELD_VALUES = 4 << 20  # 36 MB with their masks


def untrusted(back: int, rows: int) -> bool:
    """Whether steps that went back so often among so many rows say nothing."""
    return back > MOST_BACK and back > BACK_SHARE * rows


def ascending(batches: Iterator[tuple[int, Batch]], tally: Tally) -> Iterator[tuple[int, Batch]]:
    """The batches. Where steps go back too often, their rows get the steps that follow on those before: 1, 2,
    3, and so on where that is so from the beginning.

    Batches are held back only while steps go back so often that they may turn out to be none.
    """
    yield from _Watch(tally).through(batches)


class _Watch:
    """rows, back: since the first step back of a stretch in which there are many.  first: the row of that
    step back, from 1, in the log.  seen: rows before the stretch."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._last: dict[int, int] = {}  # step of the last row of each rank, as logged
        self._top: dict[int, int] = {}  # highest step that each rank has been given
        self._seen = self._rows = self._back = self._first = 0
        self._held: list[tuple[int, Batch]] = []
        self._values = 0

    def through(self, batches: Iterator[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
        """Takes all batches and yields them."""
        for rank, batch in batches:
            self._look(rank, batch)
            self._held.append((rank, batch))
            if untrusted(self._back, self._rows):
                self._say()
                for number, held in self._given_out():
                    yield from self._counted(number, held)
                for number, later in batches:
                    yield from self._counted(number, later)
                return
            dense = self._back > BACK_SHARE * self._rows
            self._values += batch.scalars.size + sum(s.size for s in batch.stats.values())
            if not dense or self._values > HELD_VALUES:
                for number, held in self._given_out():
                    if len(held):
                        self._top[number] = max(self._top.get(number, 0), int(held.step.max()))
                    yield number, held
            if not dense:
                self._seen, self._rows, self._back = self._seen + self._rows, 0, 0
        yield from self._given_out()

    def _look(self, rank: int, batch: Batch) -> None:
        """Counts the rows of a batch, and those at or before the step of the row before."""
        if not len(batch):
            return
        step = batch.step
        back = np.flatnonzero(np.diff(step, prepend=self._last.get(rank, int(step[0]) - 1)) <= 0)
        if len(back) and not self._back:
            self._first = self._seen + self._rows + int(back[0]) + 1
        self._rows += len(step)
        self._back += len(back)
        self._last[rank] = int(step[-1])

    def _given_out(self) -> list[tuple[int, Batch]]:
        held, self._held, self._values = self._held, [], 0
        return held

    def _counted(self, rank: int, batch: Batch) -> Iterator[tuple[int, Batch]]:
        if not len(batch):
            return  # a hole between steps that are none
        first = self._top.get(rank, 0) + 1
        self._top[rank] = first + len(batch) - 1
        yield rank, replace(batch, step=np.arange(first, first + len(batch), dtype=np.int64), segment=None)

    def _say(self) -> None:
        self._tally.steps_from = (
            f"more than {MOST_BACK:,} rows do not go on from the step before (the first of them is row "
            f"{self._first:,}): steps are a count of rows" + (", on from there" if self._top else "")
        )
        self._tally.note(self._tally.steps_from)

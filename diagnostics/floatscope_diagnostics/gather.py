"""Finds the runs of the inputs: several in one file, one in several files, one a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import BinaryIO

from floatscope.protocol.batch import Batch
from floatscope.protocol.ring import MAGIC
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.inputs import Input, expand, open_input
from floatscope_diagnostics.readers.opening import open_log
from floatscope_diagnostics.readers.run_log import RunLog, UnreadableLog

ROWS_IN_TURN = 64  # steps for which ranks wait for each other
RUN_OBJECT_BYTES = 4096  # a run object stands at the very beginning of a floatscope log


@dataclass(frozen=True)
class Reading:
    """How inputs are read.

    format_name: None guesses.  mapping: column -> our name, beyond what is guessed.  on_open: called with the
    raw file of each input.  on_rows: called with the number of rows of each batch.
    """

    format_name: str | None = None
    mapping: Mapping[str, str] | None = None
    on_open: Callable[[BinaryIO], None] | None = None
    on_rows: Callable[[int], None] | None = None


@dataclass(frozen=True)
class Unread:
    """An input that could not be read, and why."""

    path: str
    error: str


@dataclass(frozen=True)
class Gathered:
    """One run, readable once and only while it is visited.

    number: which run of its input, from 1.  logs: one, or one a rank.  started: monotonic time at which
    reading began, s.  notes: about the choice of its files.
    """

    label: str
    number: int
    logs: tuple[RunLog, ...]
    started: float
    notes: tuple[str, ...] = ()
    on_rows: Callable[[int], None] | None = None

    @property
    def run(self) -> RunInfo:
        """What is known of the run; its end only once the batches are consumed."""
        run = self.logs[0].run
        return replace(run, ranks=len(self.logs)) if run.ranks is None and len(self.logs) > 1 else run

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """(rank, batch), one of each file in turn, so that ranks stay together."""
        left = [log.batches for log in self.logs]
        if len(left) > 1:
            left = [_in_pieces(batches) for batches in left]
        while left:
            for stream in list(left):
                item = next(stream, None)
                if item is None:
                    left.remove(stream)
                    continue
                if self.on_rows is not None:
                    self.on_rows(len(item[1]))
                yield item


def _in_pieces(batches: Iterator[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
    """The same steps in small batches."""
    for rank, batch in batches:
        for start in range(0, len(batch), ROWS_IN_TURN):
            yield rank, batch.rows(start, start + ROWS_IN_TURN)


def visit_runs(
    paths: Sequence[str], visit: Callable[[Gathered], None], *, reading: Reading | None = None
) -> list[Unread]:
    """Calls ``visit`` with each run of each input, in order. Returns the inputs that could not be read; runs
    before the fault have been visited. ``visit`` may raise UnreadableLog itself."""
    how = reading or Reading()
    unread: list[Unread] = []
    for members in _groups(expand(paths), how):
        label, notes = members[0].path, members[0].notes
        started = time.monotonic()
        try:
            with ExitStack() as stack:
                opened = [stack.enter_context(_open(m, how)) for m in members]
                if len(members) == 1:
                    for number, log in enumerate(opened[0], 1):
                        visit(Gathered(label, number, (log,), started, notes, how.on_rows))
                        started = time.monotonic()
                else:
                    logs = tuple(next(runs) for runs in opened)
                    visit(Gathered(label, 1, logs, started, notes, how.on_rows))
        except UnreadableLog as error:
            unread.append(Unread(label, str(error)))
    return unread


def files_of(paths: Sequence[str]) -> list[str]:
    """The files behind the inputs that exist now, without standard input."""
    parts = (part for item in expand(paths) for part in (item.parts or (item.path,)))
    return [part for part in parts if part != "-" and os.path.exists(part)]


def _open(item: Input, how: Reading) -> AbstractContextManager[Iterator[RunLog]]:
    return open_input(item, format_name=how.format_name, mapping=how.mapping, on_open=how.on_open)


def _groups(items: Sequence[Input], how: Reading) -> list[list[Input]]:
    """Puts files together whose run has the same id, or name, and whose first steps come from different
    ranks."""
    if len(items) == 1:
        return [list(items)]
    by_name: dict[str, tuple[list[Input], set[int]]] = {}
    groups: list[list[Input]] = []
    for item in items:
        name, rank = _name_and_rank(item, how)
        group, ranks = by_name.get(name or "", ([], set()))
        if name is None or rank in ranks:
            groups.append([item])
            continue
        group.append(item)
        ranks.add(rank)
        if name not in by_name:
            by_name[name] = group, ranks
            groups.append(group)
    return groups


def _name_and_rank(item: Input, how: Reading) -> tuple[str | None, int]:
    """What names the run, and the first rank of a floatscope log or recorder; nothing of other inputs, which
    are not read twice."""
    if len(item.parts) != 1 or item.parts[0] == "-":
        return None, 0
    try:
        with open_log(item.parts[0]) as opened:
            head = opened.peek[:RUN_OBJECT_BYTES]
            if b'"run"' not in head and not head.startswith(MAGIC):
                return None, 0
        with _open(item, replace(how, on_open=None)) as runs:
            log = next(runs, None)
            if log is None or (log.run.name is None and not head.startswith(MAGIC)):
                return None, 0
            first = next(log.batches, None)
            run_id = log.run.extra.get("run_id")
            key = log.run.name if not isinstance(run_id, str) else f"\0{run_id}"
            return key, first[0] if first is not None else 0
    except UnreadableLog:
        return None, 0

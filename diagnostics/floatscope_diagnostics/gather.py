"""Finds the runs of the inputs: several in one file, one in several files, one a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import BinaryIO

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.opening import open_log
from floatscope_diagnostics.readers.run_log import RunLog, UnreadableLog

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
    reading began, s.
    """

    label: str
    number: int
    logs: tuple[RunLog, ...]
    started: float
    on_rows: Callable[[int], None] | None = None

    @property
    def run(self) -> RunInfo:
        """What is known of the run; its end only once the batches are consumed."""
        run = self.logs[0].run
        return replace(run, ranks=len(self.logs)) if run.ranks is None and len(self.logs) > 1 else run

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """(rank, batch), one of each file in turn, so that ranks stay together."""
        left = [log.batches for log in self.logs]
        while left:
            for stream in list(left):
                item = next(stream, None)
                if item is None:
                    left.remove(stream)
                    continue
                if self.on_rows is not None:
                    self.on_rows(len(item[1]))
                yield item


def visit_runs(
    paths: Sequence[str], visit: Callable[[Gathered], None], *, reading: Reading | None = None
) -> list[Unread]:
    """Calls ``visit`` with each run of each input, in order. Returns the inputs that could not be read; runs
    before the fault have been visited. ``visit`` may raise UnreadableLog itself."""
    how = reading or Reading()
    unread: list[Unread] = []
    for label, members in _groups(paths, how):
        started = time.monotonic()
        try:
            with ExitStack() as stack:
                opened = [stack.enter_context(_open(m, how)) for m in members]
                if len(members) == 1:
                    for number, log in enumerate(opened[0], 1):
                        visit(Gathered(label, number, (log,), started, how.on_rows))
                        started = time.monotonic()
                else:
                    visit(Gathered(label, 1, tuple(next(runs) for runs in opened), started, how.on_rows))
        except UnreadableLog as error:
            unread.append(Unread(label, str(error)))
    return unread


def files_of(paths: Sequence[str]) -> list[str]:
    """The files behind the inputs, as far as they exist."""
    return [path for path in paths if path != "-"]


def _open(path: str, how: Reading) -> AbstractContextManager[Iterator[RunLog]]:
    return open_runs(path, format_name=how.format_name)


def _groups(paths: Sequence[str], how: Reading) -> list[tuple[str, list[str]]]:
    """Puts files together whose run has the same name and whose first steps come from different ranks."""
    if len(paths) == 1:
        return [(paths[0], [paths[0]])]
    by_name: dict[str, list[tuple[int, str]]] = {}
    groups: list[tuple[str, list[str]]] = []
    for path in paths:
        name, rank = _name_and_rank(path, how)
        taken = by_name.get(name, []) if name is not None else []
        if name is None or any(r == rank for r, _ in taken):
            groups.append((path, [path]))
            continue
        if taken:
            next(g for g in groups if g[0] == taken[0][1])[1].append(path)
        else:
            groups.append((path, [path]))
        by_name.setdefault(name, []).append((rank, path))
    return groups


def _name_and_rank(path: str, how: Reading) -> tuple[str | None, int]:
    """Name and first rank of a floatscope log; nothing of other inputs, which are not read twice."""
    if path == "-":
        return None, 0
    try:
        with open_log(path) as opened:
            if b'"run"' not in opened.peek[:RUN_OBJECT_BYTES]:
                return None, 0
        with open_runs(path, format_name=how.format_name) as runs:
            log = next(runs, None)
            if log is None or log.run.name is None:
                return None, 0
            first = next(log.batches, None)
            return log.run.name, first[0] if first is not None else 0
    except UnreadableLog:
        return None, 0

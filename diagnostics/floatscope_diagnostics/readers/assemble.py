"""Puts the pieces of a text log together: steps, ranks, evaluations, restarts, several runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.counting import positions
from floatscope_diagnostics.readers.events import is_frame
from floatscope_diagnostics.readers.merging import settled
from floatscope_diagnostics.readers.plain_series import plain_series
from floatscope_diagnostics.readers.records import Records
from floatscope_diagnostics.readers.rows import ROWS_A_BATCH, Rows, rows_of
from floatscope_diagnostics.readers.run_log import RunLog, Tally
from floatscope_diagnostics.readers.splitting import RUN, Part, Run, split
from floatscope_diagnostics.readers.table import Int64, table_of

ROWS_OF_A_RANK = 64  # in a batch, so that ranks stay side by side
LAST_RECORDS = 2  # other ranks may still print after one has failed


def assemble(records: Records, tally: Tally, format_name: str) -> Iterator[RunLog]:
    """The runs of the log, in its order. Everything is known when the first is yielded."""
    for note in records.notes:
        tally.note(note)
    plain = plain_series(records)
    if plain is not None:
        rows, leads = plain
        run = Run([Part(0, records.count, int(leads[0]), int(leads[-1]), RUN)])
        yield _run_log(records, {0: rows}, run, leads, tally, format_name)
        return
    table = table_of(records)
    where = positions(table)
    runs, where = split(table, where)
    if where.how is not None:
        tally.steps_from = where.how
        tally.note(where.how)
    if len(runs) > 1:
        tally.note(f"{len(runs):,} runs in one file")
    leads = np.flatnonzero(where.lead)
    found = [rows_of(table, where, run) for run in runs]
    del table, where  # a third of what is held; rows share their values with the records
    for run, mine in zip(runs, found, strict=True):
        if mine:
            yield _run_log(records, mine, run, leads, tally, format_name)


def _run_log(
    records: Records, rows: dict[int, Rows], run: Run, leads: Int64, tally: Tally, format_name: str
) -> RunLog:
    rows = settled(rows, run.notes)
    failures = np.array([order for order, _, _ in records.failures], np.int64)
    info = _ending(records, failures, leads, run)
    own = replace(tally, notes=[*tally.notes])
    for note in [*run.notes, *_repeats(rows)]:
        own.note(note)
    if len(rows) > 1:
        info = replace(info, ranks=len(rows))
    return RunLog(info, format_name, _batches(rows), own)


def _repeats(rows: dict[int, Rows]) -> list[str]:
    repeated = sum(r.repeated for r in rows.values())
    if not repeated:
        return []
    return [f"{repeated:,} records repeat a step (several ranks, or a progress bar): one row a step is kept"]


def _ending(records: Records, failures: Int64, leads: Int64, run: Run) -> RunInfo:
    """Crashed, if a line after nearly all of the run's records says so."""
    start, stop = run.parts[0].start, run.parts[-1].stop
    low, high = np.searchsorted(leads, (start, stop))
    from_piece = int(leads[max(low, high - LAST_RECORDS)])
    late = np.flatnonzero((failures > max(start, from_piece)) & (failures <= stop)).tolist()
    named = [k for k in late if not is_frame(records.failures[k][2])]
    for k in named or late:
        _, line, text = records.failures[k]
        return RunInfo(status="crashed", reason=f"line {line:,}: {text}")
    return RunInfo()


def _batches(rows: dict[int, Rows]) -> Iterator[tuple[int, Batch]]:
    """Batches of all ranks, in turn."""
    if len(rows) == 1:
        for rank, mine in rows.items():
            yield from ((rank, batch) for batch in mine.batches(ROWS_A_BATCH))
        return
    waiting = {rank: mine.batches(ROWS_OF_A_RANK) for rank, mine in rows.items()}
    while waiting:
        for rank, batches in list(waiting.items()):
            batch = next(batches, None)
            if batch is None:
                del waiting[rank]
            else:
                yield rank, batch

"""Puts the pieces of a text log together: steps, ranks, evaluations, restarts, several runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.piece import START, Piece
from floatscope_diagnostics.readers.records import Records
from floatscope_diagnostics.readers.run_log import Batcher, RunLog, Tally


def assemble(records: Records, tally: Tally, format_name: str) -> Iterator[RunLog]:
    """The runs of the log, in its order."""
    for note in records.notes:
        tally.note(note)
    yield RunLog(RunInfo(), format_name, _batches(records, tally), tally)


def _batches(records: Records, tally: Tally) -> Iterator[tuple[int, Batch]]:
    batcher = Batcher(tally)
    held: dict[str, Any] | None = None
    held_line = 0
    step = -1
    inferred = False
    for line, piece in records.pieces():
        if piece.kind == START:
            continue
        at = _step_of(piece)
        if at is None:
            inferred = True
            at = step + 1 if piece.kind == "train" else max(step, 0)
        if held is not None and (at != held["step"] or piece.rank not in (None, held.get("rank"))):
            yield from batcher.add(held_line, held)
            held = None
        if held is None:
            held, held_line = {"step": at}, line
            if piece.rank is not None:
                held["rank"] = piece.rank
        held.update(piece.values)
        step = at
    if held is not None:
        yield from batcher.add(held_line, held)
    if inferred:
        tally.note("the log prints no step: records are counted")
    yield from batcher.flush()


def _step_of(piece: Piece) -> int | None:
    if piece.step is not None:
        return piece.step
    if piece.batch is not None and piece.batches and piece.epoch is not None:
        return int(piece.epoch) * piece.batches + piece.batch
    if piece.batch is None and piece.epoch is not None:
        return int(piece.epoch)
    return piece.batch

"""Writes the steps of recorders as a floatscope log, which gives the same findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from floatscope.protocol.json_rows import rows_from_batch
from floatscope.protocol.strict_json import dumps
from floatscope_diagnostics.gather import Gathered, Reading, visit_runs
from floatscope_diagnostics.readers.flight_recorder import FORMAT
from floatscope_diagnostics.readers.run_log import UnreadableLog


def lines(files: Sequence[str]) -> Iterator[str]:
    """The log, a line at a time: one run, all its ranks. Raises UnreadableLog for more than one run."""
    parts: list[list[str]] = []

    def take(found: Gathered) -> None:
        rows = [dumps(row) for rank, batch in found.batches() for row in rows_from_batch(batch, rank=rank)]
        parts.append([dumps({"run": found.run.to_json()}), *rows])

    unread = visit_runs(files, take, reading=Reading(format_name=FORMAT))
    for one in unread:
        raise UnreadableLog(f"{one.path} {one.error}")
    if len(parts) != 1:
        raise UnreadableLog(
            f"--export writes one run, and these are {len(parts):,}: name the recorders of one run"
        )
    yield from parts[0]

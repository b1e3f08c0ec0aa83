"""What a reader made of an input, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.inputs import expand, open_input
from floatscope_diagnostics.readers.run_log import RunLog


@dataclass
class ReadRun:
    """One run. curves: name -> {step: value}, rank 0's.  tensors: (rank, step, tensor, stat) -> value."""

    run: RunInfo
    format: str
    steps: list[int]
    notes: tuple[str, ...]
    skipped: int
    mapping: dict[str, str]
    ranks: set[int] = field(default_factory=set)
    curves: dict[str, dict[int, float]] = field(default_factory=dict)
    tensors: dict[tuple[int, int, str, str], float] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)


def read_all(*paths: str | Path, mapping: dict[str, str] | None = None) -> list[ReadRun]:
    """All runs of the paths; raises UnreadableLog."""
    out: list[ReadRun] = []
    for item in expand([str(p) for p in paths]):
        with open_input(item, mapping=mapping) as runs:
            out += [_consumed(log, item.notes) for log in runs]
    return out


def read_one(path: str | Path, *, mapping: dict[str, str] | None = None) -> ReadRun:
    (run,) = read_all(path, mapping=mapping)
    return run


def _consumed(log: RunLog, notes: tuple[str, ...]) -> ReadRun:
    out = ReadRun(log.run, log.format, [], (), 0, log.tally.mapping)
    for rank, batch in log.batches:
        out.ranks.add(rank)
        if rank == min(out.ranks):
            out.steps += batch.step.tolist()
            out.times |= dict(zip(batch.step.tolist(), batch.time.tolist(), strict=True))
            for name in batch.scalar_names:
                values, here = batch.scalar(name)
                points = zip(batch.step[here].tolist(), values[here].tolist(), strict=True)
                out.curves.setdefault(name, {}).update(points)
        for stat in batch.stats:
            values_2d, mask = batch.stat(stat)
            for d, row in enumerate(batch.stat_row.tolist()):
                for s, tensor in enumerate(batch.tensor_names):
                    if mask[d, s]:
                        out.tensors[rank, int(batch.step[row]), tensor, stat] = float(values_2d[d, s])
    out.run, out.skipped = log.run, log.tally.skipped
    out.notes = (*notes, *log.tally.all_notes())
    return out

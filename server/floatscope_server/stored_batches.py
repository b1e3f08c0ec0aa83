"""Stored statistics of one rank as batches of the protocol, bounded: for engines that read a whole run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.batch import Batch, Bool, Float32, Float64, Int64
from floatscope_server.store import kinds, raw, runs, series_reads, stretches
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Piece, Span


@dataclass(frozen=True, eq=False)
class StatBatches:
    """batches: each with which of its steps [T] count, in order.  read, logged: steps with statistics that
    were read, and that there are, about.
    """

    batches: Sequence[tuple[Batch, Bool]]
    read: int
    logged: int

    def counting(self) -> Iterator[Batch]:
        """The batches without the steps that do not count, such as those before a resume."""
        for batch, shown in self.batches:
            yield replace(
                batch,
                step=batch.step[shown],
                time=batch.time[shown],
                scalars=batch.scalars[shown],
                scalars_present=batch.scalars_present[shown],
                stat_row=np.arange(int(shown.sum())),
                stats={stat: values[shown] for stat, values in batch.stats.items()},
                stats_present={stat: there[shown] for stat, there in batch.stats_present.items()},
            )


def logged(c: Connection, run: RunRecord, wanted: Sequence[str]) -> tuple[str, ...]:
    """Those of the statistics that some rank of the run sent."""
    known = {name for kind, name in runs.series(c, run.id) if kind == kinds.STAT}
    return tuple(stat for stat in wanted if stat in known)


def stat_batches(
    source: Source, span: Span, stats: Sequence[str], *, most_values: int, scalars: Sequence[str] = ()
) -> StatBatches:
    """The steps of the span that carry statistics, with these statistics and scalars; of very many values the
    first piece and others evenly spread. Raises Damaged.
    """
    seen = series_reads.view(source, span, with_tensors=True)
    of_piece = seen.of_piece()
    pieces = sorted((p for p in seen.pieces if p.number in of_piece), key=lambda p: p.first_step)
    if not pieces or not stats:
        return StatBatches((), 0, 0)
    rows_of = {piece.number: (step, stat_row) for piece, step, stat_row in raw.rows(source, pieces)}
    steps = {number: step[stat_row] for number, (step, stat_row) in rows_of.items()}
    shown = {
        p.number: stretches.which(steps[p.number], steps[p.number], of_piece[p.number])[1] for p in pieces
    }
    sizes = [len(rows_of[p.number][1]) * len(source.tensor_names(p)) * len(stats) for p in pieces]
    chosen = _spread(pieces, sizes, most_values)
    tables = {piece.number: _Table(source.tensor_names(piece)) for piece in chosen}
    for stat in stats:
        for part in raw.stats(source, stat, (stat,), chosen, tensors={}):
            tables[part.piece.number].take(stat, part)
    if scalars:
        for piece, name, values, present in raw.scalars(source, scalars, chosen):
            tables[piece.number].scalar(name, values, present, rows_of[piece.number][1])
    batches = tuple(
        (tables[piece.number].batch(steps[piece.number]), shown[piece.number]) for piece in chosen
    )
    read = sum(int(shown[piece.number].sum()) for piece in chosen)
    return StatBatches(batches, read, sum(int(inside.sum()) for inside in shown.values()))


def _spread(pieces: Sequence[Piece], sizes: Sequence[int], most: int) -> list[Piece]:
    """All pieces, or the first and others evenly spread that together hold so many values, at least one."""
    total = sum(sizes)
    if total <= most:
        return list(pieces)
    keep = max(int(len(pieces) * most / total), 1)
    at = np.unique(np.linspace(0, len(pieces) - 1, keep).astype(int))
    return [pieces[k] for k in at.tolist()]


@dataclass
class _Table:
    """Statistics of one piece while they are read."""

    names: tuple[str, ...]
    values: dict[str, Float32] = field(default_factory=dict)
    present: dict[str, Bool] = field(default_factory=dict)
    scalars: dict[str, tuple[Float64, Bool]] = field(default_factory=dict)

    def scalar(self, name: str, values: Float64, present: Bool | None, stat_row: Int64) -> None:
        """Adds a scalar, of the steps that carry statistics."""
        there = np.ones(len(values), bool) if present is None else present
        self.scalars[name] = values[stat_row], there[stat_row]

    def take(self, stat: str, part: raw.StatRows) -> None:
        """Adds some tensors of a statistic."""
        rows = len(part.step)
        if stat not in self.values:
            self.values[stat] = np.zeros((rows, len(self.names)), np.float32)
            self.present[stat] = np.zeros((rows, len(self.names)), bool)
        first = self.names.index(part.names[0])
        columns = slice(first, first + len(part.names))
        self.values[stat][:, columns] = part.values
        self.present[stat][:, columns] = True if part.present is None else part.present

    def batch(self, step: Int64) -> Batch:
        scalars = np.zeros((len(step), len(self.scalars)))
        present = np.zeros(scalars.shape, bool)
        for k, (values, there) in enumerate(self.scalars.values()):
            scalars[:, k], present[:, k] = values, there
        return Batch(
            step=step,
            time=np.full(len(step), np.nan),
            scalar_names=tuple(self.scalars),
            scalars=scalars,
            scalars_present=present,
            tensor_names=self.names,
            stat_row=np.arange(len(step)),
            stats=self.values,
            stats_present=self.present,
        )

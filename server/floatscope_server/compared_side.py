"""One stored run as the engine's comparison takes it: its loss by step, and statistics of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.batch import Bool, Float64, Int64
from floatscope.protocol.names import MAX_STEP
from floatscope_diagnostics.compare.side import EXTRAS, LARGEST, Side
from floatscope_diagnostics.compare.tensor_log import KEPT, TensorLog
from floatscope_diagnostics.compare.traces import TRACED, Trace, trace_of
from floatscope_server.services import Services
from floatscope_server.store import raw, runs, series_reads, stretches
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.series_reads import View
from floatscope_server.store.stretches import Span, Stretch
from floatscope_server.stored_batches import logged, stat_batches

STATS = (*KEPT, "nan_count", "inf_count")
FORMAT = "floatscope"


@dataclass(frozen=True)
class Extent:
    """Steps to compare, both included; None: no limit."""

    first: int | None = None
    last: int | None = None

    def span(self) -> Span:
        return Span(self.first or 0, MAX_STEP if self.last is None else self.last)


@dataclass(frozen=True, eq=False)
class LossesOf:
    """A run's losses in one transaction."""

    c: Connection
    services: Services
    run: RunRecord

    def side(self, extent: Extent) -> Side | None:
        """The run without its tensors, read from its lowest rank; None if it logs no loss there."""
        source = _source(self.c, self.services, self.run, self._rank())
        seen = series_reads.view(source, extent.span())
        names = ("loss", *EXTRAS, *TRACED)
        step, columns = _scalars(seen, names)
        has_loss = ~np.isnan(columns["present"])
        if not has_loss.any():
            return None
        loss = columns["loss"][has_loss]
        finite = np.isfinite(loss)
        return Side(
            label=self.run.run_id,
            format=FORMAT,
            run=self.services.descriptions.get(self.c, self.run),
            step=step[has_loss],
            loss=np.where(finite, np.clip(loss, -LARGEST, LARGEST), loss),
            data_id=columns["data_id"][has_loss],
            loss_scale=columns["loss_scale"][has_loss],
            lr=columns["lr"][has_loss],
            tensors=TensorLog(),
            traces=traces(step, columns),
        )

    def scalars(self, names: Sequence[str], extent: Extent) -> Mapping[str, Trace]:
        """Any scalars of the run, each on the steps at which it was logged."""
        source = _source(self.c, self.services, self.run, self._rank())
        step, columns = _scalars(series_reads.view(source, extent.span()), ("loss", *names))
        return {name: trace_of(step, columns[name]) for name in names}

    def _rank(self) -> int:
        found = runs.positions(self.c, self.run.id)
        return found[0].rank if found else 0


def traces(step: Int64, columns: Mapping[str, Float64]) -> Mapping[str, Trace]:
    """What the decision looks at beside the loss, of that which was logged."""
    found = {name: trace_of(step, columns[name]) for name in TRACED}
    return {name: trace for name, trace in found.items() if len(trace)}


def _source(c: Connection, services: Services, run: RunRecord, rank: int) -> Source:
    return Source(c, run.id, rank, services.tensor_tables, services.objects, services.warm)


def _scalars(seen: View, names: Sequence[str]) -> tuple[Int64, Mapping[str, Float64]]:
    """Steps [N], ascending, each once, and each scalar [N], NaN where it was not logged; ``present``: 1 where
    a loss was, NaN elsewhere.
    """
    of_piece = seen.of_piece()
    pieces = [piece for piece in seen.pieces if piece.number in of_piece]
    steps: list[Int64] = []
    rows: dict[str, list[Float64]] = {name: [] for name in (*names, "present")}
    found: dict[tuple[int, str], tuple[Float64, Bool | None]] = {
        (piece.number, name): (values, present)
        for piece, name, values, present in raw.scalars(seen.source, names, pieces)
    }
    for piece, step in raw.steps(seen.source, pieces):
        shown = _shown(step, of_piece[piece.number])
        steps.append(step[shown])
        for name in names:
            values, present = found.get((piece.number, name), (None, None))
            column = np.full(len(step), np.nan) if values is None else values
            there = np.full(len(step), values is not None) if present is None else present
            rows[name].append(np.where(there, column, np.nan)[shown])
            if name == "loss":
                rows["present"].append(np.where(there, 1.0, np.nan)[shown])
    if not steps:
        return np.empty(0, np.int64), {name: np.empty(0) for name in rows}
    whole = np.concatenate(steps)
    order = np.argsort(whole, kind="stable")
    return whole[order], {name: np.concatenate(parts)[order] for name, parts in rows.items()}


def _shown(step: Int64, inside: Sequence[Stretch]) -> Bool:
    return stretches.which(step, step, inside)[1]


@dataclass(frozen=True, eq=False)
class SeenTensors:
    """read, logged: steps with statistics that were read, and that there are, about."""

    log: TensorLog
    read: int
    logged: int


def values_of(c: Connection, services: Services, run: RunRecord) -> int:
    """Values of statistics that a comparison would read of the run, about, if it read all."""
    source = _source(c, services, run, LossesOf(c, services, run)._rank())
    seen = series_reads.view(source, Extent().span(), with_tensors=True)
    stats = len(logged(c, run, STATS))
    return sum(piece.rows * len(source.tensor_names(piece)) for piece in seen.pieces) * stats


def tensors_of(
    c: Connection, services: Services, run: RunRecord, extent: Extent, *, most_values: int
) -> SeenTensors:
    """Statistics of the run's lowest rank, of at most so many values."""
    source = _source(c, services, run, LossesOf(c, services, run)._rank())
    found = stat_batches(source, extent.span(), logged(c, run, STATS), most_values=most_values)
    log = TensorLog()
    for batch, shown in found.batches:
        log.add(batch, shown)
    return SeenTensors(log, found.read, found.logged)

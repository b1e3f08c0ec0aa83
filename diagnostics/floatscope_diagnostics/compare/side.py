"""One of the two runs as the comparison needs it: its loss by step and its tensor statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.compare.tensor_log import TensorLog
from floatscope_diagnostics.compare.traces import TRACED, Trace, trace_of
from floatscope_diagnostics.readers.run_log import RunLog, UnreadableLog

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

EXTRAS = ("data_id", "loss_scale", "lr")
LARGEST = 1e30  # as in the engine: no loss of a training run lies beyond
MAX_STEPS = 20_000_000  # of one run: 1.5 GiB of scalars


@dataclass(frozen=True, eq=False)
class Side:
    """A run.

    label: how the user named it.  step: int64 [N], ascending, each once.  loss: float64 [N], may hold NaN
    and Inf.  data_id, loss_scale, lr: float64 [N], NaN where not logged.  repeated: steps logged more than
    once, of which the last counts.  traces: other scalars (``TRACED``) on steps of their own.
    """

    label: str
    format: str
    run: RunInfo
    step: Int64
    loss: Float64
    data_id: Float64
    loss_scale: Float64
    lr: Float64
    tensors: TensorLog
    repeated: int = 0
    notes: tuple[str, ...] = ()
    traces: Mapping[str, Trace] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.run.name or self.label


def side_of(label: str, log: RunLog, *, first: int | None = None, last: int | None = None) -> Side:
    """Reads a run to its end, or its steps from ``first`` to ``last``. Of several ranks the lowest counts.

    Raises UnreadableLog when it logs no loss.
    """
    tensors = TensorLog()
    parts: list[Batch] = []
    lowest: int | None = None
    count = 0
    for rank, batch in log.batches:
        if len(batch) == 0 or (lowest is not None and rank > lowest):
            continue
        if lowest is None or rank < lowest:
            lowest, parts, tensors, count = rank, [], TensorLog(), 0
        inside = _between(batch.step, first, last)
        tensors.add(batch, inside)
        parts.append(_scalars_only(batch))
        count += len(batch)
        if count > MAX_STEPS:
            raise UnreadableLog(f"more than {MAX_STEPS:,} steps; name a range with --from and --to")
    step = np.concatenate([b.step for b in parts]) if parts else np.empty(0, np.int64)
    loss, has_loss = _column(parts, "loss")
    keep = has_loss & _between(step, first, last)
    if not keep.any():
        where = "" if first is None and last is None else " between --from and --to"
        raise UnreadableLog(f"logs no loss{where}; a comparison needs step and loss")
    extras = []
    for name in EXTRAS:
        values, present = _column(parts, name)
        extras.append(np.where(present, values, np.nan)[keep])
    step, loss = step[keep], _tamed(loss[keep])
    order = np.argsort(step, kind="stable")
    newest = np.append(np.diff(step[order]) != 0, True)
    chosen = order[newest]
    return Side(
        label=label,
        format=log.format,
        run=log.run,
        step=step[chosen],
        loss=loss[chosen],
        data_id=extras[0][chosen],
        loss_scale=extras[1][chosen],
        lr=extras[2][chosen],
        tensors=tensors,
        repeated=len(step) - len(chosen),
        notes=log.tally.all_notes(),
        traces=_traces(parts, first, last),
    )


def _traces(parts: Iterable[Batch], first: int | None, last: int | None) -> Mapping[str, Trace]:
    out = {}
    for name in TRACED:
        having = [b for b in parts if name in b.scalar_names]
        if not having:
            continue
        step = np.concatenate([b.step for b in having])
        values, present = _column(having, name)
        out[name] = trace_of(step, values, present & _between(step, first, last))
    return out


def _tamed(loss: Float64) -> Float64:
    """Finite losses beyond LARGEST at LARGEST, so that sums and squares of them are finite."""
    return np.where(np.isfinite(loss), np.clip(loss, -LARGEST, LARGEST), loss)


def _between(step: Int64, first: int | None, last: int | None) -> NDArray[np.bool_]:
    inside = np.ones(len(step), bool)
    if first is not None:
        inside &= step >= first
    if last is not None:
        inside &= step <= last
    return inside


def _scalars_only(batch: Batch) -> Batch:
    """The batch without what the tensor log has taken and with the scalars that are read."""
    names = tuple(n for n in ("loss", *EXTRAS, *TRACED) if n in batch.scalar_names)
    kept = [batch.scalar_names.index(n) for n in names]
    return Batch(batch.step, batch.time, names, batch.scalars[:, kept], batch.scalars_present[:, kept])


def _column(parts: Iterable[Batch], name: str) -> tuple[Float64, NDArray[np.bool_]]:
    columns = [b.scalar(name) for b in parts]
    if not columns:
        return np.empty(0), np.empty(0, bool)
    return np.concatenate([v for v, _ in columns]), np.concatenate([m for _, m in columns])

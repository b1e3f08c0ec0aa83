"""Rows of tensor statistics for tests of the detectors: plain arrays in, symptoms out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.detectors.ranks import RankBoard
from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.stream import RankStream

Float64 = NDArray[np.float64]
RECIPE = {"name": "fp8_delayed_scaling", "amax_history_len": 16, "amax_compute_algo": "max"}


def names_of(layers: int, roles: Sequence[str] = ("input", "weight", "grad_output")) -> tuple[str, ...]:
    return tuple(f"layers.{k:04d}/{role}" for k in range(layers) for role in roles)


def info_of(names: Sequence[str], recipe: Mapping[str, object] | None = None) -> RunInfo:
    table = {n: {"format": "e5m2" if n.endswith("grad_output") else "e4m3"} for n in names}
    recipe = RECIPE if recipe is None else dict(recipe)
    return RunInfo.from_json({"recipe": recipe, "tensors": table, "ranks": 1})


def batch_of(
    names: Sequence[str],
    stats: Mapping[str, Float64],
    *,
    steps: Sequence[int] | None = None,
    scalars: Mapping[str, Sequence[float]] | None = None,
) -> Batch:
    """A batch of the statistics, arrays (rows, tensors) with NaN where missing."""
    rows = len(next(iter(stats.values())))
    at = np.arange(1000, 1000 + rows) if steps is None else np.asarray(steps, np.int64)
    table = {} if scalars is None else dict(scalars)
    values = np.array([table[k] for k in table], np.float64).T.reshape(rows, len(table))
    return Batch(
        step=at,
        time=np.full(rows, np.nan),
        scalar_names=tuple(table),
        scalars=values,
        scalars_present=~np.isnan(values),
        tensor_names=tuple(names),
        stat_row=np.arange(rows),
        stats={k: v.astype(np.float32) for k, v in stats.items()},
        stats_present={k: ~np.isnan(v) for k, v in stats.items()},
    )


def stream_of(names: Sequence[str], recipe: Mapping[str, object] | None = None) -> RankStream:
    return RankStream(0, Columns(info_of(names, recipe)), RankBoard())


def symptoms(stream: RankStream, batch: Batch, *, chunk: int = 64) -> list[Symptom]:
    """Feeds the batch in pieces and returns all symptoms so far."""
    for start in range(0, len(batch), chunk):
        stream.feed(batch.rows(start, min(start + chunk, len(batch))), segment=None)
    return stream.symptoms()


def signals(found: Sequence[Symptom]) -> set[str]:
    return {s.signal for s in found}

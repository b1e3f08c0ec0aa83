"""Transformer Engine's debug statistics that were logged to a tracker instead of its own files: curves named
``decoder.1.mlp.fc1_activation_std``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.run_log import Batcher, Tally
from floatscope_diagnostics.readers.series import Series
from floatscope_diagnostics.readers.te_names import call_orders, is_statistic, our_stats, tensor_and_stat


def statistics(series: Series) -> list[str]:
    """The curves that are statistics of a tensor, in the order of their first points."""
    return [n for n in series.names if is_statistic(n)]


def info_of(names: list[str]) -> RunInfo:
    """The run's tensors and their order."""
    found = (tensor_and_stat(n) for n in names)
    return RunInfo(tensors=call_orders(f[0] for f in found if f is not None))


def batches(
    series: Series, names: list[str], mapping: Mapping[str, str], tally: Tally
) -> Iterator[tuple[int, Batch]]:
    """The rows, with ``names`` as statistics of tensors and the other curves as scalars."""
    batcher = Batcher(tally)
    placed = {n: found for n in names if (found := tensor_and_stat(n)) is not None}
    count = 0
    for _, batch in series.batches({}):
        for t in range(len(batch)):
            row: dict[str, Any] = {"step": int(batch.step[t])}
            if batch.time[t] == batch.time[t]:
                row["time"] = float(batch.time[t])
            tensors: dict[str, dict[str, float]] = {}
            for k in batch.scalars_present[t].nonzero()[0].tolist():
                name, value = batch.scalar_names[k], float(batch.scalars[t, k])
                if name in placed:
                    tensor, stat = placed[name]
                    tensors.setdefault(tensor, {})[stat] = value
                else:
                    row[mapping.get(name, name)] = value
            if tensors:
                row["tensors"] = {name: our_stats(stats) for name, stats in tensors.items()}
            count += 1
            yield from batcher.add(count, row)
    yield from batcher.flush()

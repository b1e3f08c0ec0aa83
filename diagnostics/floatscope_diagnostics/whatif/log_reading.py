"""The stored histograms of a log file, nearest to a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.whatif.selecting import NO_HISTOGRAMS, Selection, Stored, check_found
from floatscope_diagnostics.whatif.stored import READ_STATS


@dataclass(frozen=True)
class Found:
    """tensors: in the order of the network.  notes: what a reader should know of the choice."""

    run: str
    tensors: tuple[Stored, ...]
    notes: tuple[str, ...] = ()


def read_log(path: str, selection: Selection) -> Found:
    """Each tensor's histogram at the newest sampled step at or before the one asked for, else the next.

    Reads the whole file once; of several runs the first, of several ranks the lowest that has histograms.
    Raises UnreadableLog with what to do.
    """
    with open_runs(path) as runs:
        log = next(runs, None)
        if log is None:
            raise UnreadableLog("holds no run")
        kept: dict[int, dict[str, Stored]] = {}
        known: set[str] = set()
        for rank, batch in log.batches:
            known.update(batch.tensor_names)
            if len(batch.hist_row):
                _keep(kept.setdefault(rank, {}), batch, selection)
        several = next(runs, None) is not None
        table = log.run.tensors
    ranks = sorted(rank for rank, found in kept.items() if found)
    if not kept:
        if not selection.is_everything and known and not any(selection.takes(name) for name in known):
            check_found((), known, selection)
        raise UnreadableLog(NO_HISTOGRAMS)
    found = kept[ranks[0]] if ranks else {}
    check_found(found, known, selection)
    notes = ["the file holds several runs; the first is answered for"] if several else []
    if len(ranks) > 1:
        notes.append(f"of {len(ranks)} ranks with histograms rank {ranks[0]} is answered for")
    tensors = [replace(one, facts=table.get(name, {})) for name, one in found.items()]
    return Found(log.run.name or path, in_order(tensors), tuple(notes))


def in_order(tensors: list[Stored]) -> tuple[Stored, ...]:
    """As the network calls them."""
    return tuple(sorted(tensors, key=lambda one: (_order(one.facts), one.name)))


def _order(facts: Mapping[str, Any]) -> int:
    order = facts.get("call_order")
    return order if isinstance(order, int) else 2**31


def _keep(found: dict[str, Stored], batch: Batch, selection: Selection) -> None:
    """Puts the batch's histograms in place of those that are farther from the step."""
    at = {int(row): d for d, row in enumerate(batch.stat_row)}
    asked = [(s, name) for s, name in enumerate(batch.tensor_names) if selection.takes(name)]
    for h, row in enumerate(batch.hist_row):
        step = int(batch.step[row])
        counts = batch.hist_log2[h]
        filled = counts.any(axis=1)
        for s, name in asked:
            before = found.get(name)
            is_late = selection.step is not None and step > selection.step
            if not filled[s] or (is_late and before is not None):
                continue
            stats = _stats(batch, at.get(int(row)), s)
            found[name] = Stored(name, step, counts[s].tolist(), stats)


def _stats(batch: Batch, d: int | None, s: int) -> dict[str, float | None]:
    if d is None:
        return {}
    return {
        stat: float(batch.stats[stat][d, s])
        for stat in READ_STATS
        if stat in batch.stats and bool(np.asarray(batch.stats_present[stat][d, s]))
    }

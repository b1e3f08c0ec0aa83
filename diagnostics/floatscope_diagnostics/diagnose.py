"""Diagnosis of files: reads inputs, feeds engines, gathers verdicts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.curves import Curves
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.gather import Gathered, Reading, Unread, visit_runs
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.rule_settings import RuleSettings
from floatscope_diagnostics.verdict import SCHEMA, STATUSES, Source, Verdict


@dataclass(frozen=True)
class Diagnosed:
    """One run with what a report needs beside its verdict.

    number: which run of its input, from 1.  seconds: it took to read and judge.
    """

    verdict: Verdict
    run: RunInfo
    curves: Curves
    seconds: float
    number: int = 1


@dataclass(frozen=True)
class Baseline:
    """Losses of a baseline run: int64 [N], float64 [N]; data_id, lr: float64 [N], NaN where not logged."""

    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    data_id: NDArray[np.float64]
    lr: NDArray[np.float64]


def read_baseline(path: str, *, format_name: str | None = None) -> Baseline:
    """The losses of the first run in a file. Raises UnreadableLog, also when it logs no loss."""
    columns: list[list[NDArray[np.float64]]] = [[], [], []]
    steps: list[NDArray[np.int64]] = []
    with open_runs(path, format_name=format_name) as runs:
        first = next(runs, None)
        for rank, batch in () if first is None else first.batches:
            loss, here = batch.scalar("loss")
            if rank != 0 or not here.any():
                continue
            ident, has_id = batch.scalar("data_id")
            lr, has_lr = batch.scalar("lr")
            steps.append(batch.step[here])
            for column, values in zip(
                columns, (loss, np.where(has_id, ident, np.nan), np.where(has_lr, lr, np.nan)), strict=True
            ):
                column.append(values[here])
    if not steps:
        raise UnreadableLog("the baseline logs no loss; pass a log with step and loss")
    step = np.concatenate(steps)
    order = np.argsort(step, kind="stable")
    return Baseline(step[order], *(np.concatenate(column)[order] for column in columns))


def diagnose_paths(
    paths: Sequence[str],
    *,
    format_name: str | None = None,
    baseline: Baseline | None = None,
    reading: Reading | None = None,
    settings: RuleSettings | None = None,
) -> tuple[list[Diagnosed], list[Unread]]:
    """All runs of all inputs, in order; several files of one run that differ only in rank are one run.

    settings: what is set for the rules.
    """
    done: list[Diagnosed] = []
    how = reading or Reading(format_name=format_name)
    unread = visit_runs(paths, lambda found: done.append(_diagnose(found, baseline, settings)), reading=how)
    return done, unread


def _diagnose(found: Gathered, baseline: Baseline | None, settings: RuleSettings | None) -> Diagnosed:
    run = found.run
    engine = Engine(run, settings=settings)
    curves = Curves()
    if baseline is not None:
        engine.feed_baseline(baseline.step, baseline.loss, baseline.data_id, baseline.lr)
    for rank, batch in found.batches():
        engine.feed(batch, rank=rank)
        curves.add(rank, batch)
    ended = found.run  # a reader may learn only at the end how the run ended
    if (ended.status, ended.reason) != (run.status, run.reason):
        engine.finish(ended.status, ended.reason)
    verdict = engine.verdict()
    if verdict.source.steps == 0 and ended.status is None:
        tally = found.logs[0].tally
        raise UnreadableLog("holds no step that could be read. " + (tally.first_skipped or ""))
    source = _understood(verdict.source, found)
    seconds = time.monotonic() - found.started
    return Diagnosed(replace(verdict, source=source), ended, curves, seconds, found.number)


def _understood(source: Source, found: Gathered) -> Source:
    """What was judged, with what the readers met on their way."""
    tallies = [log.tally for log in found.logs]
    mapping = {theirs: ours for tally in tallies for theirs, ours in tally.mapping.items()}
    counted = [tally.steps_from for tally in tallies if tally.steps_from]
    notes = [note for tally in tallies for note in tally.notes]
    return replace(
        source,
        path=found.label,
        format=found.logs[0].format,
        mapping=tuple(mapping.items()),
        skipped_lines=sum(tally.skipped for tally in tallies),
        first_skipped=next((t.first_skipped for t in tallies if t.first_skipped is not None), None),
        notes=tuple(dict.fromkeys((*counted, *source.notes, *notes, *found.notes))),
    )


def document(done: Sequence[Diagnosed], unread: Sequence[Unread]) -> dict[str, Any]:
    """The JSON document: one verdict, or several runs with the inputs that could not be read.

    Its status is null where no run could be judged.
    """
    if len(done) == 1 and not unread:
        return done[0].verdict.to_json()
    worst = max((STATUSES.index(d.verdict.status) for d in done), default=None)
    return {
        "schema": SCHEMA,
        "status": None if worst is None else STATUSES[worst],
        "runs": [d.verdict.to_json() for d in done],
        "unread": [{"path": u.path, "error": u.error} for u in unread],
    }

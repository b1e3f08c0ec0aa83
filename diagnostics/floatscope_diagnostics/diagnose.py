"""Diagnosis of files: reads inputs, feeds engines, gathers verdicts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.curves import Curves
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.run_log import RunLog, UnreadableLog
from floatscope_diagnostics.verdict import SCHEMA, STATUSES, Verdict


@dataclass(frozen=True)
class Diagnosed:
    """One run with what a report needs beside its verdict."""

    verdict: Verdict
    run: RunInfo
    curves: Curves
    seconds: float


@dataclass(frozen=True)
class Unread:
    """An input that could not be read, and why."""

    path: str
    error: str


@dataclass(frozen=True)
class Baseline:
    """Losses of a baseline run: int64 [N], float64 [N]; data_id, lr: float64 [N], NaN where not logged."""

    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    data_id: NDArray[np.float64]
    lr: NDArray[np.float64]


def read_baseline(path: str, *, format_name: str | None = None) -> Baseline:
    """The losses of the first run in a file. Raises UnreadableLog, also when it logs no loss."""
    steps: list[int] = []
    losses: list[float] = []
    ids: list[float] = []
    rates: list[float] = []
    with open_runs(path, format_name=format_name) as runs:
        first = next(runs, None)
        for rank, batch in () if first is None else first.batches:
            if rank != 0:
                continue
            loss, here = batch.scalar("loss")
            ident, has_id = batch.scalar("data_id")
            lr, has_lr = batch.scalar("lr")
            for t in np.flatnonzero(here).tolist():
                steps.append(int(batch.step[t]))
                losses.append(float(loss[t]))
                ids.append(float(ident[t]) if has_id[t] else float("nan"))
                rates.append(float(lr[t]) if has_lr[t] else float("nan"))
    if not steps:
        raise UnreadableLog("the baseline logs no loss; pass a log with step and loss")
    order = np.argsort(np.array(steps), kind="stable")
    columns = (np.array(values)[order] for values in (losses, ids, rates))
    return Baseline(np.array(steps)[order], *columns)


def diagnose_paths(
    paths: Sequence[str], *, format_name: str | None = None, baseline: Baseline | None = None
) -> tuple[list[Diagnosed], list[Unread]]:
    """All runs of all inputs, in order; several files of one run that differ only in rank are one run."""
    done: list[Diagnosed] = []
    unread: list[Unread] = []
    groups: list[tuple[str, list[str]]] = [(path, [path]) for path in paths]
    if len(paths) > 1:
        groups = _group_ranks(paths, format_name)
    for label, members in groups:
        try:
            with ExitStack() as stack:
                opened = [stack.enter_context(open_runs(m, format_name=format_name)) for m in members]
                if len(members) == 1:
                    for log in opened[0]:
                        done.append(_diagnose(label, log.run, [log], baseline))
                else:
                    logs = [next(runs) for runs in opened]
                    done.append(_diagnose(label, logs[0].run, logs, baseline))
        except UnreadableLog as error:
            unread.append(Unread(label, str(error)))
    return done, unread


def _group_ranks(paths: Sequence[str], format_name: str | None) -> list[tuple[str, list[str]]]:
    """Puts files together whose run has the same name and whose first steps come from different ranks."""
    by_name: dict[str, list[tuple[int, str]]] = {}
    groups: list[tuple[str, list[str]]] = []
    for path in paths:
        name, rank = (None, 0) if path == "-" else _name_and_rank(path, format_name)
        taken = by_name.get(name, []) if name is not None else []
        if name is None or any(r == rank for r, _ in taken):
            groups.append((path, [path]))
            continue
        if taken:
            next(g for g in groups if g[0] == taken[0][1])[1].append(path)
        else:
            groups.append((path, [path]))
        by_name.setdefault(name, []).append((rank, path))
    return groups


def _name_and_rank(path: str, format_name: str | None) -> tuple[str | None, int]:
    try:
        with open_runs(path, format_name=format_name) as runs:
            log = next(runs, None)
            if log is None or log.run.name is None:
                return None, 0
            first = next(log.batches, None)
            return log.run.name, first[0] if first is not None else 0
    except UnreadableLog:
        return None, 0


def _diagnose(label: str, run: RunInfo, logs: Sequence[RunLog], baseline: Baseline | None) -> Diagnosed:
    started = time.monotonic()
    if run.ranks is None and len(logs) > 1:
        run = replace(run, ranks=len(logs))
    engine = Engine(run)
    curves = Curves()
    if baseline is not None:
        engine.feed_baseline(baseline.step, baseline.loss, baseline.data_id, baseline.lr)
    for rank, batch in _round_robin([log.batches for log in logs]):
        engine.feed(batch, rank=rank)
        curves.add(rank, batch)
    verdict = engine.verdict()
    if verdict.source.steps == 0 and run.status is None:
        tally = logs[0].tally
        raise UnreadableLog("holds no step that could be read. " + (tally.first_skipped or ""))
    notes = tuple(n for log in logs for n in log.tally.all_notes())
    source = replace(
        verdict.source,
        path=label,
        format=logs[0].format,
        skipped_lines=sum(log.tally.skipped for log in logs),
        notes=(*verdict.source.notes, *notes),
    )
    return Diagnosed(replace(verdict, source=source), run, curves, time.monotonic() - started)


def _round_robin(streams: Sequence[Iterator[tuple[int, Batch]]]) -> Iterator[tuple[int, Batch]]:
    """One batch of each file in turn, so that ranks stay together."""
    left = list(streams)
    while left:
        for stream in list(left):
            item = next(stream, None)
            if item is None:
                left.remove(stream)
            else:
                yield item


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

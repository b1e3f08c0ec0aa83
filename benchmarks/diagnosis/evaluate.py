"""Diagnoses what is stored and judges the answers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

from benchmarks.diagnosis.outcome import PRELUDE_STEPS, Judged, judge_base, judge_fork
from benchmarks.diagnosis.plan import Entry, Size, entries
from benchmarks.diagnosis.settings import Base
from benchmarks.diagnosis.store import Store, read_run
from floatscope.protocol.batch import Batch
from floatscope_diagnostics.calibration import Calibration


def evaluate(
    store: Store,
    size: Size,
    *,
    split: str | None = None,
    jobs: int = 1,
    calibration: Calibration | None = None,
) -> Iterator[Judged]:
    """Judges the runs of the library that are stored, in its order. A healthy run that is still growing
    counts as far as it is.

    jobs: processes, each with one healthy run and its forks at a time.  calibration: default the packaged
    one.
    """
    library = list(entries(size))
    wanted = [i for i, entry in enumerate(library) if split is None or entry.base.split == split]
    if jobs <= 1:
        for index in wanted:
            yield from evaluate_entry(store, library[index], calibration=calibration)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _start, (store, size, calibration)) as pool:
        for runs in pool.imap(_judge, wanted):
            yield from runs


_worker: tuple[Store, list[Entry], Calibration | None] | None = None
"""What a worker process judges with; None in the process that was started by hand."""


def _start(store: Store, size: Size, calibration: Calibration | None) -> None:
    global _worker  # the only way into a pool's worker
    _worker = (store, list(entries(size)), calibration)


def _judge(index: int) -> list[Judged]:
    if _worker is None:
        raise RuntimeError("not a worker process")
    store, library, calibration = _worker
    return list(evaluate_entry(store, library[index], calibration=calibration))


def evaluate_entry(store: Store, entry: Entry, *, calibration: Calibration | None = None) -> Iterator[Judged]:
    """A healthy run and its forks."""
    base = entry.base
    healthy = store.load_base(base)
    if healthy is None:
        return
    reference = reference_of(store, base)
    yield judge_base(base, healthy, reference=reference, calibration=calibration)
    for scenario in entry.scenarios:
        path = store.fork_path(base, scenario.id)
        if not path.exists():
            continue
        step = scenario.step
        low, at, high = (
            int(healthy.batch.step.searchsorted(s))
            for s in (step - PRELUDE_STEPS, step, step + scenario.case.horizon)
        )
        yield judge_fork(
            base,
            scenario,
            read_run(path),
            prelude=healthy.batch.rows(low, at),
            pair=healthy.batch.rows(at, high),
            reference=reference,
            calibration=calibration,
        )


def reference_of(store: Store, base: Base) -> Batch | None:
    """The bf16 run with the same seed, shape and length, if the run is paired and that is stored whole."""
    if base.pairing == "none":
        return None
    twin = Base(shape=base.shape, recipe="bf16", seed=base.seed, steps=base.steps)
    if not store.is_complete(twin):
        return None
    run = store.load_base(twin)
    return None if run is None else run.batch

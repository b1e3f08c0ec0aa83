"""Diagnoses what is stored and judges the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.diagnosis.outcome import PRELUDE_STEPS, Judged, judge_base, judge_fork
from benchmarks.diagnosis.plan import Entry
from benchmarks.diagnosis.settings import Base
from benchmarks.diagnosis.store import Store, read_run
from floatscope.protocol.batch import Batch


def evaluate(store: Store, library: Iterable[Entry], *, split: str | None = None) -> Iterator[Judged]:
    """Judges the runs of the library that are stored. A healthy run that is still growing counts as far as
    it is.
    """
    for entry in library:
        if split is None or entry.base.split == split:
            yield from evaluate_entry(store, entry)


def evaluate_entry(store: Store, entry: Entry) -> Iterator[Judged]:
    """A healthy run and its forks."""
    base = entry.base
    healthy = store.load_base(base)
    if healthy is None:
        return
    reference = reference_of(store, base)
    yield judge_base(base, healthy, reference=reference)
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

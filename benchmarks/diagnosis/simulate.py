"""Trains the library's runs with the bundled trainer and stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.diagnosis.cases import Case, Place, Scenario
from benchmarks.diagnosis.data_faults import LabelNoise
from benchmarks.diagnosis.recorder import Recorder
from benchmarks.diagnosis.settings import Base
from benchmarks.diagnosis.store import CHUNK_STEPS, Store, StoredRun, chunk_ends, write_run
from floatscope.protocol.runinfo import RunInfo
from floatscope_trainer.checkpoint import load_checkpoint
from floatscope_trainer.config import TrainConfig
from floatscope_trainer.data import CharText, load_text
from floatscope_trainer.emulated.backend import EmulatedBackend
from floatscope_trainer.faults.catalog import make_fault
from floatscope_trainer.faults.fault import Fault, Scene
from floatscope_trainer.faults.injection import parse_injection
from floatscope_trainer.training import Training

MAX_NONFINITE_STEPS = 8  # a run whose loss stays NaN has said all it will say


@lru_cache(maxsize=1)
def text() -> CharText:
    """The trainer's bundled text; every run of the library reads it."""
    return load_text((), context=64)


def prepare(config: TrainConfig) -> tuple[Training, Scene]:
    """A run before its first step, and what faults reach of it."""
    torch.set_num_threads(1)
    backend = EmulatedBackend(config)
    training = Training(config, backend=backend, text=text())
    scene = Scene(
        model=backend.model,
        optimizer=training.optimizer,
        layers=dict(backend.layers),
        quantizers=backend.quantizers(),
        vocab_size=config.model.vocab_size,
        seed=config.seed,
    )
    return training, scene


def run_base(base: Base, store: Store) -> int:
    """Trains what is missing of a healthy run, piece by piece. Returns the number of steps trained."""
    done = store.chunks(base)
    left = chunk_ends(base)[len(done) :]
    if not left:
        return 0
    config = base.config(vocab_size=text().vocab_size)
    training, scene = prepare(config)
    if done:
        training.restore(load_checkpoint(store.checkpoint_path(base, done[-1])))
    training.faults = background(base, scene)
    trained = 0
    recorder = Recorder(training, layers=scene.layers)
    for end in left:
        while training.next_step < end:
            recorder.step()
            trained += 1
        training.save(store.checkpoint_path(base, end), run_id=base.id)
        run = StoredRun(
            info=describe(base, config, recorder), batch=recorder.take(), facts={"cause": "healthy"}
        )
        write_run(store.chunk_path(base, end), run)
    recorder.close()
    return trained


def run_fork(base: Base, scenario: Scenario, store: Store) -> int:
    """Trains one scenario from its checkpoint and stores its steps from there on. Returns their number."""
    case, step = scenario.case, scenario.step
    config = base.config(vocab_size=text().vocab_size)
    if case.cast is not None:
        config = replace(config, precision=replace(config.precision, cast=case.cast))
    if case.other_data:
        config = replace(config, seed=base.seed + 500_000)
    training, scene = prepare(config)
    training.restore(load_checkpoint(store.checkpoint_path(base, step)))
    training.faults = [
        *background(base, scene),
        *faults_of(case, scenario, training, scene, store=store, base=base),
    ]
    recorder = Recorder(training, layers=scene.layers)
    status, reason, nonfinite = "running", None, 0
    for _ in range(case.horizon):
        try:
            record = recorder.step()
        except IndexError as error:
            status, reason = "crashed", f"IndexError at step {training.next_step}: {error}"
            break
        if case.resumed and record.step == step:
            recorder.mark("resumed", 1.0)
        nonfinite = nonfinite + 1 if record.loss != record.loss else 0
        if nonfinite >= MAX_NONFINITE_STEPS:
            break
    recorder.close()
    info = replace(describe(base, config, recorder), status=status, reason=reason)
    batch = recorder.take()
    for edit in case.edits:
        batch = edit(batch, step)
    facts: dict[str, Any] = {"case": case.name, "cause": case.cause, "step": step, "layer": scenario.layer}
    write_run(store.fork_path(base, scenario.id), StoredRun(info=info, batch=batch, facts=facts))
    return len(batch)


def faults_of(
    case: Case, scenario: Scenario, training: Training, scene: Scene, *, store: Store, base: Base
) -> list[Fault]:
    """The scenario's faults, the trainer's and the library's own, aimed at its layer."""
    faults: list[Fault] = []
    for wanted in case.inject(scenario.step, scenario.layer):
        injection = parse_injection(wanted)
        faults.append(
            make_fault(injection, scene, first_step=training.next_step, steps=training.config.steps)
        )
    if case.build is not None:
        old: Mapping[str, Tensor] = {}
        if case.needs_old_weights:
            old = load_checkpoint(store.checkpoint_path(base, scenario.step - CHUNK_STEPS)).part("model.")
        place = Place(training, scene, step=scenario.step, layer=scenario.layer, old_weights=old)
        faults.append(case.build(place))
    return faults


def background(base: Base, scene: Scene) -> Sequence[Fault]:
    """What a flavour does to every step of a run; it is not a fault of it."""
    if base.flavour.label_noise == 0:
        return []
    return [LabelNoise(scene, step=0, share=base.flavour.label_noise)]


def describe(base: Base, config: TrainConfig, recorder: Recorder) -> RunInfo:
    """The run object. The injection is not in it: a diagnosis must not read the answer."""
    return RunInfo(
        name=base.id,
        recipe=config.precision.protocol_recipe(),
        tensors=recorder.tensors(),
        vocab_size=config.model.vocab_size,
        status="running",
    )

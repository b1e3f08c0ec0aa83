"""The cache: a kill at any moment loses at most the piece under way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.diagnosis import cases as cases_module
from benchmarks.diagnosis import store as store_module
from benchmarks.diagnosis.cases import Scenario
from benchmarks.diagnosis.evaluate import evaluate_entry
from benchmarks.diagnosis.other_cases import CONTROLS
from benchmarks.diagnosis.outcome import first_difference, loss_moves
from benchmarks.diagnosis.plan import CASES, Entry
from benchmarks.diagnosis.settings import Base
from benchmarks.diagnosis.simulate import run_base, run_fork
from benchmarks.diagnosis.store import CacheBusy, Store, StoredRun, joined, read_run, with_scalar, write_run
from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo

BASE = Base(shape="minimal", recipe="delayed-max-16", seed=1000, steps=36)


def batch(first: int, steps: int, *, amax: float = 1.0, extra: bool = False) -> Batch:
    names = ("loss", "more") if extra else ("loss",)
    return Batch(
        step=np.arange(first, first + steps),
        time=np.zeros(steps),
        scalar_names=names,
        scalars=np.full((steps, len(names)), 2.0),
        scalars_present=np.ones((steps, len(names)), bool),
        tensor_names=("a/input",),
        stat_row=np.arange(steps),
        stats={"amax": np.full((steps, 1), amax, np.float32)},
        stats_present={"amax": np.ones((steps, 1), bool)},
    )


INFO = RunInfo(name="r", tensors={"a/input": {"format": "e4m3", "call_order": 0}}, status="running")


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Healthy runs are stored every 18 steps."""
    for module in (store_module, cases_module):
        monkeypatch.setattr(module, "CHUNK_STEPS", 18)


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    write_run(path, StoredRun(info=INFO, batch=batch(5, 3, amax=np.inf), facts={"cause": "stall"}))
    back = read_run(path)
    assert back.info == INFO
    assert back.facts == {"cause": "stall"}
    assert back.batch.step.tolist() == [5, 6, 7]
    assert np.isinf(back.batch.stats["amax"]).all()
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_that_died_at_once_has_no_steps(tmp_path: Path) -> None:
    write_run(tmp_path / "a.run", StoredRun(info=INFO, batch=batch(5, 0), facts={}))
    assert len(read_run(tmp_path / "a.run").batch) == 0


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"a\.run: not a stored run .* delete it"):
        read_run(path)


def test_two_processes_cannot_write_into_one_cache(tmp_path: Path) -> None:
    with (
        Store(tmp_path).writing(),
        pytest.raises(CacheBusy, match="another process"),
        Store(tmp_path).writing(),
    ):
        pass
    with Store(tmp_path).writing():
        pass


def test_joined_keeps_a_scalar_that_one_part_lacks_missing() -> None:
    whole = joined([batch(0, 2), batch(2, 2, extra=True)])
    values, present = whole.scalar("more")
    assert whole.step.tolist() == [0, 1, 2, 3]
    assert present.tolist() == [False, False, True, True]
    assert values[2] == 2.0
    assert whole.stat_row.tolist() == [0, 1, 2, 3]


def test_with_scalar_sets_only_the_steps_given() -> None:
    values, present = with_scalar(batch(0, 3), "ref_loss", {1: 1.5, 9: 7.0}).scalar("ref_loss")
    assert present.tolist() == [False, True, False]
    assert values[1] == 1.5


def test_the_loss_moves_where_the_pair_differs_by_one_percent() -> None:
    pair = batch(10, 5)
    run = with_scalar(pair, "loss", {12: 2.019, 13: 2.021})
    assert loss_moves(run, pair) == 13
    assert loss_moves(with_scalar(pair, "loss", {11: float("nan")}), pair) == 11
    assert loss_moves(pair, pair) is None


def test_any_number_that_differs_makes_a_fault_visible() -> None:
    assert first_difference(batch(3, 4), batch(3, 4)) is None
    assert first_difference(batch(3, 4), batch(3, 4, amax=1.5)) == 3
    assert first_difference(batch(3, 0), batch(3, 4)) is None
    assert first_difference(with_scalar(batch(3, 4), "loss", {5: float("nan")}), batch(3, 4)) == 5


@pytest.mark.usefixtures("pieces")
def test_training_goes_on_behind_the_last_whole_piece_and_gives_the_same_run(tmp_path: Path) -> None:
    whole, broken = Store(tmp_path / "whole"), Store(tmp_path / "broken")
    assert run_base(BASE, whole) == 36
    assert run_base(BASE, broken) == 36
    broken.chunk_path(BASE, 36).unlink()  # a kill between the checkpoint and the steps that belong to it
    broken.chunk_path(BASE, 36).with_suffix(".partial").write_bytes(b"half")
    assert broken.chunks(BASE) == [18]
    assert not broken.is_complete(BASE)
    assert run_base(BASE, broken) == 18
    assert run_base(BASE, broken) == 0
    one, other = whole.load_base(BASE), broken.load_base(BASE)
    assert one is not None
    assert other is not None
    assert first_difference(one.batch, other.batch) is None
    assert one.batch.step.tolist() == list(range(36))


@pytest.mark.usefixtures("pieces")
def test_a_healthy_and_a_faulty_run_from_training_to_judgement(tmp_path: Path) -> None:
    case = next(c for c in CASES if c.name == "scale-nan")
    control = replace(next(c for c in CONTROLS if c.name == "clean-resume"), horizon=18)
    scenarios = (Scenario(case, step=18, layer="blocks.0.mlp.fc1"), Scenario(control, step=18, layer="-"))
    store = Store(tmp_path)
    run_base(BASE, store)
    for scenario in scenarios:
        run_fork(BASE, scenario, store)
    healthy, fault, resumed = evaluate_entry(store, Entry(base=BASE, scenarios=scenarios))
    assert (healthy.cause, healthy.healthy_steps) == ("healthy", 36)
    assert fault.resampled_steps == 18
    assert (fault.predicted, fault.cause_ok, fault.layer_ok) == ("scale_state_fault", True, True)
    assert fault.delay is not None
    assert 0 <= fault.delay <= 1
    assert (resumed.healthy_steps, resumed.resampled_steps) == (0, 36)
    pair = store.load_base(BASE, first=18)
    assert pair is not None
    clean = read_run(store.fork_path(BASE, scenarios[1].id)).batch
    marked = with_scalar(pair.batch, "resumed", {18: 1.0})
    assert first_difference(clean.rows(0, 18), marked) is None  # a fork without a fault is the run itself

"""The live paired drift: equal under any chunking and order, silent on healthy pairs, timely on gaps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.detectors.paired_gap import RING, SHAPES, GapWatch
from floatscope_diagnostics.detectors.pairs import PairedLoss
from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.state_codec import pack, unpack
from tests.diagnostics.compare.logs import autoregressive, curve

NO_COLUMNS = Columns(RunInfo())
Float64 = NDArray[np.float64]


def watched(gap: Float64) -> PairedLoss:
    base = curve(len(gap))
    watch = PairedLoss()
    watch.add_baseline(np.arange(len(gap)), base, None)
    for step, loss in enumerate((base + gap).tolist()):
        watch.add_own(step, loss, math.nan, None, declared=True)
    return watch


def gaps(watch: PairedLoss) -> list[Symptom]:
    return [s for s in watch.symptoms(NO_COLUMNS) if s.signal == "paired_gap"]


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_noise_opens_no_gap(phi: float) -> None:
    for seed in range(10):
        assert not gaps(watched(0.03 * autoregressive(2000, phi, seed)))


def test_a_gap_is_found_with_its_step_size_and_band() -> None:
    gap = np.random.default_rng(3).normal(0.0, 0.005, 800)
    gap[400:] += 0.06
    found = gaps(watched(gap))
    assert len(found) == 1
    symptom = found[0]
    assert 396 <= symptom.onset <= 404
    assert symptom.detected is not None
    assert symptom.detected <= 540
    assert symptom.extra["low"] <= 0.06 <= symptom.extra["high"]
    assert SHAPES[int(symptom.extra["shape"])] == "constant"
    assert symptom.open


def test_a_widening_gap_is_told_from_an_offset() -> None:
    late = np.maximum(np.arange(1600) - 400, 0)
    found = gaps(watched(np.random.default_rng(4).normal(0.0, 0.01, 1600) + 1e-4 * late))
    assert len(found) == 1
    assert SHAPES[int(found[0].extra["shape"])] == "widening"
    assert found[0].extra["change_low"] > 0.0


def test_a_gap_that_closes_ends() -> None:
    gap = np.random.default_rng(5).normal(0.0, 0.005, 1200)
    gap[300:600] += 0.08
    found = gaps(watched(gap))
    assert len(found) == 1
    assert not found[0].open
    assert 590 <= found[0].last <= 640


def test_a_better_run_is_no_gap() -> None:
    assert not gaps(watched(np.full(800, -0.1)))


def test_the_order_of_arrival_does_not_matter() -> None:
    gap = np.random.default_rng(6).normal(0.0, 0.01, 500)
    gap[200:] += 0.07
    base = curve(500)
    late = PairedLoss()
    for step, loss in enumerate((base + gap).tolist()):
        late.add_own(step, loss, math.nan, None, declared=True)
    late.add_baseline(np.arange(500), base, None)
    assert late.symptoms(NO_COLUMNS) == watched(gap).symptoms(NO_COLUMNS)


@pytest.mark.parametrize("cut", [3, 250, 333, 480])
def test_a_saved_watch_goes_on_as_if_it_had_not_stopped(cut: int) -> None:
    gap = np.random.default_rng(7).normal(0.0, 0.01, 500)
    gap[200:] += 0.07
    whole, first = GapWatch(), GapWatch()
    for step, value in enumerate(gap.tolist()):
        whole.add(step, value)
    for step, value in enumerate(gap[:cut].tolist()):
        first.add(step, value)
    second = GapWatch.load(unpack(pack(first.state())))
    for step, value in enumerate(gap[cut:].tolist(), start=cut):
        second.add(step, value)
    assert pack(second.state()) == pack(whole.state())


def test_memory_is_bounded() -> None:
    watch = GapWatch()
    for step in range(20_000):
        watch.add(step, 0.2 + 0.01 * math.sin(step))
    assert len(watch.ring) <= RING
    assert len(watch.opened) <= RING
    assert watch.merged * (len(watch.opened) + 1) * 4 >= 19_000


def test_pairs_with_another_learning_rate_or_other_data_are_left_out() -> None:
    base = curve(600)
    watch = PairedLoss()
    watch.add_baseline(np.arange(600), base, np.arange(600.0), np.full(600, 1e-3))
    for step, loss in enumerate((base + 0.2).tolist()):
        watch.add_own(step, loss, float(step if step % 2 else -1), None, declared=True, lr=1e-4)
    assert watch.pairs == 0
    assert watch.mismatched == 600
    assert not gaps(watch)


def test_a_run_that_goes_back_far_meets_its_baseline_once_a_step() -> None:
    back, count = 20_000, 40_000  # each step sorted in among those that wait would take minutes
    watch = PairedLoss()
    for step in (*range(count), *range(back, count + 1_000)):
        watch.add_own(step, 1.0, math.nan, None, declared=True)
    for step in (*range(count // 2 + 1, count, 2), *range(0, count // 2, 2)):  # lower steps after higher ones
        watch.add_own(step, 1.0, math.nan, None, declared=True)
    watch.add_baseline(np.arange(count + 500), np.ones(count + 500), None)
    assert watch.pairs == count + 500
    assert watch.last == count + 499
    assert sorted(watch.own.rows) == list(range(count + 500, count + 1_000))

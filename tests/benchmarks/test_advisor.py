"""What the benchmark of the advice counts as a gap, as closed, and as neither."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.advisor.chance import Spread, closed_pct, interval, measured, spread_of
from benchmarks.advisor.checking import Outcome, layers_of, precision_map, without_faults_of
from benchmarks.advisor.prepared_models import twin
from benchmarks.advisor.scenarios import SCENARIOS, Scenario
from benchmarks.advisor.tables import Chance, chance_of, closing, row_of

FORMAT = Scenario("made", "format", "made", bad=("blocks.0.mlp.fc1",))
HEALTHY = Scenario("sound", "healthy", "made")
CHANCE = Chance(*[Spread(0.001, 10)] * 3)


def outcome(before: float, after: float | None, *, scenario: Scenario = FORMAT, **advice: Any) -> Outcome:
    told = {"decision": "move_layers", "predicted": {"gap_closed_pct": None}, **advice}
    end = () if after is None else (2.0 + after,)
    return Outcome(scenario, 1, told, (2.0,), (2.0 + before,), end, (), (), FORMAT.bad, "--precision-map", 1)


def test_twins_of_different_means_have_one_spread() -> None:
    assert spread_of([[1.0, 3.0], [11.0, 13.0]]) == Spread(math.sqrt(2.0), 2)
    assert spread_of([[1.0], [5.0]]) == Spread(0.0, 0), "a single run says nothing about chance"


def test_a_gap_within_what_twins_differ_by_has_no_share_to_close() -> None:
    loud, still = Spread(0.03, 8), Spread(0.0005, 8)
    after = measured([2.0], [2.0], still, still)
    assert closed_pct(measured([2.06], [2.0], loud, loud), after) is None
    assert closed_pct(measured([2.06], [2.0], still, still), after) == pytest.approx(100.0)
    assert closed_pct(measured([1.8], [2.0], still, still), after) is None, "ahead of BF16 is no gap"
    assert closed_pct(measured([2.06], [2.0], Spread(0.0, 0), still), after) is None, "chance unknown"


def test_more_twins_tell_smaller_gaps() -> None:
    loud = Spread(0.01, 20)
    assert not measured([2.02], [2.0], loud, loud).is_above_chance
    assert measured([2.02] * 16, [2.0] * 16, loud, loud).is_above_chance


def test_a_scenario_without_a_measurable_gap_is_no_success() -> None:
    lines, good = closing([row_of(outcome(0.002, 0.0), CHANCE)])
    assert not good
    assert "no measurable gap" in lines[1]
    assert lines[-1] == "targets: 0 met, 0 missed, 1 without a measurable gap"


@pytest.mark.parametrize(("after", "met"), [(0.01, True), (0.05, False), (None, False)])
def test_the_target_is_80_percent_of_the_gap(after: float | None, met: bool) -> None:
    """A run without an advice misses it, too."""
    rows = [row_of(outcome(0.1, after), CHANCE), row_of(outcome(0.1, 0.0), CHANCE)]
    lines, good = closing(rows)
    assert good is met
    assert lines[-1].startswith(f"targets: {int(met)} met")


def test_a_healthy_run_must_be_kept() -> None:
    kept = outcome(0.003, None, scenario=HEALTHY, decision="keep_fp8")
    moved = outcome(0.003, 0.003, scenario=HEALTHY)
    assert closing([row_of(kept, CHANCE)])[1]
    assert not closing([row_of(kept, CHANCE), row_of(moved, CHANCE)])[1]


def test_chance_comes_from_faulty_runs_only_and_counts_a_shared_baseline_once() -> None:
    made = [Outcome(s, 1, {}, (2.0, 2.2), (3.0, 3.4), (), (), (), (), "", 1) for s in (FORMAT, HEALTHY)]
    chance = chance_of(made)
    assert (chance.base.df, chance.before.df, chance.after.df) == (1, 1, 0)


def test_the_interval_of_one_seed_is_open() -> None:
    assert interval([90.0]) == (90.0, -math.inf, math.inf)
    mean, low, high = interval([80.0, 100.0])
    assert mean == 90.0
    assert high - mean == pytest.approx(127.06, abs=0.01)  # t of 1 degree: 12.706
    assert mean - low == pytest.approx(high - mean)


def test_a_twin_differs_by_one_rounding_and_keeps_its_zeros() -> None:
    model = nn.Linear(64, 64)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight[:, 3] = 0.0
    twin(0)(model)
    assert torch.equal(model.weight[:, 4:], before[:, 4:])
    twin(1)(model)
    off = (model.weight.detach()[:, 4:] / before[:, 4:] - 1.0).abs()
    assert 0 < float(off.mean()) < 2.0**-8
    assert not model.weight[:, 3].any()


def test_a_fault_at_a_layer_that_left_fp8_is_gone() -> None:
    scenario = next(s for s in SCENARIOS if s.name == "gradients-six")
    words = precision_map(scenario.bad[:2])
    assert layers_of(words) == scenario.bad[:2]
    left = without_faults_of(scenario, layers_of(words), fresh_scales=False)
    assert left.options.count("--inject") == len(scenario.bad) - 2
    assert "--inject" not in without_faults_of(scenario, (), fresh_scales=True).options

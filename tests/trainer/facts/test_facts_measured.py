"""The measurements: those that take no training agree with the page here, and move when their cause does."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch

from floatscope_trainer.facts import bundled, samples
from floatscope_trainer.facts.fact import contradictions
from floatscope_trainer.facts.measured import (
    adam_second_moment,
    amax_and_nan,
    cost_rule,
    gemm_error,
    loss_blindness,
    memory,
    mx_scale_rounding,
    overflow_shows,
    scale_direction,
    wrong_scale_loss,
)
from floatscope_trainer.facts.table import MODULES, fact_of

TRAINED = (adam_second_moment, loss_blindness, wrong_scale_loss)
QUICK = [module for module in MODULES if module not in TRAINED]


@pytest.mark.parametrize("module", QUICK, ids=lambda module: fact_of(module).name)
def test_this_machine_agrees_with_the_page(module: ModuleType) -> None:
    fact = fact_of(module)
    assert contradictions(fact, fact.measure()) == []


def test_a_multiplied_scale_where_a_division_is_meant_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_direction, "through", lambda values, fmt, scale: values)
    assert contradictions(scale_direction.FACT, scale_direction.measure())


def test_a_gemm_without_fp8_contradicts_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_error, "through", lambda values, fmt, scale: values)
    found = gemm_error.measure()
    assert any("K = 512" in sentence for sentence in contradictions(gemm_error.FACT, found))


def test_scales_rounded_alike_contradict_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = mx_scale_rounding._mx
    monkeypatch.setattr(mx_scale_rounding, "_mx", lambda values, up: rounded(values, up=True))
    found = mx_scale_rounding.measure()
    assert found.verdict == "true"
    assert contradictions(mx_scale_rounding.FACT, found)


def test_an_older_torch_is_expected_to_give_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow_shows, "_version", lambda: (2, 11))
    monkeypatch.setattr(overflow_shows, "_cast", lambda value, dtype: math.nan)
    found = overflow_shows.measure()
    assert found.verdict == found.says == "true"
    assert contradictions(overflow_shows.FACT, found) == []


def test_folding_with_fmax_is_the_largest_magnitude() -> None:
    values = torch.tensor([1.0, -7.0, 3.0, math.nan, 2.0])
    assert amax_and_nan._fmax(values) == 7.0
    assert amax_and_nan._fmax(torch.full((3,), math.nan)) == 0.0
    assert math.isinf(amax_and_nan._fmax(torch.tensor([1.0, -math.inf])))


def test_savings_and_bytes_are_those_of_the_arithmetic() -> None:
    assert cost_rule.saving_pct(2.0) == 50.0
    assert memory._bytes_per_parameter((torch.bfloat16, torch.float8_e5m2)) == 3.0


def test_what_the_samples_count() -> None:
    values = torch.tensor([0.0, 1.0, 2.0, -3.0])
    assert samples.underflow_pct(values, torch.tensor([0.0, 0.0, 2.0, -3.0])) == pytest.approx(100 / 3)
    assert samples.overflow_pct(values, "e4m3", 448.0) == 50.0
    assert math.isinf(samples.sqnr_db(values, values))
    assert samples.relative_error(2 * values, values) == pytest.approx(1.0)


def test_our_adamw_is_that_of_torch() -> None:
    torch.manual_seed(1)
    ours, theirs = (torch.nn.Parameter(torch.ones(7, 3)) for _ in range(2))
    made = [torch.optim.AdamW([p], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1) for p in (ours, theirs)]
    for step in range(4):
        grad = torch.randn(7, 3)
        for optimizer, p in zip(made, (ours, theirs), strict=True):
            p.grad = grad.clone()
            if step == 0 or p is theirs:  # the first step makes the state
                optimizer.step()
            else:
                with torch.no_grad():
                    adam_second_moment.adamw_step(optimizer, None)
    torch.testing.assert_close(ours, theirs)


def test_a_moment_in_e4m3_loses_its_small_elements_and_keeps_zeros() -> None:
    moment = torch.tensor([1.0, 2.0**-20, 0.0])
    assert adam_second_moment.stored(moment, "e4m3").tolist() == [1.0, 0.0, 0.0]
    assert adam_second_moment.stored(moment, "e5m2")[1] > 0
    assert adam_second_moment.stored(torch.zeros(3), "e4m3").tolist() == [0.0, 0.0, 0.0]


def test_a_fault_of_the_bundled_trainer_shows_in_underflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "FAULT_AT", 2)
    run = bundled.trained("gradient_underflow@2:blocks.1.*/grad_output*1e-3", steps=4)
    assert len(run.loss) == 4
    assert run.nonfinite == 0
    dead = {name for name, lost in run.underflow_pct.items() if lost > 99}
    assert dead
    assert all(name.startswith("blocks.1.") for name in dead)

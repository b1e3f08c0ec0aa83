"""Loss scaling read without waiting for it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from floatscope.probes.loss_scaler import calling_scaler, find_scaler
from tests.agent.training import backward, batch, loss_of, recording, small_model


def scaler(**settings: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, **settings)


def train(model: Any, optimizer: Any, scaling: Any, monitor: Any, *, overflow_at: int) -> list[float]:
    """Returns the scale in force in each step."""
    scales = []
    for step in range(6):
        loss = loss_of(model, batch(step))
        if step == overflow_at:
            loss = loss * float("inf")
        scaled: Tensor = scaling.scale(loss)
        backward(scaled)
        scales.append(scaling.get_scale())
        scaling.step(optimizer)
        scaling.update()
        monitor.step(loss=loss)
        optimizer.zero_grad()
    return scales


@pytest.mark.parametrize("how", ["given", "found at the start", "found in the optimizer's step"])
def test_scale_and_skipped_steps(tmp_path: Path, how: str) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    early = scaler() if how != "found in the optimizer's step" else None
    given = early if how == "given" else None
    with recording(tmp_path, model, optimizer, scaler=given) as found:
        scaling = early or scaler()
        scales = train(model, optimizer, scaling, found.monitor, overflow_at=3)
    assert [row.get("loss_scale") for row in found.rows] == scales
    assert [row.get("skipped_steps") for row in found.rows] == [0, 0, 0, 1, 1, 1]
    assert found.rows[3]["grad_norm"] in ("NaN", "Infinity"), "a skipped step's gradients are looked at"


def test_gradients_are_in_true_units(tmp_path: Path) -> None:
    model, other = small_model(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with recording(tmp_path, model, optimizer) as found:
        train(model, optimizer, scaler(), found.monitor, overflow_at=-1)
    backward(loss_of(other, batch(0)))
    norm = torch.nn.utils.get_total_norm([p.grad for p in other.parameters() if p.grad is not None])
    assert found.rows[0]["grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_what_the_loop_gives_itself_stays(tmp_path: Path) -> None:
    scaling = scaler()
    scaling.scale(torch.ones(()))
    with recording(tmp_path, scaler=scaling) as found:
        found.monitor.step(loss_scale=5.0, skipped_steps=7)
    assert (found.rows[0]["loss_scale"], found.rows[0]["skipped_steps"]) == (5.0, 7.0)


def test_two_scalers_are_none_and_a_disabled_one_neither() -> None:
    gc.collect()
    assert find_scaler() is None
    off = scaler(enabled=False)
    assert find_scaler() is None
    one = scaler()
    assert find_scaler() is one
    two = scaler()
    assert find_scaler() is None
    assert calling_scaler() is None
    del off, one, two

"""Plain PyTorch: steps that end by themselves, and the example of a whole loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from floatscope.integrations.loop import auto_step
from tests.agent.training import backward, batch, loss_of, recording, small_model
from tests.integrations.one_rank import example, flat_weights
from tests.integrations.recorded import read, recorded_in

STEPS = 5


def train(
    model: Any, optimizer: Any, monitor: Any = None, scaler: Any = None, *, overflow_at: int = -1
) -> Tensor:
    """Two micro-batches a step; the loss is logged before the optimizer steps."""
    for step in range(STEPS):
        total = 0.0
        for part in range(2):
            loss = loss_of(model, batch(2 * step + part)) / 2
            scaled = loss * float("inf") if step == overflow_at else loss
            backward(scaled if scaler is None else scaler.scale(scaled))
            total += loss.item()
        if monitor is not None:
            monitor.log({"loss": total})
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return flat_weights(model)


def test_optimizer_steps_are_steps(tmp_path: Path) -> None:
    """With their losses, rates and tensors; the weights stay, and no hook is left."""
    model = small_model()
    expected = train(model, torch.optim.SGD(model.parameters(), 0.1))
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        auto_step(found.monitor, optimizer)
        weights = train(model, optimizer, found.monitor)
    assert torch.equal(weights, expected)
    assert [row["step"] for row in found.rows] == list(range(STEPS))
    assert all(row["lr"] == 0.1 and row["loss"] > 0 and row["grad_norm"] > 0 for row in found.rows)
    assert "1/weight" in found.tensors(0, "update_ratio")
    assert not optimizer._optimizer_step_post_hooks


def test_steps_that_a_scaler_skips_are_recorded_too(tmp_path: Path) -> None:
    """They end with the scaler's update, which is the scaler's own again afterwards."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with recording(tmp_path, model, optimizer, scaler=scaler) as found:
        auto_step(found.monitor, optimizer, scaler=scaler)
        train(model, optimizer, found.monitor, scaler, overflow_at=2)
    assert [row["loss_scale"] for row in found.rows] == [256.0] * 3 + [128.0] * 2
    assert [row["skipped_steps"] for row in found.rows] == [0, 0, 1, 1, 1]
    assert "update" not in vars(scaler)


def test_it_can_be_taken_off_before_the_run_ends(tmp_path: Path) -> None:
    """The loop may go on to call ``step`` itself."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        take_off = auto_step(found.monitor, optimizer)
        train(model, optimizer, found.monitor)
        take_off()
        train(model, optimizer)
    assert len(found.rows) == STEPS
    with recording(tmp_path) as found, pytest.raises(TypeError, match="got a int, which has no step hooks"):
        auto_step(found.monitor, 3)


def test_the_example_learns_and_resumes(tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again with more steps it goes on in the same run, and says so in the first of them."""
    module = example("plain")
    monkeypatch.chdir(tmp_path)
    module.main(["--steps", "45", "--folder", "kept"])
    first = recorded_in(spool)
    assert first.steps == list(range(45))
    assert first.column("loss")[-1] < 0.5 * first.column("loss")[0]
    assert "1/weight" in first.tensors("update_ratio")
    module.main(["--steps", "60", "--folder", "kept"])
    (log,) = spool.glob("*/rank0.jsonl")
    both = read(log)
    assert both.steps == [*range(45), *range(40, 60)], "from the checkpoint of step 39"
    assert both.column("resumed") == [None] * 45 + [1.0] + [None] * 19
    module.main(["--steps", "60", "--folder", "kept"])
    assert read(log).steps == both.steps, "nothing is left to train"

"""The real torchtitan Trainer on the CPU (see ``torchtitan_cpu`` for what stands in)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from floatscope.integrations.torchtitan import watch_trainer
from tests.integrations.one_rank import example, flat_weights, launched, rows_of, settings, tensors_with
from tests.integrations.recorded import recorded_in
from tests.integrations.torchtitan_cpu import config_of, import_torchtitan

STEPS = 4
LOG_FREQ = 2  # torchtitan logs steps 1, 2 and 4


@pytest.fixture(scope="module", autouse=True)
def titan() -> Any:
    """The real package."""
    return import_torchtitan()


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dist, "set_timeout", lambda *args: None, raising=False)
    monkeypatch.setattr("torchtitan.trainer.time.sleep", lambda seconds: None)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with launched():
        yield
        if dist.is_initialized():
            dist.destroy_process_group()


def trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, watch: bool, accumulate: int
) -> tuple[Any, ...]:
    """Weights, losses of all micro-batches, what torchtitan logged by step, and the trainer."""
    trainer = config_of(folder, steps=STEPS, log_freq=LOG_FREQ, accumulate=accumulate).build()
    losses: list[float] = []
    logged: dict[int, dict[str, Any]] = {}
    body = trainer.fwd_bwd_fn

    def noted(*args: Any) -> Tensor:
        loss: Tensor = body(*args)
        losses.append(loss.item())
        return loss

    trainer.fwd_bwd_fn = noted
    monkeypatch.setattr(trainer.metrics_processor.logger, "log", lambda m, step: logged.update({step: m}))
    before = set(vars(trainer))
    if watch:
        watch_trainer(trainer, run="titan", **settings(folder))
    trainer.train()
    trainer.close()
    assert set(vars(trainer)) == before
    weights = flat_weights(trainer.model_parts)
    dist.destroy_process_group()
    return weights, losses, logged, trainer


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_are_recorded_and_weights_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    """Every step has its loss, rate and gradient norm, also those torchtitan does not log."""
    expected, plain_losses, plain_logged, _ = trained(
        tmp_path, monkeypatch, watch=False, accumulate=accumulate
    )
    weights, losses, logged, trainer = trained(tmp_path, monkeypatch, watch=True, accumulate=accumulate)
    assert torch.equal(weights, expected)
    assert losses == plain_losses

    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    means = [sum(losses[i : i + accumulate]) for i in range(0, len(losses), accumulate)]
    assert [row["loss"] for row in rows] == pytest.approx(means, rel=1e-6)
    for step in (1, 2, 4):
        assert logged[step]["grad_norm"] == plain_logged[step]["grad_norm"]
        assert rows[step - 1]["grad_norm"] == logged[step]["grad_norm"], "before clipping"
        assert rows[step - 1]["loss"] == pytest.approx(logged[step]["loss_metrics/global_avg_loss"])
        assert rows[step - 1]["lr"] == logged[step]["lr/AdamW"]
        assert rows[step - 1]["n_tokens_seen"] == logged[step]["n_tokens_seen"]
    assert all(row["grad_norm"] > 0 and row["label_tokens"] == 64 * accumulate for row in rows)
    layers = {name.rpartition("/")[0] for name in tensors_with(rows[0], "amax")}
    assert {"tok_embeddings", "layers.0.attention.wo", "layers.1.feed_forward.w2", "lm_head"} <= layers
    assert "layers.1.attention.qkv_linear.wqkv/weight" in tensors_with(rows[0], "grad_norm")

    assert not trainer.optimizers._optimizer_step_pre_hooks
    assert type(trainer.metrics_processor.logger).__module__ == "torchtitan.components.metrics"
    assert not hasattr(trainer.train_step, "__wrapped__")


def test_a_training_that_fails_ends_as_crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torchtitan's own error as the reason, from its way of closing the trainer."""
    trainer = config_of(tmp_path, steps=STEPS, log_freq=1).build()
    body = trainer.fwd_bwd_fn
    monkeypatch.setattr(trainer, "fwd_bwd_fn", lambda *args: body(*args) * float("nan"))
    watch_trainer(trainer, run="titan", **settings(tmp_path))

    def train_as_torchtitan_does() -> None:
        try:
            trainer.train()
        except Exception:
            trainer.close()
            raise

    with pytest.raises(RuntimeError, match="Loss is not finite"):
        train_as_torchtitan_does()
    text = (tmp_path / "log.jsonl").read_text()
    assert '"crashed"' in text
    assert "Loss is not finite" in text


def test_what_is_no_trainer_is_refused(tmp_path: Path) -> None:
    """With what is missing and what is expected."""
    with pytest.raises(TypeError, match=r"got a object without train_step.*config\.build"):
        watch_trainer(object(), run="x", **settings(tmp_path))


def test_the_example_is_recorded(tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchtitan's configuration in, a run out; the process group is gone, as after its own script."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with launched():
        example("torchtitan").train(config_of(tmp_path, steps=3, log_freq=1))
    run = recorded_in(spool)
    assert run.steps == [1, 2, 3]
    assert run.head["config"]["training"]["steps"] == 3
    assert not dist.is_initialized()

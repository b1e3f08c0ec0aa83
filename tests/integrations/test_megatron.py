"""Real megatron-core on the CPU (``megatron_cpu`` says what stands in); Megatron-LM's loop by its names."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from floatscope.integrations.megatron import watch, watch_pretrain
from tests.integrations.megatron_cpu import (
    backward,
    batch,
    loss_of,
    model_and_optimizer,
    on_cpu,
    zero,
)
from tests.integrations.one_rank import example, flat_weights, rows_of, settings, tensors_with
from tests.integrations.recorded import recorded_in

STEPS = 3


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    with on_cpu():
        yield


def train(
    model: Any, optimizer: Any, monitor: Any = None, *, overflow_at: int = -1
) -> tuple[list[float], list[Any], Tensor]:
    """A loop of two micro-batches a step: losses, what ``optimizer.step`` returned, the weights."""
    losses, results = [], []
    for step in range(STEPS):
        zero(model, optimizer)
        parts = [loss_of(model, batch(2 * step + i)) / 2 for i in range(2)]
        for part in parts:
            backward(model, optimizer, part * float("inf") if step == overflow_at else part)
        losses.append(sum(part.item() for part in parts))
        if monitor is not None:
            monitor.log({"loss": losses[-1]})
        results.append(optimizer.step())
    return losses, results, flat_weights(model)


@pytest.mark.parametrize(
    ("dtype", "is_distributed"), [("fp32", False), ("bf16", False), ("bf16", True), ("fp16", False)]
)
def test_optimizer_steps_are_recorded_and_weights_stay(
    tmp_path: Path, dtype: str, is_distributed: bool
) -> None:
    """One row a step with Megatron's own gradient norm, before clipping, the rate and the rank's place."""
    plain_losses, plain_results, expected = train(*model_and_optimizer(dtype, is_distributed=is_distributed))
    model, optimizer = model_and_optimizer(dtype, is_distributed=is_distributed)
    attributes = set(vars(optimizer))
    with watch(model, optimizer, run="megatron", **settings(tmp_path)) as monitor:
        losses, results, weights = train(model, optimizer, monitor)
    assert torch.equal(weights, expected)
    assert (losses, results) == (plain_losses, plain_results)
    assert set(vars(optimizer)) == attributes, "step is the optimizer's own again"

    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["loss"] for row in rows] == losses
    assert [row["grad_norm"] for row in rows] == pytest.approx([norm for _, norm, _ in results])
    assert all(row["grad_norm"] > 0.5 for row in rows), "the norm before clipping"
    assert all(row["lr"] == 1e-3 for row in rows)
    assert ("loss_scale" in rows[0]) is (dtype == "fp16")
    if not is_distributed:
        weight = "decoder.layers.1.self_attention.linear_qkv/weight"
        assert weight in tensors_with(rows[0], "grad_norm")


def test_loss_scale_and_skipped_steps(tmp_path: Path) -> None:
    """The scale in force in each step; a step that Megatron skips is counted and has no norm of its own."""
    model, optimizer = model_and_optimizer("fp16")
    with watch(model, optimizer, run="megatron", iteration=40, **settings(tmp_path)) as monitor:
        _, results, _ = train(model, optimizer, monitor, overflow_at=1)
    assert [done for done, _, _ in results] == [True, False, True]
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == [41, 42, 43]
    assert [row["loss_scale"] for row in rows] == [1024.0, 1024.0, 512.0]
    assert [row["skipped_steps"] for row in rows] == [0, 1, 1]


def test_without_clipping_the_norm_is_the_probes(tmp_path: Path) -> None:
    """A single optimizer then returns 0 and has not worked out any."""
    model, chained = model_and_optimizer("bf16", clip_grad=0.0)
    (optimizer,) = chained.chained_optimizers
    with watch(model, optimizer, run="megatron", **settings(tmp_path)) as monitor:
        _, results, _ = train(model, optimizer, monitor)
    assert [norm for _, norm, _ in results] == [0.0] * STEPS
    for row in rows_of(tmp_path):  # "local" where the rank may hold only a part
        assert row.get("grad_norm", row.get("local_grad_norm", 0.0)) > 0.5


def megatron_lm(dtype: str, log: list[Any]) -> types.ModuleType:
    """A module with the two functions of Megatron-LM's loop, by their names and arguments."""
    module = types.ModuleType("training")

    def training_log(
        loss_dict: Any, total_loss_dict: Any, learning_rate: Any, iteration: int, loss_scale: float,
        report_memory_flag: bool, skipped_iter: int, grad_norm: Any, params_norm: Any, num_zeros_in_grad: Any,
        max_attention_logit: Any = None,
    ) -> bool:  # fmt: skip
        log.append((iteration, {name: value.item() for name, value in loss_dict.items()}, grad_norm))
        return False

    def train(forward_step_func: Any, model: Any, optimizer: Any, opt_param_scheduler: Any) -> Any:
        for step in range(STEPS):
            zero(model, optimizer)
            loss = forward_step_func(model, step)
            backward(model, optimizer, loss)
            done, norm, zeros = optimizer.step()
            losses = {"lm loss": loss.detach(), "mtp_1 loss": loss.detach() * 2}
            scale = optimizer.get_loss_scale().item()
            module.training_log(losses, {}, 1e-3, step + 1, scale, False, int(not done), norm, 3.5, zeros)
        return STEPS

    module.train, module.training_log = train, training_log  # type: ignore[attr-defined]
    return module


def test_pretrain_is_watched_by_its_functions(tmp_path: Path) -> None:
    """Steps end where Megatron-LM logs them; afterwards its functions are its own again."""
    log: list[Any] = []
    module: Any = megatron_lm("fp16", log)
    functions = (module.train, module.training_log)
    watched = watch_pretrain(run="pretrain", module=module, **settings(tmp_path))
    model, optimizer = model_and_optimizer("fp16")
    assert module.train(lambda model, step: loss_of(model, batch(step)), model, optimizer, None) == STEPS
    assert "step" not in vars(optimizer)
    watched.remove()
    assert (module.train, module.training_log) == functions

    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == [iteration for iteration, _, _ in log] == [1, 2, 3]
    for row, (_, losses, norm) in zip(rows, log, strict=True):
        assert row["loss"] == row["lm loss"] == losses["lm loss"]
        assert row["mtp_1 loss"] == losses["mtp_1 loss"]
        assert row["grad_norm"] == pytest.approx(norm)
        assert (row["lr"], row["param_norm"]) == (1e-3, 3.5)
        assert (row["loss_scale"], row["skipped_steps"]) == (1024.0, 0)


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    """With what was given and what is expected."""
    model, _ = model_and_optimizer()
    torch_optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    with pytest.raises(TypeError, match="SGD as optimizer, not a MegatronOptimizer"):
        watch(model, torch_optimizer, run="x", **settings(tmp_path))
    with pytest.raises(TypeError, match="has no train and no training_log"):
        watch_pretrain(run="x", module=types.ModuleType("other"), **settings(tmp_path))
    with pytest.raises(ModuleNotFoundError, match=r"megatron\.training"):
        watch_pretrain(run="x", **settings(tmp_path))


def test_the_example_learns_and_is_recorded(spool: Path) -> None:
    """Its loop; what starts a process for each GPU is left out."""
    module = example("megatron")
    module.train(*module.build(), steps=30, device="cpu")
    run = recorded_in(spool)
    assert run.steps == list(range(1, 31))
    assert run.column("loss")[-1] < 0.9 * run.column("loss")[0]
    assert all(norm > 0 for norm in run.column("grad_norm"))

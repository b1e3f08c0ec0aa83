"""The real DeepSpeed engine on the CPU, with and without ZeRO."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import PipelineModule
from torch import Tensor, nn

import floatscope
from floatscope.integrations.deepspeed import watch_engine
from tests.agent.training import batch, loss_of, small_model
from tests.integrations.one_rank import example, flat_weights, gloo, rows_of, settings, tensors_with
from tests.integrations.recorded import recorded_in

MICRO_BATCHES = 6
ACCUMULATE = 2
LAYERS = {"0", "1", "4"}  # of the small model: embedding and the linear layers


@pytest.fixture(scope="module", autouse=True)
def _process_group() -> Iterator[None]:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # built by a C++ compiler on first use
    with gloo():
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        yield


@pytest.fixture(autouse=True)
def _fp16_on_any_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed refuses fp16 on CPUs without instructions for it; torch computes it on all, slower."""
    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)


def engine_of(stage: int, dtype: str, **scaling: Any) -> Any:
    """An engine for the small model with AdamW and a scheduler, two micro-batches a step."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 6,
        "gradient_accumulation_steps": ACCUMULATE,
        "gradient_clipping": 0.1,
        "steps_per_print": 10_000,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        **({} if dtype == "fp32" else {dtype: {"enabled": True, **scaling}}),
    }
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config)[0]


def train(engine: Any, *, overflow_at: int = -1) -> tuple[list[float], Tensor]:
    """Losses of all micro-batches, and the weights at the end."""
    losses = []
    for step in range(MICRO_BATCHES):
        loss = loss_of(engine, batch(step))
        if step == overflow_at:
            loss = loss * float("inf")
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
    return losses, flat_weights(engine.module)


@pytest.mark.parametrize(
    ("stage", "dtype"), [(0, "fp32"), (0, "bf16"), (1, "bf16"), (2, "bf16"), (3, "bf16"), (1, "fp16")]
)
def test_engine_steps_are_recorded_and_weights_stay(tmp_path: Path, stage: int, dtype: str) -> None:
    """One row an optimizer step with the mean loss, the engine's gradient norm and the rate."""
    plain_losses, expected = train(engine_of(stage, dtype))
    engine = engine_of(stage, dtype)
    attributes = set(vars(engine))
    monitor = watch_engine(engine, run="deepspeed", **settings(tmp_path))
    losses, weights = train(engine)
    monitor.finish()

    assert torch.equal(weights, expected)
    assert losses == plain_losses
    assert set(vars(engine)) == attributes, "backward and step are the engine's own again"
    assert not engine.basic_optimizer._optimizer_step_pre_hooks
    assert not any(
        module._forward_hooks or module._forward_pre_hooks
        for name, module in engine.module.named_modules()
        if stage < 3 and name  # ZeRO 3 has hooks of its own
    )

    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    means = [sum(losses[i : i + ACCUMULATE]) / ACCUMULATE for i in range(0, MICRO_BATCHES, ACCUMULATE)]
    assert [row["loss"] for row in rows] == pytest.approx(means, rel=1e-6)
    assert [row["lr"] for row in rows] == pytest.approx([1e-2, 5e-3, 2.5e-3])
    assert {name.rpartition("/")[0] for name in tensors_with(rows[0], "amax")} >= LAYERS
    assert ("loss_scale" in rows[0]) is (dtype == "fp16")
    if dtype != "fp32":  # there the engine has none; the optimizer's hook gives it after clipping
        assert all(row["grad_norm"] > 0.2 for row in rows), "before clipping to 0.1"
        assert rows[-1]["grad_norm"] == pytest.approx(float(engine.get_global_grad_norm()), rel=1e-6)


def test_loss_scale_and_skipped_steps(tmp_path: Path) -> None:
    """An overflow lowers the scale of the next step and counts; its gradient norm is infinite."""
    engine = engine_of(1, "fp16", initial_scale_power=10, hysteresis=1)
    with watch_engine(engine, run="deepspeed", **settings(tmp_path)):
        train(engine, overflow_at=3)
    rows = rows_of(tmp_path)
    assert [row["loss_scale"] for row in rows] == [1024.0, 1024.0, 512.0]
    assert [row["skipped_steps"] for row in rows] == [0, 1, 1]
    assert rows[1]["grad_norm"] == "Infinity"
    assert isinstance(rows[2]["grad_norm"], float)


@pytest.mark.parametrize("given", ["engine", "optimizer"])
def test_watch_finds_the_engine_or_its_optimizer(
    tmp_path: Path, given: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``floatscope.watch`` needs no integration; what ZeRO hides is said once."""
    engine = engine_of(2, "fp16", initial_scale_power=8)
    with caplog.at_level(logging.WARNING, "floatscope"):
        if given == "engine":
            monitor = floatscope.watch(engine, run="found", **settings(tmp_path))
        else:
            monitor = floatscope.watch(engine.module, engine.optimizer, run="found", **settings(tmp_path))
        for step in range(MICRO_BATCHES):
            loss = loss_of(engine, batch(step))
            engine.backward(loss)
            is_step = engine.is_gradient_accumulation_boundary()
            engine.step()
            if is_step:
                monitor.step(loss=loss)
        monitor.finish()
    rows = rows_of(tmp_path)
    assert len(rows) == MICRO_BATCHES // ACCUMULATE
    assert all(row["loss_scale"] == 256.0 and row["skipped_steps"] == 0 for row in rows)
    assert all(row["grad_norm"] > 0.2 for row in rows)
    assert (
        sum("copies of the weights that have no names" in record.getMessage() for record in caplog.records)
        == 1
    )


def test_two_ranks_record_their_own_and_one_global_norm(tmp_path: Path) -> None:
    """Real processes: what is of a rank's partition is named so."""
    root = Path(__file__).parents[2]
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            *command,
            str(root / "tests/integrations/zero_rank.py"),
            str(tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = (rows_of(tmp_path / rank) for rank in ("0", "1"))
    assert [row["step"] for row in first] == [row["step"] for row in second] == [1, 2, 3]
    for one, other in zip(first, second, strict=True):
        assert one["grad_norm"] == other["grad_norm"]
        assert one["loss"] != other["loss"]
        assert one["local_param_norm"] != other["local_param_norm"]
        assert "param_norm" not in one


def test_a_pipeline_engine_makes_a_step_in_one_call(tmp_path: Path) -> None:
    """``train_batch``, with the loss it returns."""
    model = small_model()
    network = PipelineModule(
        layers=list(model),
        num_stages=1,
        loss_fn=lambda output, ids: nn.functional.cross_entropy(output.flatten(0, 1), ids.flatten()),
    )
    config = {
        "train_micro_batch_size_per_gpu": 6,
        "gradient_accumulation_steps": ACCUMULATE,
        "steps_per_print": 10_000,
    }
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    engine = deepspeed.initialize(model=network, optimizer=optimizer, config=config)[0]
    batches = ((batch(step), batch(step)) for step in range(MICRO_BATCHES))
    with watch_engine(engine, run="pipeline", **settings(tmp_path)):
        losses = [engine.train_batch(batches).item() for _ in range(MICRO_BATCHES // ACCUMULATE)]
    assert "train_batch" not in vars(engine)
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["loss"] for row in rows] == pytest.approx(losses)
    assert {name.rpartition("/")[0] for name in tensors_with(rows[0], "amax")} >= LAYERS


def test_what_is_no_engine_is_refused(tmp_path: Path) -> None:
    """With what was given and what is expected."""
    with pytest.raises(TypeError, match="got a Sequential, not a DeepSpeed engine"):
        watch_engine(small_model(), run="x", **settings(tmp_path))


@pytest.mark.parametrize("has_fp16", [True, False])
def test_the_example_learns_and_is_recorded(
    spool: Path, monkeypatch: pytest.MonkeyPatch, *, has_fp16: bool
) -> None:
    """ZeRO 1 in fp16: every optimizer step, with its loss scale; in bf16 where there is no fp16."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: has_fp16)
    example("deepspeed").main()
    run = recorded_in(spool)
    assert run.steps == list(range(1, 31))
    assert run.column("loss")[-1] < 0.7 * run.column("loss")[0]
    if has_fp16:
        assert run.column("loss_scale")[0] == 4096.0
    else:
        assert not any("loss_scale" in row for row in run.rows)
    assert "layers.1/input" in run.tensors("amax")

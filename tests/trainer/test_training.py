"""The loop: learning, determinism, accumulation, loss scaling, evaluation, checkpoints to the bit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from floatscope_trainer.checkpoint import CheckpointError, load_checkpoint
from floatscope_trainer.config import OptimConfig, TrainConfig
from floatscope_trainer.emulated.backend import EmulatedBackend
from floatscope_trainer.schedule import learning_rate
from floatscope_trainer.training import Training
from tests.trainer.small_runs import (
    Inspections,
    equal,
    layer,
    losses,
    scales,
    take,
    tiny_config,
    tiny_text,
    tiny_training,
    weights,
)

ALL = [
    {"precision": "fp32"},
    {"precision": "bf16"},
    {"precision": "fp16"},
    {"recipe": "delayed"},
    {"recipe": "current"},
    {"recipe": "block"},
    {"recipe": "mxfp8"},
]


@pytest.mark.parametrize("precision", ALL, ids=lambda p: "-".join(p.values()))
def test_every_precision_learns_and_is_deterministic(precision: dict[str, str]) -> None:
    config = {"steps": 20, "optim": OptimConfig(lr=5e-3, warmup=2, decay_steps=20), **precision}
    one, other = tiny_training(**config), tiny_training(**config)
    records = take(one, 20)
    assert records == take(other, 20)
    assert equal(weights(one), weights(other))
    assert records[0].loss == pytest.approx(math.log(one.config.model.vocab_size), abs=0.3)
    assert records[-1].loss < records[0].loss - 0.3


@pytest.mark.parametrize("precision", ALL, ids=lambda p: "-".join(p.values()))
def test_checkpoint_continues_to_the_bit(precision: dict[str, str], tmp_path: Path) -> None:
    through = tiny_training(**precision)
    expected = take(through, 10)
    first = tiny_training(**precision)
    take(first, 5)
    first.save(tmp_path / "half.safetensors", run_id="half")
    second = tiny_training(**precision)
    second.restore(load_checkpoint(tmp_path / "half.safetensors"))
    assert second.next_step == 5
    assert take(second, 5) == expected[5:]
    assert equal(weights(second), weights(through))
    assert equal(scales(second), scales(through))


def test_checkpoint_keeps_settings_and_run(tmp_path: Path) -> None:
    training = tiny_training(precision_map="first=1", margin=2, passes=2)
    take(training, 1)
    training.save(tmp_path / "deep" / "a.safetensors", run_id="run-7")
    read = load_checkpoint(tmp_path / "deep" / "a.safetensors")
    assert read.config == training.config
    assert read.run_id == "run-7"
    assert TrainConfig.from_json(training.config.to_json()) == training.config
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a.safetensors"]


def test_loss_scale_is_restored(tmp_path: Path) -> None:
    training = tiny_training(precision="fp16", init_loss_scale=128.0)
    take(training, 1)
    training.save(tmp_path / "a.safetensors", run_id="a")
    other = tiny_training(precision="fp16")
    other.restore(load_checkpoint(tmp_path / "a.safetensors"))
    assert take(other, 1)[0].loss_scale == 128.0


def test_fork_into_another_recipe_takes_the_weights_and_starts_its_scales(tmp_path: Path) -> None:
    delayed = tiny_training(recipe="delayed")
    take(delayed, 3)
    delayed.save(tmp_path / "a.safetensors", run_id="a")
    bf16 = tiny_training(precision="bf16")
    bf16.restore(load_checkpoint(tmp_path / "a.safetensors"))
    assert equal(weights(bf16), weights(delayed))
    longer = tiny_training(recipe="delayed", amax_history_len=8)
    longer.restore(load_checkpoint(tmp_path / "a.safetensors"))
    assert scales(longer)["blocks.0.attn.qkv/scaling_fwd.scale"].tolist() == [1.0, 1.0, 1.0]


def test_fork_sees_the_same_batches(tmp_path: Path) -> None:
    healthy = tiny_training()
    ids = [record.data_id for record in take(healthy, 8)]
    assert len(set(ids)) == 8
    start = tiny_training()
    take(start, 4)
    start.save(tmp_path / "a.safetensors", run_id="a")
    fork = tiny_training("lr_spike@5", recipe="current")
    fork.restore(load_checkpoint(tmp_path / "a.safetensors"))
    assert [record.data_id for record in take(fork, 4)] == ids[4:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such checkpoint"),
        (b"", "not a readable safetensors file"),
        (b"\x80\x04 a pickle", "not a readable safetensors file"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", "not a readable safetensors file"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{}", "not a checkpoint of floatscope train"),
    ],
)
def test_bad_checkpoints_are_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as error:
        load_checkpoint(path)
    assert str(path) in str(error.value)


def test_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    training = tiny_training()
    take(training, 1)
    training.save(tmp_path / "a.safetensors", run_id="a")
    read = load_checkpoint(tmp_path / "a.safetensors")
    del read.tensors["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"norm\.weight"):
        tiny_training().restore(read)


@pytest.mark.parametrize(("field", "value"), [("steps", "12"), ("passes", True), ("data", None), ("odd", 1)])
def test_settings_of_another_type_are_refused(field: str, value: object) -> None:
    with pytest.raises(TypeError):
        TrainConfig.from_json(tiny_training().config.to_json() | {field: value})


def test_settings_outside_their_choices_are_refused() -> None:
    config = tiny_training().config.to_json()
    with pytest.raises(ValueError, match="recipe: expected one of delayed"):
        TrainConfig.from_json(config | {"precision": config["precision"] | {"recipe": "magic"}})


@pytest.mark.parametrize("damage", ["scalars", "rng", "optimizer", "scale"])
def test_checkpoint_that_lacks_a_part_is_refused(damage: str, tmp_path: Path) -> None:
    training = tiny_training()
    take(training, 1)
    training.save(tmp_path / "a.safetensors", run_id="a")
    read = load_checkpoint(tmp_path / "a.safetensors")
    if damage == "scalars":
        read.scalars.clear()
    elif damage == "rng":
        read.tensors["rng.torch"] = torch.zeros(3)
    elif damage == "optimizer":
        read.tensors["optim.nowhere.weight/exp_avg"] = torch.zeros(3)
    else:
        read.tensors["scale.blocks.0.attn.qkv/scaling_fwd.scale"] = torch.zeros(7)
    with pytest.raises(CheckpointError):
        tiny_training().restore(read)


def test_accumulation_equals_one_large_batch() -> None:
    """In fp32 two micro-batches give the gradient of both together."""
    config = tiny_config(precision="fp32", passes=2)
    training = Training(config, backend=EmulatedBackend(config), text=tiny_text())
    record = take(training, 1)[0]
    accumulated = {n: p.grad.clone() for n, p in training.model.named_parameters() if p.grad is not None}
    other = tiny_training(precision="fp32")
    batches = [tiny_text().batch(0, seed=0, micro=m, size=2, context=16) for m in range(2)]
    ids, labels = (torch.cat([getattr(b, k) for b in batches]) for k in ("ids", "labels"))
    loss = torch.nn.functional.cross_entropy(other.model(ids).flatten(0, 1), labels.flatten())
    torch.autograd.backward(loss)
    clip = min(1.0, 1.0 / record.grad_norm)
    for name, parameter in other.model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(accumulated[name], parameter.grad * clip, rtol=1e-4, atol=1e-7)
    assert record.loss == pytest.approx(loss.item(), rel=1e-6)
    assert (record.passes, record.tokens) == (2, 64)


def test_gradient_norm_is_logged_before_clipping() -> None:
    optim = OptimConfig(clip=1e-3, warmup=2, decay_steps=12)
    training = tiny_training(precision="fp32", optim=optim)
    record = take(training, 1)[0]
    clipped = torch.stack([p.grad.norm() for p in training.model.parameters() if p.grad is not None]).norm()
    assert clipped.item() == pytest.approx(1e-3, rel=1e-2)
    assert record.grad_norm > 0.1


def test_fp16_overflow_is_skipped_and_halves_the_loss_scale() -> None:
    training = tiny_training(precision="fp16", init_loss_scale=2.0**40)  # gradients beyond 65504
    before = weights(training)
    record = take(training, 1)[0]
    assert record.loss_scale == 2.0**40
    assert record.skipped_steps == 1
    assert equal(weights(training), before)
    assert take(training, 1)[0].loss_scale == 2.0**39


def test_evaluation_leaves_no_trace() -> None:
    evaluated, plain = tiny_training(eval_every=2), tiny_training()
    seen = Inspections(evaluated)
    records, expected = take(evaluated, 6), take(plain, 6)
    assert losses(records) == losses(expected)
    assert equal(weights(evaluated), weights(plain))
    assert equal(scales(evaluated), scales(plain))
    assert len(seen.seen["blocks.0.attn.qkv/input"]) == 6
    evals = [r.eval_loss for r in records]
    assert [e is not None for e in evals] == [False, True] * 3
    assert "eval_loss" not in records[0].scalars()
    assert records[1].scalars()["eval_loss"] == evals[1]


def test_precision_map_keeps_layers_out_of_fp8() -> None:
    training = tiny_training(precision_map="embedding=bf16,first=1,blocks.1.mlp.fc2=fp32")
    seen = Inspections(training)
    take(training, 2)
    formats = {name: seen.fmt[f"{name}/input"] for name in ("blocks.0.attn.qkv", "blocks.1.attn.qkv")}
    assert formats == {"blocks.0.attn.qkv": "bf16", "blocks.1.attn.qkv": "e4m3"}
    assert seen.fmt["blocks.1.mlp.fc2/input"] == "fp32"
    assert not any(name.startswith("blocks.0") for name in scales(training))
    backward = layer(training, "blocks.1.attn.qkv").fp8_meta["scaling_bwd"]
    assert backward.scale[0] != 1.0  # the first FP8 layer, not the first layer, ends the backward pass


def test_learning_rate_warms_up_and_decays() -> None:
    config = OptimConfig(lr=1.0, min_lr=0.1, warmup=4, decay_steps=12)
    rates = [learning_rate(step, config, steps=100) for step in range(16)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[8] == pytest.approx(0.55)
    assert rates[12:] == pytest.approx([0.1] * 4)
    assert learning_rate(20, OptimConfig(lr=1.0, min_lr=0.0, warmup=0), steps=20) == pytest.approx(0.0)

"""Faults in the input, the weights and one operation: exact, where and when they say, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch

from floatscope_trainer.config import OptimConfig
from floatscope_trainer.data import IGNORED_LABEL, TokenBatch
from floatscope_trainer.training import Training
from tests.trainer.fault_pairs import AT, TENSOR, pair
from tests.trainer.small_runs import (
    Inspections,
    different,
    equal,
    layer,
    losses,
    take,
    tiny_training,
    weights,
)


def batch_of(training: Training) -> TokenBatch:
    """The micro-batch of the next step."""
    seen: list[TokenBatch] = []
    training.step(see_batch=seen.append)
    return seen[0]


@pytest.mark.parametrize(("fault", "check"), [("nan_input", torch.isnan), ("inf_input", torch.isinf)])
def test_nonfinite_embedding_is_one_token_row_in_one_step(fault: str, check: object) -> None:
    faulty, healthy = pair(f"{fault}@{AT}")
    outputs: list[torch.Tensor] = []
    faulty.model.get_submodule("blocks.0").register_forward_pre_hook(lambda m, args: outputs.append(args[0]))
    clean: list[torch.Tensor] = []
    healthy.model.get_submodule("blocks.0").register_forward_pre_hook(lambda m, args: clean.append(args[0]))
    seen = Inspections(faulty)
    record = take(faulty, 1)[0]
    take(healthy, 1)
    assert callable(check)
    bad = check(outputs[0]).view(-1, outputs[0].shape[-1])
    assert bad.any(dim=1).sum().item() == 1
    assert bad.all(dim=1).sum().item() == 1
    torch.testing.assert_close(outputs[0][~check(outputs[0])], clean[0][~check(outputs[0])], rtol=0, atol=0)
    assert math.isnan(record.loss)
    counts = seen.seen["blocks.0.attn.qkv/input"][0].isnan().sum().item()
    assert 0 < counts <= 32  # one row of the layer that comes first
    take(faulty, 1)
    assert not any(
        check(out).any() for out in outputs[2:]
    )  # the fault is over; what is left is in the weights


def test_id_out_of_range_is_one_id_and_raises_index_error() -> None:
    faulty, healthy = pair(f"id_out_of_range@{AT}")
    before = weights(faulty)
    seen: list[TokenBatch] = []
    with pytest.raises(IndexError):
        faulty.step(see_batch=seen.append)
    expected = batch_of(healthy)
    assert (seen[0].ids != expected.ids).sum().item() == 1
    assert seen[0].ids.max().item() == 50257
    assert torch.equal(seen[0].labels, expected.labels)
    assert equal(before, weights(faulty))


def test_id_out_of_range_is_always_out_of_range() -> None:
    faulty, _ = pair(f"id_out_of_range@{AT}*3")
    with pytest.raises(IndexError):
        take(faulty, 1)


def test_labels_ignored_for_one_step_leave_no_gradient() -> None:
    faulty, healthy = pair(f"labels_ignored@{AT}")
    seen = Inspections(faulty)
    observed: list[TokenBatch] = []
    record = faulty.step(see_batch=observed.append)
    assert torch.equal(observed[0].ids, batch_of(healthy).ids)
    assert bool((observed[0].labels == IGNORED_LABEL).all())
    assert math.isnan(record.loss)
    assert seen.seen["blocks.0.attn.qkv/grad_output"][0].abs().max().item() == 0.0
    assert math.isfinite(take(faulty, 1)[0].loss)


def test_bad_batch_lasts_as_long_as_it_says_and_keeps_its_id() -> None:
    faulty, healthy = pair(f"bad_batch@{AT}*2")
    for is_bad in (True, True, False):
        got, expected = batch_of(faulty), batch_of(healthy)
        assert got.data_id == expected.data_id
        assert torch.equal(got.ids, expected.ids) is not is_bad
        assert torch.equal(got.ids[:, 1:], got.labels[:, :-1])
        assert got.ids.max().item() < faulty.config.model.vocab_size


def test_lr_spike_multiplies_from_the_step_on() -> None:
    faulty, healthy = pair(f"lr_spike@{AT}*20")
    a, b = take(faulty, 3), take(healthy, 3)
    assert [x.lr / y.lr for x, y in zip(a, b, strict=True)] == pytest.approx([20.0] * 3)
    assert a[0].loss == b[0].loss  # the loss of the step is from before the update


# weights and operations


def test_bf16_weights_are_rounded_after_every_step() -> None:
    faulty, healthy = pair(f"bf16_weights@{AT}")
    assert take(faulty, 1) == take(healthy, 1)
    rounded = {n: w.to(torch.bfloat16).float() for n, w in weights(healthy).items()}
    assert equal(weights(faulty), rounded)
    take(faulty, 2)
    assert all(torch.equal(w, w.to(torch.bfloat16).float()) for w in weights(faulty).values())


def test_bf16_weights_are_rounded_when_the_optimizer_is_done() -> None:
    """A hook registered after the fault, as the agent's is, sees which stored weights did not change."""
    faulty, _ = pair(f"bf16_weights@{AT}", optim=OptimConfig(lr=1e-5, warmup=2, decay_steps=12))
    parameter = layer(faulty, "blocks.1.mlp.fc1").weight
    shares: list[float] = []
    before: list[torch.Tensor] = []
    faulty.optimizer.register_step_pre_hook(lambda *_: before.append(parameter.detach().clone()))
    faulty.optimizer.register_step_post_hook(
        lambda *_: shares.append((parameter.detach() == before[-1]).float().mean().item())
    )
    take(faulty, 3)
    assert shares[0] < 0.5  # the first rounding itself moves the weights
    assert min(shares[1:]) > 0.9


@pytest.mark.parametrize("bit", [0, 22, 30, 31])
def test_bit_flip_changes_one_bit_of_one_weight(bit: int) -> None:
    faulty, _ = pair(f"bit_flip@{AT}:blocks.1.mlp.fc1/weight*{bit}")
    before = weights(faulty)
    faulty.faults[0].begin_step(AT)
    after = weights(faulty)
    assert different(before, after) == ["blocks.1.mlp.fc1.weight"]
    a, b = (w["blocks.1.mlp.fc1.weight"].view(torch.int32) for w in (before, after))
    flipped = (a ^ b).flatten()
    assert flipped.count_nonzero().item() == 1
    assert int(flipped[flipped != 0].item()) & 0xFFFFFFFF == 1 << bit


def test_wrong_op_is_a_tile_of_the_forward_output_only() -> None:
    faulty, healthy = pair(f"wrong_op@{AT}:blocks.1.mlp.fc1/output*3")
    faulty.faults[0].begin_step(AT)
    x = torch.randn(2, 3, 32)
    out = layer(faulty, "blocks.1.mlp.fc1")(x)
    clean = layer(healthy, "blocks.1.mlp.fc1")(x)
    torch.testing.assert_close(out[..., :64], clean[..., :64] * 3)
    assert torch.equal(out[..., 64:], clean[..., 64:])
    grads: list[torch.Tensor] = []
    for module, result in (
        (layer(faulty, "blocks.1.mlp.fc1"), out),
        (layer(healthy, "blocks.1.mlp.fc1"), clean),
    ):
        module.weight.grad = None
        torch.autograd.backward(result.sum())
        assert module.weight.grad is not None
        grads.append(module.weight.grad)
    assert torch.equal(grads[0], grads[1])


def test_wrong_op_stays() -> None:
    faulty, healthy = pair(f"wrong_op@{AT}:blocks.0.mlp.fc2/output")
    assert all(a != b for a, b in zip(losses(take(faulty, 3)), losses(take(healthy, 3)), strict=True))


def test_faults_draw_from_the_seed() -> None:
    places = set()
    for seed in range(4):
        training = tiny_training(f"bit_flip@0:{TENSOR.replace('input', 'weight')}*0", seed=seed)
        before = weights(training)
        training.faults[0].begin_step(0)
        after = weights(training)
        name = "blocks.1.mlp.fc1.weight"
        places.add(int((before[name] != after[name]).flatten().nonzero().item()))
    assert len(places) > 1

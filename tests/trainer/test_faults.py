"""Every fault does what it says, to the tensor it names, from the step it names, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch

from floatscope_trainer.config import OptimConfig
from floatscope_trainer.data import IGNORED_LABEL, TokenBatch
from floatscope_trainer.emulated.scaling import DelayedScalingState
from floatscope_trainer.training import Training
from tests.trainer.small_runs import (
    HISTORY,
    Inspections,
    different,
    equal,
    layer,
    losses,
    scales,
    take,
    tiny_training,
    weights,
)

AT = 6  # the window is full by then
TENSOR = "blocks.1.mlp.fc1/input"


def pair(injection: str, **config: object) -> tuple[Training, Training]:
    """(faulty, healthy), both trained up to the fault's step; until then they are the same to the bit."""
    faulty, healthy = tiny_training(injection, **config), tiny_training(**config)
    assert take(faulty, AT) == take(healthy, AT)
    assert equal(weights(faulty), weights(healthy))
    assert equal(scales(faulty), scales(healthy))
    return faulty, healthy


def slot(training: Training, tensor: str = TENSOR) -> tuple[DelayedScalingState, int]:
    name, _, role = tensor.rpartition("/")
    state = layer(training, name).fp8_meta["scaling_bwd" if role == "grad_output" else "scaling_fwd"]
    return state, {"input": 0, "weight": 1, "grad_output": 0}[role]


def scale(training: Training, tensor: str = TENSOR) -> float:
    state, column = slot(training, tensor)
    return float(state.scale[column].item())


def batch_of(training: Training) -> TokenBatch:
    """The micro-batch of the next step."""
    seen: list[TokenBatch] = []
    training.step(see_batch=seen.append)
    return seen[0]


# inputs


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


# at the cast


@pytest.mark.parametrize("tensor", [TENSOR, "blocks.0.mlp.fc2/weight", "blocks.1.attn.proj/grad_output"])
def test_stale_scale_is_nothing_in_real_arithmetic(tensor: str) -> None:
    """Without quantization the factor cancels to the bit, in the weight gradient too."""
    faulty, healthy = pair(f"stale_scale@{AT}:{tensor}*16", precision="fp32")
    assert take(faulty, 3) == take(healthy, 3)
    assert equal(weights(faulty), weights(healthy))


def test_stale_scale_saturates_one_step_until_the_scale_follows() -> None:
    faulty, _ = pair(f"stale_scale@{AT}:{TENSOR}*16")
    seen = Inspections(faulty)
    old = scale(faulty)
    records = take(faulty, 3)
    assert scale(faulty) == pytest.approx(old / 16, rel=0.2)
    used = [s.item() for s in seen.scale[TENSOR] if s is not None]
    overflow = [
        ((t * s).abs() > 448).float().mean().item() for t, s in zip(seen.seen[TENSOR], used, strict=True)
    ]
    assert used[0] == old
    assert overflow[0] > 0.3
    assert max(overflow[1:]) < 0.02
    assert all(math.isfinite(loss) for loss in losses(records))


def test_stale_scale_touches_only_its_tensor() -> None:
    faulty, healthy = pair(f"stale_scale@{AT}:{TENSOR}*16")
    take(faulty, 1)
    take(healthy, 1)
    ours, theirs = slot(faulty)[0].amax_history[-1], slot(healthy)[0].amax_history[-1]
    assert ours[0].item() == theirs[0].item() * 16
    assert ours[1].item() == theirs[1].item()
    forward = [n for n in different(scales(faulty), scales(healthy)) if "scaling_fwd.scale" in n]
    downstream = ("blocks.1.mlp.fc1", "blocks.1.mlp.fc2")
    assert all(n.startswith(downstream) for n in forward)  # nothing before it in forward order


def test_stale_scale_on_a_nonsaturating_cast_gives_nan_at_once() -> None:
    faulty, _ = pair(f"stale_scale@{AT}:{TENSOR}*256", cast="nonsaturating", margin=4)
    seen = Inspections(faulty)
    assert math.isnan(take(faulty, 1)[0].loss)
    assert not seen.seen["blocks.1.attn.qkv/input"][0].isnan().any()  # clean before the tensor


def test_current_scaling_follows_at_once() -> None:
    faulty, healthy = pair(f"stale_scale@{AT}:*/input*16", recipe="current")
    assert take(faulty, 2) == take(healthy, 2)  # a power of two moves no value in its binade


def test_history_poison_leaves_its_own_step_as_it_was() -> None:
    faulty, healthy = pair(f"history_poison@{AT}:{TENSOR}*1e5")
    assert take(faulty, 1) == take(healthy, 1)
    assert equal(weights(faulty), weights(healthy))
    changed = different(scales(faulty), scales(healthy))
    assert sorted(changed) == [
        "blocks.1.mlp.fc1/scaling_fwd.amax_history",
        "blocks.1.mlp.fc1/scaling_fwd.scale",
    ]
    ours, theirs = slot(faulty)[0].amax_history[-1], slot(healthy)[0].amax_history[-1]
    assert ours[0].item() == pytest.approx(theirs[0].item() * 1e5)
    assert ours[1].item() == theirs[1].item()


def test_history_poison_lasts_exactly_one_window() -> None:
    faulty, healthy = pair(f"history_poison@{AT}:{TENSOR}*1e5")
    ratios = []
    for _ in range(HISTORY + 2):
        ratios.append(scale(faulty) / scale(healthy))
        take(faulty, 1)
        take(healthy, 1)
    assert ratios[0] == 1.0
    assert all(ratio < 1e-4 for ratio in ratios[1 : HISTORY + 1])
    assert ratios[HISTORY + 1] > 0.5


def test_history_poison_shows_one_outlier_at_the_cast() -> None:
    faulty, healthy = pair(f"history_poison@{AT}:{TENSOR}*1e5")
    ours, theirs = Inspections(faulty), Inspections(healthy)
    take(faulty, 1)
    take(healthy, 1)
    outliers = ours.seen[TENSOR][0] != theirs.seen[TENSOR][0]
    assert outliers.sum().item() == 1
    assert torch.equal(ours.used[TENSOR][0], theirs.used[TENSOR][0])  # removed again before the GEMM


def test_history_poison_is_in_one_pass_of_the_step() -> None:
    faulty, _ = pair(f"history_poison@{AT}:{TENSOR}*1e5", passes=2)
    take(faulty, 1)
    newest = slot(faulty)[0].amax_history[-2:, 0].tolist()
    assert newest[0] > 1e4 * newest[1]


def test_round_to_zero_rounds_down_from_the_step_on_and_only_where_asked() -> None:
    faulty, _ = pair(f"round_to_zero@{AT}:*/weight")
    seen = Inspections(faulty)
    take(faulty, 2)
    for name in ("blocks.0.attn.qkv/weight", "blocks.1.mlp.fc2/weight"):
        for tensor, used in zip(seen.seen[name], seen.used[name], strict=True):
            assert bool((used.abs() <= tensor.abs() * (1 + 1e-6)).all())
    rounded_up = seen.used[TENSOR][0].abs() > seen.seen[TENSOR][0].abs() * (1 + 1e-6)
    assert 0.2 < rounded_up.float().mean().item() < 0.8


# scale state


def test_scale_frozen_keeps_scales_while_histories_go_on() -> None:
    faulty, healthy = pair(f"scale_frozen@{AT}:{TENSOR}")
    kept = scale(faulty)
    other = scale(faulty, "blocks.0.attn.qkv/weight")
    for _ in range(HISTORY + 1):
        take(faulty, 1)
        take(healthy, 1)
        assert scale(faulty) == kept
    assert scale(faulty, "blocks.0.attn.qkv/weight") != other
    assert scale(healthy) != kept
    assert slot(faulty)[0].amax_history[-1, 0] != slot(faulty)[0].amax_history[-2, 0]


def test_scale_frozen_without_a_tensor_freezes_all() -> None:
    faulty, _ = pair(f"scale_frozen@{AT}")
    before = {n: t for n, t in scales(faulty).items() if n.endswith(".scale")}
    take(faulty, 3)
    assert equal(before, {n: t for n, t in scales(faulty).items() if n.endswith(".scale")})


def test_scale_nan_is_one_pass_and_gives_nan_from_its_tensor_on() -> None:
    faulty, healthy = pair(f"scale_nan@{AT}:{TENSOR}")
    seen = Inspections(faulty)
    assert math.isnan(take(faulty, 1)[0].loss)
    take(healthy, 1)
    used = seen.scale[TENSOR][0]
    assert used is not None
    assert math.isnan(used.item())
    assert not seen.seen[TENSOR][0].isnan().any()
    assert seen.used[TENSOR][0].isnan().all()
    assert scale(faulty) == scale(healthy)  # healed by the update


def test_scale_inf_silently_zeroes_the_tensor_for_one_pass() -> None:
    faulty, healthy = pair(f"scale_inf@{AT}:{TENSOR}")
    seen = Inspections(faulty)
    record = take(faulty, 1)[0]
    take(healthy, 1)
    assert math.isfinite(record.loss)
    assert seen.used[TENSOR][0].count_nonzero().item() == 0
    assert seen.seen[TENSOR][0].count_nonzero().item() > 0
    assert scale(faulty) == scale(healthy)


def test_history_lost_is_scale_one_everywhere_for_one_step() -> None:
    faulty, _ = pair(f"history_lost@{AT}")
    seen = Inspections(faulty)
    take(faulty, 2)
    assert {s.item() for calls in seen.scale.values() for s in calls[:1] if s is not None} == {1.0}
    second = [calls[1] for calls in seen.scale.values()]
    assert all(s is not None and s.item() != 1.0 for s in second)
    history = slot(faulty)[0].amax_history[:, 0]
    assert (history > 0).tolist() == [False, False, True, True]


def test_degenerate_amax_is_zero_then_an_infinite_scale_for_one_step() -> None:
    faulty, healthy = pair(f"degenerate_amax@{AT}:{TENSOR}")
    before = slot(faulty)[0].amax_history.clone()
    seen = Inspections(faulty)
    assert take(faulty, 1) == take(healthy, 1)  # the GEMM used the true tensor
    assert seen.seen[TENSOR][0].abs().max().item() == 0.0
    assert torch.equal(slot(faulty)[0].amax_history[:, 0], before[:, 0])  # not rolled at amax 0
    assert scale(faulty) == math.inf
    assert math.isfinite(take(faulty, 1)[0].loss)
    assert seen.used[TENSOR][1].count_nonzero().item() == 0
    assert math.isfinite(scale(faulty))


def test_gradient_underflow_fixes_the_scale_where_the_state_shows_it() -> None:
    tensor = "blocks.1.mlp.fc2/grad_output"
    faulty, _ = pair(f"gradient_underflow@{AT}:{tensor}*1e-6")
    seen = Inspections(faulty)
    take(faulty, 3)
    assert [s.item() for s in seen.scale[tensor] if s is not None] == pytest.approx([1e-6] * 3)
    lost = (seen.used[tensor][0] == 0) & (seen.seen[tensor][0] != 0)
    assert lost.float().mean().item() > 0.9
    assert scale(faulty, "blocks.0.mlp.fc2/grad_output") > 1.0


@pytest.mark.parametrize("recipe", ["current", "block", "mxfp8"])
def test_gradient_underflow_without_state(recipe: str) -> None:
    tensor = "blocks.1.mlp.fc2/grad_output"
    faulty, _ = pair(f"gradient_underflow@{AT}*1e-6", recipe=recipe)
    seen = Inspections(faulty)
    take(faulty, 1)
    used = seen.scale[tensor][0]
    assert used is not None
    assert used.flatten().tolist() == pytest.approx([1e-6] * used.numel())
    assert seen.used[tensor][0].count_nonzero().item() == 0
    assert seen.used["blocks.1.mlp.fc2/input"][0].count_nonzero().item() > 0


def test_gradient_scale_falls_bit_by_bit_below_the_right_one() -> None:
    tensor = "blocks.1.mlp.fc2/grad_output"
    faulty, healthy = pair(f"gradient_scale_falls@{AT}:{tensor}*2")
    ours, theirs = Inspections(faulty), Inspections(healthy)
    take(faulty, 3)
    take(healthy, 3)
    bits = [
        math.log2(b.item() / a.item())
        for a, b in zip(ours.scale[tensor], theirs.scale[tensor], strict=True)
        if a is not None and b is not None
    ]
    assert bits == pytest.approx([2.0, 4.0, 6.0], abs=0.3)
    assert bits[0] == pytest.approx(2.0, abs=1e-6)


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


def test_two_faults_at_one_tensor() -> None:
    """A frozen scale under a grown activation overflows for good."""
    faulty = tiny_training(f"stale_scale@{AT}:{TENSOR}*16", f"scale_frozen@{AT}:{TENSOR}")
    take(faulty, AT)
    seen = Inspections(faulty)
    take(faulty, 3)
    for tensor, used in zip(seen.seen[TENSOR], seen.scale[TENSOR], strict=True):
        assert used is not None
        assert ((tensor * used).abs() > 448).float().mean().item() > 0.3

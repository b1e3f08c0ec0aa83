"""Faults at the cast and in the scale state: exact, where they say, when they say, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch

from tests.trainer.fault_pairs import AT, TENSOR, pair, scale, slot
from tests.trainer.small_runs import (
    HISTORY,
    Inspections,
    different,
    equal,
    losses,
    scales,
    take,
    tiny_training,
    weights,
)


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
    errors = [
        ((t - u).norm() / t.norm()).item() for t, u in zip(seen.seen[TENSOR], seen.used[TENSOR], strict=True)
    ]
    assert errors[0] > 0.3
    assert max(errors[1:]) < 0.04, "what met the cast is held against what the cast left of it"


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


def test_two_faults_at_one_tensor() -> None:
    """A frozen scale under a grown activation overflows for good."""
    faulty = tiny_training(f"stale_scale@{AT}:{TENSOR}*16", f"scale_frozen@{AT}:{TENSOR}")
    take(faulty, AT)
    seen = Inspections(faulty)
    take(faulty, 3)
    for tensor, used in zip(seen.seen[TENSOR], seen.scale[TENSOR], strict=True):
        assert used is not None
        assert ((tensor * used).abs() > 448).float().mean().item() > 0.3

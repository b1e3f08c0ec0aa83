"""Roofline, break-even sizes, traffic, pipeline and cost by hand-computed numbers."""

from __future__ import annotations

import pytest

from floatscope.hardware.gpu_lookup import find_gpu
from floatscope.hardware.roofline import bf16_seconds, low_seconds
from floatscope.model_shapes.reading import read_model
from floatscope.model_shapes.shape import Parallelism
from floatscope_diagnostics.plan.communication import bus_gb_s, communication
from floatscope_diagnostics.plan.cost import Interval, around, per_million_tokens, saving_pct
from floatscope_diagnostics.plan.gemms import (
    How,
    break_even_square,
    break_even_tokens,
    speedup,
)
from floatscope_diagnostics.plan.planning import Wish, make_plan
from floatscope_diagnostics.plan.rates import rates_of
from floatscope_diagnostics.plan.setup import PlanError
from floatscope_diagnostics.plan.step_time import attention_flops_per_token, step_time
from tests.diagnostics.plan.setups import recipe, setup_of

H100 = find_gpu("H100")
RATES = rates_of(H100)
LLAMA = read_model("llama-3-8b")


@pytest.mark.parametrize(
    ("gpu", "key", "sizes"),
    [
        ("H100", "ao_tensorwise", (2624, 1472, 1152)),
        ("H100", "fp8_delayed_scaling", (1600, 1024, 768)),
        ("H100", "ao_rowwise", (3520, 1920, 1600)),
        ("B200", "ao_tensorwise", (3456, 1792, 1280)),
        ("H200 NVL", "ao_tensorwise", (1920, 1088, 768)),
        ("MI300X", "ao_tensorwise", (2624, 1408, 1024)),
        ("RTX 4090", "ao_tensorwise", (1088, 768, 640)),
    ],
)
def test_break_even_sizes_at_2k_8k_and_32k_tokens(gpu: str, key: str, sizes: tuple[int, int, int]) -> None:
    found = find_gpu(gpu)
    assert tuple(break_even_square(t, found, recipe(key)) for t in (2048, 8192, 32768)) == sizes


def test_the_roofline_of_one_linear() -> None:
    t, k, n = 8192, 4096, 14336
    assert bf16_seconds(t, k, n, H100) == pytest.approx(6 * t * k * n / (989e12 * 0.78))
    bytes_moved = 6 * t * k + 8 * k * n + 6 * t * n
    expected = 6 * t * k * n / (1979e12 * 0.78) + bytes_moved / (3.35e12 * 0.92) + 8 * 2e-6
    low = low_seconds(t, k, n, H100, recipe("ao_tensorwise").casts)
    assert low == pytest.approx(expected)
    gain = speedup(t, k, n, H100, recipe("ao_tensorwise"))
    assert gain == pytest.approx(1 + 0.8 * (bf16_seconds(t, k, n, H100) / expected - 1))


def test_few_tokens_are_bound_by_memory_not_compute() -> None:
    assert bf16_seconds(1, 4096, 4096, H100) > 4096 * 4096 * 6 / (3.35e12 * 0.92)


def test_torchao_skips_small_linears_where_the_plan_says_it_does_not_pay() -> None:
    # torchao's H100 filters: tensorwise skips K <= 4096 and N <= 1024; rowwise N <= 2048 (8192 tokens)
    assert speedup(2048, 4096, 1024, H100, recipe("ao_tensorwise")) < 1
    assert speedup(8192, 2048, 2048, H100, recipe("ao_rowwise")) < 1.05
    assert speedup(8192, 4096, 14336, H100, recipe("ao_tensorwise")) > 1.3


def test_the_tokens_from_which_a_linear_pays_are_the_fewest() -> None:
    chosen = recipe("ao_rowwise")
    tokens = break_even_tokens(4096, 1024, H100, chosen)
    assert tokens is not None
    assert speedup(tokens, 4096, 1024, H100, chosen) > 1
    assert speedup(tokens - 64, 4096, 1024, H100, chosen) <= 1
    assert break_even_tokens(768, 768, H100, chosen) is None


def test_without_compile_torchao_is_four_times_slower() -> None:
    assert speedup(8192, 4096, 14336, H100, recipe("ao_tensorwise"), How(compiled=False)) == 0.23
    assert speedup(8192, 4096, 14336, H100, recipe("fp8_delayed_scaling"), How(compiled=False)) > 1


def test_experts_of_a_layer_share_the_launches_of_one_grouped_product() -> None:
    chosen = recipe("ao_tensorwise")
    alone = low_seconds(512, 2048, 768, H100, chosen.casts)
    grouped = low_seconds(512, 2048, 768, H100, chosen.casts, grouped=128)
    assert alone - grouped == pytest.approx(8 * 2e-6 * (1 - 1 / 128))
    moe = read_model("qwen3-30b-a3b")
    time = step_time(moe, H100, setup_of(8, Parallelism(expert=8)), RATES, chosen)
    assert {one.how.grouped for one in time.linears if one.kind == "expert"} == {128 / 8}


def test_attention_counts_a_causal_mask_once() -> None:
    flash = setup_of(1, sequence=8192)
    assert attention_flops_per_token(LLAMA, flash) == 2 * 8192 * 4096 * 32 * 3.5
    full = setup_of(1, sequence=8192, recompute="full")
    assert attention_flops_per_token(LLAMA, full) == 2 * 8192 * 4096 * 32 * 4.5
    eager = setup_of(1, sequence=8192, attention="eager")
    assert attention_flops_per_token(LLAMA, eager) == 4 * 8192 * 4096 * 32 * 3


def test_sharding_traffic_hides_behind_computation_or_adds_what_is_left() -> None:
    setup = setup_of(8)
    hidden = communication(LLAMA, setup, RATES, None, compute_s=100.0)
    bare = communication(LLAMA, setup, RATES, None, compute_s=0.0)
    # two gathers of 2 bytes and one reduction of 4 per parameter, 7/8 of it over 450 GB/s x 0.75
    assert bare.sharding == pytest.approx(8 * LLAMA.parameters * 7 / 8 / (450e9 * 0.75))
    assert hidden.sharding == pytest.approx(bare.sharding / 32)  # the first layer's


def test_fp8_all_gather_halves_the_weights_of_linears() -> None:
    chosen = recipe("ao_tensorwise")
    low = sum(one.parameters for one in LLAMA.linears if one.kind != "head")
    bf16 = communication(LLAMA, setup_of(8), RATES, chosen, 0.0).sharding_total
    fp8 = communication(LLAMA, setup_of(8, fp8_all_gather=True), RATES, chosen, 0.0).sharding_total
    assert bf16 - fp8 == pytest.approx(2 * low * 7 / 8 / (450e9 * 0.75))


def test_nodes_share_their_network_cards() -> None:
    assert bus_gb_s(RATES, 8) == 450 * 0.75
    assert bus_gb_s(RATES, 16) == 400 * 0.75  # eight cards of 50 GB/s
    assert bus_gb_s(RATES, 16, stride=8) == 50 * 0.75  # one card for each of eight groups


def test_the_bubble_is_stages_minus_one_over_micro_batches() -> None:
    cut = Parallelism(pipeline=4)
    time = step_time(LLAMA, H100, setup_of(4, cut, accumulate=12), RATES, None)
    busy = time.linears_low + time.linears_high + time.attention + time.elementwise
    assert time.bubble == pytest.approx(busy * 3 / 12)


def test_a_measured_share_and_step_replace_the_models() -> None:
    wish = Wish(recipes=("ao_tensorwise",), bf16_step_s=2.0, linear_share=0.5)
    plan = make_plan(LLAMA, H100, setup_of(8), RATES, wish)
    bf16, low = plan.plans
    assert (bf16.step_s.low, bf16.step_s.high) == (2.0, 2.0)
    expected = 1 / (0.5 + 0.5 / low.linear_speedup)
    assert low.speedup.value == pytest.approx(expected)
    assert low.step_s.value == pytest.approx(2.0 / expected)


def test_thirty_pct_more_throughput_is_23_pct_less_cost() -> None:
    assert saving_pct(Interval(1.3, 1.3, 4 / 3)).value == pytest.approx(23.08, abs=0.01)
    assert saving_pct(Interval(1.3, 1.3, 4 / 3)).high == pytest.approx(25.0)


def test_cost_per_million_tokens() -> None:
    found = per_million_tokens(around(2.0, 0.25), tokens_per_step=1_000_000, gpus=8, price=3.0)
    assert (found.low, found.value, found.high) == pytest.approx((0.01, 8 * 3 * 2 / 3600, 0.016667), rel=1e-4)


def test_a_linear_whose_shape_a_recipe_refuses_stays_bf16() -> None:
    gpt2 = read_model("gpt2")  # a vocabulary of 50257
    plan = make_plan(gpt2, H100, setup_of(1, fp8_head=True, micro_batch=32), RATES, Wish())
    for one in plan.plans[1:]:
        head = one.linears[-1].time
        assert head.misfit
        assert not head.converted
        assert head.low_s == head.bf16_s


@pytest.mark.parametrize("price", [-1.0, 0.0, float("nan"), float("inf")])
def test_prices_that_are_none_are_refused(price: float) -> None:
    with pytest.raises(PlanError, match="--price"):
        make_plan(LLAMA, H100, setup_of(8), RATES, Wish(price=price))


def test_interleaving_divides_the_bubble_and_holds_more_activations() -> None:
    plain = setup_of(8, Parallelism(pipeline=4), accumulate=8)
    pieces = setup_of(8, Parallelism(pipeline=4), accumulate=8, virtual=4)
    whole, cut = (step_time(LLAMA, H100, one, RATES, None) for one in (plain, pieces))
    assert cut.bubble == pytest.approx(whole.bubble / 4)
    assert cut.seconds - cut.bubble == pytest.approx(whole.seconds - whole.bubble)
    assert (plain.in_flight, pieces.in_flight) == (4, 4 + 3 / 4)
    assert setup_of(8, Parallelism(pipeline=4), accumulate=2, virtual=4).in_flight == 2


def test_traffic_to_experts_is_hidden_as_far_as_the_stack_or_the_user_says() -> None:
    moe = read_model("mixtral-8x7b")
    cut = Parallelism(expert=8)
    exposed = step_time(moe, H100, setup_of(8, cut), RATES, None).expert
    half = step_time(moe, H100, setup_of(8, cut, expert_overlap=0.5), RATES, None).expert
    assert exposed > 0
    assert half == pytest.approx(exposed / 2)
    megatron = rates_of(H100, stack="megatron")
    assert step_time(moe, H100, setup_of(8, cut, stack="megatron"), megatron, None).expert == 0


def test_traffic_of_tensor_parallelism_is_hidden_as_far_as_the_stack_or_the_user_says() -> None:
    cut = Parallelism(tensor=8, sequence=True)
    exposed = step_time(LLAMA, H100, setup_of(8, cut), RATES, None).tensor
    megatron = rates_of(H100, stack="megatron")
    hidden = step_time(LLAMA, H100, setup_of(8, cut, stack="megatron"), megatron, None).tensor
    assert hidden == pytest.approx(0.15 * exposed)
    assert step_time(LLAMA, H100, setup_of(8, cut, tensor_overlap=1.0), RATES, None).tensor == 0


def test_a_stack_has_its_own_share_where_runs_of_it_are_published() -> None:
    assert rates_of(H100, stack="megatron").calibrated_on == "mb-h100-llama3-8b"
    assert rates_of(H100).calibrated_on == "titan-8b-8-bf16"
    amd = rates_of(find_gpu("MI300X"), stack="megatron")
    assert (amd.stack, amd.step) == ("torchtitan", rates_of(find_gpu("MI300X")).step)
    assert rates_of(find_gpu("GB200")).gpus_per_node == 72

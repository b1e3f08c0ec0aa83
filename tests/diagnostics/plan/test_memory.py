"""Memory by hand-computed numbers: bytes per parameter, activations, ZeRO, logits."""

from __future__ import annotations

from typing import Any

import pytest

from floatscope.hardware.gpu_lookup import find_gpu
from floatscope.model_shapes.reading import read_model
from floatscope.model_shapes.shape import ModelShape, Parallelism
from floatscope_diagnostics.plan.activations import kept_bytes, layer_bytes
from floatscope_diagnostics.plan.memory import Memory, largest_micro_batch, memory, state_bytes
from floatscope_diagnostics.plan.setup import Setup
from tests.diagnostics.plan.setups import recipe, setup_of

GIB = 2**30
H100, B200 = find_gpu("H100"), find_gpu("B200")
LLAMA = read_model("llama-3-8b")
GPT3 = read_model("gpt-3-175b")


def low_share(shape: ModelShape) -> float:
    """Parameters of the linears that go FP8, as a share of all."""
    low = sum(one.parameters for one in shape.linears if one.kind != "head")
    return low / shape.parameters


def per_parameter(setup: Setup, key: str = "", gpu: str = "H100") -> float:
    chosen = recipe(key) if key else None
    return state_bytes(LLAMA, find_gpu(gpu), setup, chosen) / LLAMA.parameters


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"sharding": "zero0"}, 18.0),
        ({"sharding": "zero0", "gradients": "bf16"}, 16.0),
        ({"sharding": "zero0", "optimizer": "remainders"}, 16.0),
        ({"sharding": "zero0", "optimizer": "bf16-moments"}, 14.0),
        ({"sharding": "zero0", "optimizer": "8bit"}, 12.03125),
        ({"sharding": "fsdp"}, 16.0),
    ],
)
def test_bytes_per_parameter_of_bf16(words: dict[str, Any], expected: float) -> None:
    assert per_parameter(setup_of(1, **words)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "gpu", "added"),
    [
        ("fp8_delayed_scaling", "H100", 2.0),  # a row-wise and a transposed copy
        ("fp8_delayed_scaling", "B200", 1.0),  # takes all layouts
        ("fp8_delayed_scaling", "RTX 5090", 2.0),  # TN only again
        ("fp8_block_scaling", "H100", 2.0),
        ("mxfp8", "B200", 2.0625),
        ("nvfp4", "B200", 1.125),
        ("ao_tensorwise", "H100", 1.0),
    ],
)
def test_fp8_adds_copies_of_the_weights(key: str, gpu: str, added: float) -> None:
    setup = setup_of(1, sharding="zero0")
    assert per_parameter(setup, key, gpu) == pytest.approx(18 + added * low_share(LLAMA))


def test_primary_fp8_weights_take_17_to_18_bytes() -> None:
    setup = setup_of(1, sharding="zero0", primary_fp8=True)
    share = low_share(LLAMA)
    assert per_parameter(setup, "fp8_delayed_scaling", "B200") == pytest.approx(18 - share)
    assert per_parameter(setup, "fp8_delayed_scaling", "H100") == pytest.approx(18.0)


@pytest.mark.parametrize(("stage", "expected"), [(1, 6 + 12 / 64), (2, 2 + 16 / 64), (3, 18 / 64)])
def test_zero_divides_what_its_stage_says(stage: int, expected: float) -> None:
    assert per_parameter(setup_of(64, sharding=f"zero{stage}")) == pytest.approx(expected)


def test_a_llama_layer_keeps_12h_4kv_6f_in_bf16_and_13_pct_less_in_fp8() -> None:
    setup = setup_of(1)
    bf16 = layer_bytes(LLAMA, setup, None)
    fp8 = layer_bytes(LLAMA, setup, recipe("fp8_delayed_scaling"))
    assert bf16 == 12 * 4096 + 4 * 1024 + 6 * 14336
    assert fp8 == 11 * 4096 + 4 * 1024 + 5 * 14336
    assert 1 - fp8 / bf16 == pytest.approx(0.13, abs=0.005)
    assert layer_bytes(LLAMA, setup, recipe("ao_tensorwise")) == bf16  # torchao saves BF16 inputs


def test_a_gpt_layer_keeps_what_korthikanti_writes() -> None:
    h, a, s, t = 12288, 96, 2048, 8
    scores = 5 * a * s
    plain = setup_of(1, sequence=s, attention="eager")
    assert layer_bytes(GPT3, plain, None) == 34 * h + scores
    tensor = setup_of(t, Parallelism(tensor=t), sequence=s, attention="eager")
    assert layer_bytes(GPT3, tensor, None) == 10 * h + (24 * h + scores) / t
    both = setup_of(t, Parallelism(tensor=t, sequence=True), sequence=s, attention="eager")
    assert layer_bytes(GPT3, both, None) == (34 * h + scores) / t
    selective = setup_of(
        t, Parallelism(tensor=t, sequence=True), sequence=s, attention="eager", recompute="selective"
    )
    assert kept_bytes(GPT3, selective, None) == 34 * h / t
    full = setup_of(1, sequence=s, recompute="full")
    assert kept_bytes(GPT3, full, None) == 2 * h


def test_logits_of_8b_at_two_sequences_are_19_6_gib() -> None:
    found = memory(LLAMA, H100, setup_of(8, micro_batch=2, sequence=8192), None)
    assert found.part("logits") / GIB == pytest.approx(19.57, abs=0.01)


def test_routed_experts_are_divided_by_expert_parallelism_and_nothing_else_is() -> None:
    mixtral = read_model("mixtral-8x7b")
    one = memory(mixtral, H100, setup_of(8, sharding="zero0"), None).part("weights")
    eight = memory(mixtral, H100, setup_of(8, Parallelism(expert=8), sharding="zero0"), None).part("weights")
    experts = sum(x.parameters for x in mixtral.linears if x.kind == "expert")
    assert one - eight == pytest.approx(2 * experts * 7 / 8)


def test_the_fullest_pipeline_stage_is_told() -> None:
    cut = Parallelism(pipeline=4)
    wide = memory(LLAMA, H100, setup_of(4, cut, micro_batch=4, sequence=8192, recompute="full"), None)
    assert wide.stage == "last"  # the logits
    long = memory(
        LLAMA, H100, setup_of(4, cut, micro_batch=4, sequence=8192, accumulate=4, logits="chunked"), None
    )
    assert long.stage == "first"  # four micro-batches in flight


def test_fit_uses_both_ends_of_the_interval() -> None:
    def of(estimate_gb: float) -> Memory:
        found = memory(LLAMA, H100, setup_of(8), None)
        part = found.parts[0].__class__("all", estimate_gb * 1e9)
        return Memory((part,), found.capacity, "only")

    assert [of(x).fits for x in (64.0, 64.1, 80.0, 80.1)] == [
        "fits",
        "may not fit",
        "may not fit",
        "does not fit",
    ]


def test_the_largest_micro_batch_is_the_last_that_surely_fits() -> None:
    setup = setup_of(8, sequence=2048, recompute="full")
    largest = largest_micro_batch(LLAMA, H100, setup, None)
    fits = [
        memory(LLAMA, H100, setup_of(8, sequence=2048, recompute="full", micro_batch=b), None).fits
        for b in (largest, largest + 1)
    ]
    assert fits[0] == "fits"
    assert fits[1] != "fits"
    assert largest_micro_batch(read_model("llama-3.1-405b"), H100, setup_of(8), None) == 0


def test_gradients_and_activations_are_never_whole_at_once_with_one_micro_batch() -> None:
    """Before the backward pass there are no gradients, after it no activations and logits."""
    once = memory(LLAMA, H100, setup_of(8, sequence=8192), None)
    assert once.lower == pytest.approx(once.estimate - once.part("gradients"))
    tiny = memory(LLAMA, H100, setup_of(1, sequence=16), None)
    assert tiny.lower == pytest.approx(tiny.estimate - tiny.part("activations") - tiny.part("logits"))
    for held in (setup_of(8, accumulate=2), setup_of(8, sharding="zero1")):
        kept = memory(LLAMA, H100, held, None)
        assert kept.lower == kept.estimate

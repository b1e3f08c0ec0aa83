"""Rules of shape: each is reached, names dimension and padded value, and leaves fitting models alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.model_shapes.reading import from_fields, published_names, read_model
from floatscope.model_shapes.shape import ModelShape, Parallelism
from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.shape_checks import shape_checks
from floatscope.preflight.shape_layers import layer_rows
from floatscope.preflight.shape_rules import SIXTEEN_BIT, rules_for
from floatscope.preflight.table_reading import read_table
from floatscope.protocol.names import RECIPES
from tests.agent.preflight.machines import gpu

H100 = Facts(gpus=(gpu(),))
B200 = Facts(gpus=(gpu("NVIDIA B200", (10, 0)),))
DELAYED, CURRENT, BLOCK = "fp8_delayed_scaling", "fp8_current_scaling", "fp8_block_scaling"


def model(**changes: Any) -> ModelShape:
    fields = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 1024, "vocab_size": 1024}  # fmt: skip
    return from_fields(fields | changes, source="config.json", name="small")


def wanted(recipe: str, library: str = "transformer_engine", **changes: Any) -> Wanted:
    fields: dict[str, Any] = {"model": model(), "micro_batch": 1, "sequence": 4096} | changes
    return Wanted(recipe=recipe, library=library, **fields)


def checks(facts: Facts, wants: Wanted) -> dict[str, Check]:
    return {one.name: one for one in shape_checks(facts, wants)}


REACHED = [
    ("te_module", DELAYED, "transformer_engine", {"model": model(intermediate_size=1000)}, "fail", "1,008"),
    ("te_tensor_scaling", CURRENT, "transformer_engine", {"sequence": 4104}, "fail", "4,112"),
    ("te_block_gather", BLOCK, "megatron",
     {"model": model(intermediate_size=2752), "parallelism": Parallelism(tensor=2)}, "warn", "1,408"),
    ("te_mxfp8", "mxfp8", "transformer_engine", {"sequence": 4112}, "fail", "4,128"),
    ("te_nvfp4", "nvfp4", "transformer_engine", {"model": model(intermediate_size=1040)}, "fail", "1,056"),
    ("torch_scaled_mm", DELAYED, "torch", {"sequence": 4100}, "fail", "4,112"),
    ("ao_weights", "ao_rowwise", "torchao", {"model": model(vocab_size=50257)}, "warn", "50,272"),
    ("ao_tokens", "ao_tensorwise", "torchao", {"sequence": 4097}, "fail", "4,112"),
    ("ao_block", BLOCK, "torchao", {"model": model(intermediate_size=1040)}, "fail", "1,152"),
    ("ao_mxfp8", "mxfp8", "torchao", {"sequence": 4112}, "fail", "4,128"),
    ("ao_mxfp8_kernel", "mxfp8", "torchao", {"sequence": 4128}, "warn", "4,224"),
    ("ao_nvfp4", "nvfp4", "torchao", {"sequence": 4104}, "fail", "4,112"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "recipe", "library", "changes", "status", "padded"), REACHED)
def test_every_rule_is_reached_and_names_the_padded_value(
    rule: str, recipe: str, library: str, changes: dict[str, Any], status: str, padded: str
) -> None:
    (entry,) = [one for one in read_table("shapes")["rules"] if one["id"] == rule]
    found = checks(H100, wanted(recipe, library, **changes)).values()
    broken = [one for one in found if entry["why"] in one.why]
    assert broken
    for one in broken:
        assert (one.status, one.source) == (status, entry["source"])
        assert padded in one.read
        assert padded in one.do


def test_all_rules_of_the_table_are_above() -> None:
    table = read_table("shapes")
    assert [one["id"] for one in table["rules"]] == [one[0] for one in REACHED]
    assert all(one["source"] for one in (*table["rules"], *table["experts"], *table["stays_out"]))


@pytest.mark.parametrize("recipe", [DELAYED, CURRENT, BLOCK, "mxfp8", "nvfp4"])
@pytest.mark.parametrize("library", ["transformer_engine", "megatron"])
def test_a_published_model_passes(recipe: str, library: str) -> None:
    own = wanted(recipe, library, model=read_model("llama-3-8b"), sequence=8192)
    found = checks(H100, own)
    assert {one.status for one in found.values()} == {"pass"}
    assert "224 of 225" in found["shape.linears"].read


def test_the_swiglu_of_llama_2_is_no_multiple_of_128_after_tensor_parallelism() -> None:
    own = wanted(BLOCK, "megatron", model=read_model("llama-2-7b"), parallelism=Parallelism(tensor=8))
    found = checks(H100, own)["shape.model.layers.*.mlp.down_proj"]
    assert "1,376" in found.read
    assert "1,408" in found.read
    own = wanted(BLOCK, "megatron", model=read_model("llama-3-8b"), parallelism=Parallelism(tensor=8))
    assert "shape.model.layers.*.mlp.down_proj" not in checks(H100, own)


def test_on_blackwell_tokens_need_only_be_a_multiple_of_8_and_without_a_gpu_it_is_a_warning() -> None:
    own = wanted(CURRENT, sequence=4104)
    assert checks(B200, own)["shape.tokens"].status == "pass"
    unsure = checks(Facts(), own)["shape.tokens"]
    assert unsure.status == "warn"
    assert "not known" in unsure.why


def test_the_last_short_batch() -> None:
    assert checks(H100, wanted("mxfp8"))["shape.last_batch"].status == "pass"
    short = checks(H100, wanted("mxfp8", micro_batch=32, sequence=1001))["shape.last_batch"]
    assert short.status == "warn"
    assert "1,024" in short.do


def test_without_a_batch_tokens_are_unknown_and_nothing_else_changes() -> None:
    found = checks(H100, wanted("mxfp8", micro_batch=0, sequence=0))
    assert found["shape.tokens"].status == "unknown"
    assert "--micro-batch" in found["shape.tokens"].do
    assert {row["tokens"] for row in layer_rows(H100, wanted("mxfp8", sequence=0))} == {None}


@pytest.mark.parametrize(("recipe", "padded"), [("mxfp8", "128"), (DELAYED, "112")])
def test_a_padded_size_suits_all_rules_and_not_only_the_first(recipe: str, padded: str) -> None:
    found = checks(Facts(), wanted(recipe, sequence=100))["shape.tokens"]
    assert f"padded: {padded}" in found.read
    assert f" {padded}," in found.do
    again = checks(Facts(), wanted(recipe, sequence=int(padded)))
    assert again["shape.tokens"].status == "pass"


def test_arguments_of_a_job_that_were_not_given_are_named() -> None:
    words = {"num_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 1024}
    job = {"tensor_model_parallel_size": 4, "micro_batch_size": 2, "seq_length": 2048}
    cut = from_fields(words | job, source="gpt.sh", name="gpt")
    found = checks(Facts(), wanted("mxfp8", "megatron", model=cut))["shape.job"]
    assert "tensor_model_parallel_size 4, micro_batch_size 2, seq_length 2,048" in found.read
    assert found.status == "warn"
    as_said = wanted("mxfp8", "megatron", model=cut, parallelism=Parallelism(tensor=4))
    assert "shape.job" not in checks(Facts(), as_said)
    plain = from_fields(words | {"seq_length": 2048}, source="gpt.sh", name="gpt")
    assert "shape.job" not in checks(Facts(), wanted("mxfp8", "megatron", model=plain))


@pytest.mark.parametrize(("size", "padded"), [(50257, "50,272"), (32003, "32,016"), (151643, "151,648")])
def test_vocabularies_that_are_known_to_trap(size: int, padded: str) -> None:
    found = checks(H100, wanted(DELAYED, model=model(vocab_size=size)))["shape.vocabulary"]
    assert found.status == "warn"
    assert padded in found.do


def test_experts_need_padding_by_recipe() -> None:
    moe = model(num_local_experts=8, num_experts_per_tok=2)
    for recipe, library, multiple in [
        ("mxfp8", "megatron", 32), ("nvfp4", "megatron", 128), (BLOCK, "megatron", 128),
        (DELAYED, "megatron", 16),
    ]:  # fmt: skip
        found = checks(H100, wanted(recipe, library, model=moe))["shape.experts"]
        assert found.status == "warn"
        assert f"multiples of {multiple}" in found.why
    assert (
        checks(H100, wanted("ao_rowwise", "torchao", model=moe))["shape.experts"].status == "not_applicable"
    )


def test_narrow_layers_are_below_break_even() -> None:
    narrow = model(hidden_size=2048, num_attention_heads=16, num_key_value_heads=1, intermediate_size=8192)
    found = checks(H100, wanted("ao_rowwise", "torchao", model=narrow))["shape.gain"]
    assert found.status == "warn"
    assert "k_proj" in found.read
    assert "down_proj" not in found.read


@pytest.mark.parametrize(
    ("recipe", "tokens", "size"),
    [("ao_tensorwise", 2048, 2624), ("ao_tensorwise", 8192, 1472), ("ao_tensorwise", 32768, 1152),
     (DELAYED, 2048, 1600), (DELAYED, 8192, 1024), ("ao_rowwise", 2048, 3520), ("ao_rowwise", 8192, 1920)],
)  # fmt: skip
def test_break_even_is_where_the_roofline_has_it_on_an_h100(recipe: str, tokens: int, size: int) -> None:
    """Square layers, K = N: they pay from this size on, found in steps of 64 by the published roofline. The
    output projection follows no norm that its cast could be fused with.
    """

    def read(width: int) -> str:
        own = model(hidden_size=width, num_attention_heads=1, intermediate_size=width)
        return checks(H100, wanted(recipe, "torch", model=own, sequence=tokens))["shape.gain"].read

    assert "o_proj" in read(size - 64)
    assert "o_proj" not in read(size)


def test_parallelism_that_does_not_fit_fails_with_its_reason() -> None:
    (only,) = shape_checks(H100, wanted(DELAYED, parallelism=Parallelism(tensor=3)))
    assert (only.name, only.status) == ("shape.parallelism", "fail")
    odd = wanted(DELAYED, model=model(intermediate_size=1025), parallelism=Parallelism(tensor=2))
    assert checks(H100, odd)["shape.model.layers.*.mlp.down_proj.cut"].status == "fail"


def test_without_a_model_or_in_16_bit_there_is_nothing_to_check() -> None:
    for own in (wanted(DELAYED, model=None), wanted("bf16")):
        (only,) = shape_checks(H100, own)
        assert only.status == "not_applicable"
    assert layer_rows(H100, wanted(DELAYED, model=None)) == []
    assert not any(row["in_fp8"] for row in layer_rows(H100, wanted("bf16")))


def test_an_unknown_architecture_warns() -> None:
    found = checks(H100, wanted(DELAYED, model=model(model_type="brand_new")))["shape.architecture"]
    assert found.status == "warn"
    assert "brand_new" in found.read


def test_gpt_2_has_no_linear_that_torchao_converts() -> None:
    found = checks(H100, wanted("ao_rowwise", "torchao", model=read_model("gpt2"), sequence=1024))
    assert found["shape.linears"].status == "fail"
    assert "Conv1D" in found["shape.linears"].read


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(published_names()),
    recipe=st.sampled_from(("", *RECIPES)),
    library=st.sampled_from(["", "transformer_engine", "torchao", "megatron", "accelerate", "torch"]),
    sequence=st.integers(0, 5000),
    tensor=st.sampled_from([1, 2, 8]),
)
def test_rows_add_up_and_a_row_in_fp8_breaks_no_rule(
    name: str, recipe: str, library: str, sequence: int, tensor: int
) -> None:
    own = wanted(
        recipe, library, model=read_model(name), sequence=sequence, parallelism=Parallelism(tensor=tensor)
    )
    found = shape_checks(H100, own)
    assert found
    if any(one.name == "shape.parallelism" for one in found):
        return
    rows = layer_rows(H100, own)
    if not rows:  # a parallelism that does not fit, and a recipe that has no rules
        assert recipe in SIXTEEN_BIT
        return
    assert sum(row["flops_share_pct"] for row in rows) == pytest.approx(100, abs=0.1)
    strict = [one for one in rules_for(H100, own) if one.effect != "slower"]
    for row in rows:
        assert row["in_fp8"] == (not row["why_not"])
        if row["in_fp8"]:
            for rule in strict:
                assert row["k"] % rule.multiples.get("k", 1) == 0
                assert row["n"] % rule.multiples.get("n", 1) == 0

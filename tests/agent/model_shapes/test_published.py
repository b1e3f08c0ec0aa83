"""Counts of parameters by the shapes, held against what the publications say."""

from __future__ import annotations

import pytest

from floatscope.model_shapes.design import families
from floatscope.model_shapes.reading import published_names, published_parameters, read_model


@pytest.mark.parametrize("name", published_names())
def test_parameters_are_within_one_percent_of_the_publication(name: str) -> None:
    shape = read_model(name)
    assert shape.parameters == pytest.approx(published_parameters(name), rel=0.01)
    assert shape.name == name
    assert ": " in shape.source  # the table's source of the configuration


def test_names_are_read_whatever_their_case() -> None:
    assert read_model("Llama-3-8B") == read_model("llama-3-8b")


def test_dense_layers_are_those_of_the_publication() -> None:
    shape = read_model("llama-3-8b")
    sizes = {one.name.rpartition(".")[2]: (one.k, one.n, one.count) for one in shape.linears}
    assert sizes == {
        "q_proj": (4096, 4096, 32),
        "k_proj": (4096, 1024, 32),
        "v_proj": (4096, 1024, 32),
        "o_proj": (4096, 4096, 32),
        "gate_proj": (4096, 14336, 32),
        "up_proj": (4096, 14336, 32),
        "down_proj": (14336, 4096, 32),
        "lm_head": (4096, 128256, 1),
    }


def test_latent_attention_and_experts_of_deepseek() -> None:
    shape = read_model("deepseek-v3")
    sizes = {one.name.removeprefix("model.layers.*."): one for one in shape.linears}
    assert (sizes["self_attn.q_a_proj"].n, sizes["self_attn.q_b_proj"].n) == (1536, 128 * 192)
    assert sizes["self_attn.kv_a_proj_with_mqa"].n == 512 + 64
    assert sizes["self_attn.kv_b_proj"].n == 128 * 256
    assert sizes["mlp.gate_proj"].count == 3  # first_k_dense_replace
    assert sizes["mlp.experts.*.gate_proj"].count == 58 * 256
    assert sizes["mlp.experts.*.gate_proj"].tokens_share == 8 / 256
    assert sizes["mlp.shared_experts.up_proj"].n == 2048


def test_every_family_names_a_style_that_exists() -> None:
    table = families()
    for name, family in table["families"].items():
        assert family.get("style", "llama") in table["styles"], name
        assert family.get("like", name) in table["families"], name
    assert table["source"]

"""Configurations in all the forms people have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from floatscope.model_shapes.reading import from_fields, read_model
from floatscope.model_shapes.shape import ModelConfigError
from floatscope_trainer.config import ModelConfig

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
}
MEGATRON = {
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "group_query_attention": True,
    "num_query_groups": 8,
    "swiglu": True,
    "padded_vocab_size": 128256,
    "untie_embeddings_and_output_weights": True,
    "disable_bias_linear": True,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "seq_length": 8192,
}
SCRIPT = """#!/bin/bash
# --num-layers 99 in a comment
LAYERS=32
HIDDEN=${HIDDEN:-4096}
export GROUPS=8
MODEL_ARGS=(
    --num-layers $LAYERS   # as published
    --hidden-size 4096
    --ffn-hidden-size=14336
    --num-attention-heads 32 --group-query-attention --num-query-groups ${GROUPS}
    --swiglu --untie-embeddings-and-output-weights --disable-bias-linear
    --normalization "RMSNorm" --position-embedding-type rope
    --seq-length ${SEQ:-8192} \\
    --vocab-size 128256
)
torchrun pretrain_gpt.py ${MODEL_ARGS[@]} --fp8-format hybrid
"""


def written(folder: Path, name: str, values: object) -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def test_a_config_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    path = written(tmp_path, "config.json", LLAMA)
    assert read_model(path) == read_model(tmp_path)
    assert read_model(path).parameters == read_model("llama-3-8b").parameters


def test_megatron_as_json_yaml_and_script_is_the_same_model(tmp_path: Path) -> None:
    shapes = [
        read_model(written(tmp_path, "args.json", MEGATRON)),
        read_model(written(tmp_path, "args.yaml", "\n".join(f"{k}: {v}" for k, v in MEGATRON.items()))),
        read_model(written(tmp_path, "train.sh", SCRIPT)),
    ]
    assert {shape.parameters for shape in shapes} == {read_model("llama-3-8b").parameters}
    assert {shape.context for shape in shapes} == {8192}
    names = [one.name for one in shapes[0].linears]
    assert names == [
        "decoder.layers.*.self_attention.linear_qkv",
        "decoder.layers.*.self_attention.linear_proj",
        "decoder.layers.*.mlp.linear_fc1",
        "decoder.layers.*.mlp.linear_fc2",
        "output_layer",
    ]


def test_a_bridge_run_config_is_read_from_its_model_section(tmp_path: Path) -> None:
    inner = {"_target_": "megatron.bridge.Provider", "num_layers": 2, "hidden_size": 64}
    inner |= {"num_attention_heads": 4, "vocab_size": 256, "gated_linear_unit": True}
    written(tmp_path, "run_config.yaml", json.dumps({"model": inner, "train": {"steps": 3}}))
    shape = read_model(tmp_path)
    assert (shape.layers, shape.hidden, shape.ffn, shape.vocab) == (2, 64, 128, 256)


def test_a_command_line_is_read_as_it_stands() -> None:
    shape = read_model(
        "--num-layers 4 --hidden-size 128 --num-attention-heads 8 --vocab-size 1000 "
        "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 64 --moe-layer-freq ([0]*1+[1]*3)"
    )
    assert shape.vocab == 1024  # padded to a multiple of 128
    assert "padded" in shape.notes[0]
    experts = [one for one in shape.linears if one.kind == "expert"]
    assert {one.count for one in experts} == {3 * 8}


def test_the_bundled_trainers_shape_has_the_trainers_own_count(tmp_path: Path) -> None:
    config = ModelConfig(vocab_size=65)
    shape = read_model(written(tmp_path, "model.json", dict(vars(config))))
    matrices = sum(one.parameters for one in shape.linears) + shape.embedding_parameters
    assert matrices == config.parameters()
    assert shape.linears[0].name == "blocks.*.attn.qkv"


def test_an_unknown_architecture_is_read_by_its_fields_and_said_so(tmp_path: Path) -> None:
    shape = read_model(written(tmp_path, "config.json", LLAMA | {"model_type": "brand_new"}))
    assert "brand_new" in shape.notes[0]
    assert shape.parameters == read_model("llama-3-8b").parameters


def test_of_a_model_of_images_and_text_the_text_is_read(tmp_path: Path) -> None:
    inner = {key: value for key, value in LLAMA.items() if key != "model_type"}
    both = {"model_type": "llava", "text_config": inner | {"model_type": "llama"}, "vision_config": {}}
    shape = read_model(written(tmp_path, "config.json", both))
    assert shape.hidden == 4096
    assert any("text_config" in note for note in shape.notes)


def test_a_yaml_without_pyyaml_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(ModelConfigError, match="PyYAML"):
        read_model(written(tmp_path, "args.yaml", "num_layers: 2"))


def test_tied_weights_count_once(tmp_path: Path) -> None:
    tied = read_model(written(tmp_path, "config.json", LLAMA | {"tie_word_embeddings": True}))
    assert read_model("llama-3-8b").parameters - tied.parameters == 128256 * 4096


def test_options_written_as_keys_are_read_as_fields(tmp_path: Path) -> None:
    """As in Megatron's own model_config.yaml, here as JSON."""
    keys = {f"--{name.replace('_', '-')}": value for name, value in MEGATRON.items()}
    path = written(tmp_path, "model_config.json", {"TEST_TYPE": "release", "MODEL_ARGS": keys})
    assert read_model(path).linears == from_fields(MEGATRON, source="", name="").linears


@pytest.mark.parametrize(
    "more",
    [
        {"hybrid_layer_pattern": "M-M*-"},
        {"hybrid_override_pattern": "M-M*-"},
        {"is_hybrid_model": True},
        {"model_provider": "mamba"},
        {"linear_attention_freq": 4},
    ],
)
def test_a_hybrid_of_megatron_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(ModelConfigError, match=next(iter(more))):
        from_fields(MEGATRON | more, source="f", name="m")


def test_layers_that_predict_further_tokens_are_noted() -> None:
    assert "mtp_num_layers" in from_fields(MEGATRON | {"mtp_num_layers": 1}, source="f", name="m").notes[0]
    plain = MEGATRON | {"is_hybrid_model": False, "hybrid_override_pattern": None, "mtp_num_layers": None}
    assert not from_fields(plain, source="f", name="m").notes

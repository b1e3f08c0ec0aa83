"""Files that describe no model: always an error that names file and field, never anything else."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.model_shapes.command_line import arguments_of
from floatscope.model_shapes.reading import from_arguments, from_fields, read_model
from floatscope.model_shapes.shape import ModelConfigError, ModelShape
from tests.agent.model_shapes.test_reading import LLAMA, MEGATRON, written

BAD_VALUES: list[Any] = [
    -1,
    0,
    10**12,
    "4096",
    4096.5,
    True,
    None,
    [4096],
    {"a": 1},
    float("nan"),
    float("inf"),
]
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")


@pytest.mark.parametrize("field", NEEDED)
@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
def test_an_absurd_field_is_named(tmp_path: Path, field: str, value: object) -> None:
    path = written(tmp_path, "config.json", LLAMA | {field: value})
    with pytest.raises(ModelConfigError) as error:
        read_model(path)
    assert str(path) in str(error.value)
    assert "expected" in str(error.value)
    assert field in str(error.value) or value is None


@pytest.mark.parametrize("field", NEEDED)
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    values = {key: value for key, value in LLAMA.items() if key != field}
    with pytest.raises(ModelConfigError, match=r"found nothing"):
        read_model(written(tmp_path, "config.json", values))


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 33},
        {"num_key_value_heads": 5},
        {"num_local_experts": 8},
        {"num_local_experts": 8, "num_experts_per_tok": 9},
        {"kv_lora_rank": 512},
        {"tie_word_embeddings": "no"},
        {"mlp_only_layers": "all", "num_experts": 4, "num_experts_per_tok": 2},
    ],
)
def test_fields_that_contradict_each_other(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(ModelConfigError, match="expected"):
        read_model(written(tmp_path, "config.json", LLAMA | change))


@pytest.mark.parametrize(
    "change",
    [
        {"num_query_groups": 5},
        {"num_attention_heads": 33},
        {"num_experts": 4, "moe_layer_freq": "([0]*3+[1]*58)"},
        {"num_experts": 4, "moe_layer_freq": "__import__('os')"},
        {"num_experts": 4, "moe_router_topk": 5},
        {"swiglu": "yes"},
    ],
)
def test_megatron_arguments_that_contradict_each_other(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(ModelConfigError, match="expected"):
        read_model(written(tmp_path, "args.json", MEGATRON | change))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", b"{", "line 1"),
        ("config.json", b"[1, 2]", "object"),
        ("config.json", b"", "empty"),
        ("config.json", b"\xff\xfe\x00", "UTF-8"),
        ("config.json", b'{"a": "\x00"}', "zero bytes"),
        ("config.json", b"[" * 200_000, "JSON"),
        ("config.json", b'{"a": ' + b"9" * 10_000 + b"}", "JSON"),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0{}", "weights"),
        ("notes.txt", b"my model is large", "neither"),
        ("args.yaml", b"a: [", "YAML"),
        ("args.yaml", b"a: &a {b: 1}\nc: {<<: *a}", "merge keys"),
        ("args.yaml", b"!!python/object/apply:os.system [x]", "YAML"),
        ("args.yaml", b"- 1", "fields"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelConfigError, match=said) as error:
        read_model(path)
    assert str(path) in str(error.value)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ModelConfigError, match="larger than"):
        read_model(path)


def test_places_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="this folder has no"):
        read_model(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelConfigError, match="regular file"):
        read_model(tmp_path / "pipe")
    with pytest.raises(ModelConfigError, match="llama-3-8b"):
        read_model("lama-3-8b")
    for name in ("", "a\0b", "x" * 100_000):
        with pytest.raises(ModelConfigError):
            read_model(name)


MORE = "num_experts num_experts_per_tok num_local_experts kv_lora_rank q_lora_rank head_dim model text_config"
FIELDS = sorted({*LLAMA, *MEGATRON, *MORE.split(), "moe_layer_freq", "mlp_only_layers"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=10,
)
NEAR = st.dictionaries(
    st.sampled_from(FIELDS), st.integers(0, 512) | st.sampled_from(["llama", "gpt2", "x"]) | JSON, max_size=14
)


@settings(max_examples=60, deadline=None)
@given(values=st.dictionaries(st.text(max_size=6) | st.sampled_from(FIELDS), JSON, max_size=8) | NEAR)
def test_any_fields_give_a_shape_or_our_error(values: dict[str, Any]) -> None:
    for base in ({}, LLAMA, MEGATRON):
        with contextlib.suppress(ModelConfigError):
            assert from_fields({**base, **values}, source="f", name="m").parameters > 0


@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_file_gives_a_shape_or_our_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(raw)
    with contextlib.suppress(ModelConfigError):
        assert isinstance(read_model(path), ModelShape)


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="-=$\\{}()#'\"\n abnumlayers0123456789_:", max_size=200))
def test_any_script_gives_arguments_and_a_shape_or_our_error(text: str) -> None:
    arguments = arguments_of(text)
    assert all(isinstance(value, int | str) for value in arguments.values())
    with contextlib.suppress(ModelConfigError):
        assert from_arguments(arguments, source="s", name="m").parameters > 0


def test_a_script_of_variables_that_grow_stays_small() -> None:
    """Values are cut before they are put in: no text multiplies itself, none is searched again and again."""
    grown = f"A={'x' * 100_000}\n--name {'$A' * 50_000} --open {'${a-' * 50_000}\n"
    found = arguments_of(grown)
    assert all(len(str(value)) <= 1000 for value in found.values())

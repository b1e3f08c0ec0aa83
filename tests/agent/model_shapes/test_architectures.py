"""Architectures by their default configurations: exact counts or a refusal, never a count that is far off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from floatscope.model_shapes.reading import from_fields
from floatscope.model_shapes.shape import ModelConfigError

TABLE = json.loads(Path(__file__).with_name("default_configs.json").read_text("utf-8"))


@pytest.mark.parametrize("kind", TABLE["cases"])
def test_parameters_are_those_of_the_model_itself(kind: str) -> None:
    case = TABLE["cases"][kind]
    shape = from_fields(case["config"], source="config.json", name=kind)
    # Apertus has two values of its activation in each layer, which no linear and no norm holds.
    assert abs(shape.parameters - case["parameters"]) <= (2 * shape.layers if kind == "apertus" else 0)
    assert not shape.notes


@pytest.mark.parametrize("kind", TABLE["refused"])
def test_what_the_usual_fields_do_not_describe_is_refused(kind: str) -> None:
    case = TABLE["refused"][kind]
    with pytest.raises(ModelConfigError, match=f"config.json: field .*{case['field']}") as error:
        from_fields(case["config"], source="config.json", name=kind)
    assert "cannot be read" in str(error.value)


def known(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 128,
        **more,
    }


def test_an_unknown_architecture_with_llamas_fields_is_read_and_noted() -> None:
    shape = from_fields(known(model_type="new_thing", hidden_act="silu"), source="f", name="m")
    assert "not known here" in shape.notes[0]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"moe_experts_count": 8}, "moe_experts_count"),
        ({"layer_types": ["full_attention", "mamba"]}, "layer_types"),
        ({"layer_types": "all"}, "layer_types"),
        ({"layer_types": [3, None]}, "layer_types"),
        ({"ssm_state": 16}, "ssm_state"),
    ],
)
def test_signs_of_another_architecture_are_named(more: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError, match=f"field {field}"):
        from_fields(known(model_type="new_thing", **more), source="f", name="m")


def test_a_known_architecture_may_have_its_own_activation_and_kinds_of_attention() -> None:
    kinds = ["sliding_attention", "full_attention"]
    shape = from_fields(
        known(model_type="gemma2", hidden_act="gelu_pytorch_tanh", layer_types=kinds), source="f", name="m"
    )
    assert shape.gated

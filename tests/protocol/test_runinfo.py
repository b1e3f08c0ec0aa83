"""A run's description: what is given is kept, what is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import check_run_id, split_tensor
from floatscope.protocol.runinfo import RunInfo

FULL: dict[str, Any] = {
    "name": "llama",
    "project": "p",
    "baseline": "bf16-1",
    "recipe": {"name": "fp8_delayed_scaling", "margin": 0},
    "tensors": {"a/input": {"format": "e4m3", "call_order": 0}},
    "vocab_size": 100,
    "ranks": 2,
    "config": {"lr": 1e-3},
    "status": "crashed",
    "reason": "IndexError",
    "mine": [1],
}


def test_a_description_comes_back_as_it_was_given() -> None:
    assert RunInfo.from_json(FULL).to_json() == FULL
    assert RunInfo.from_json({"name": None, "recipe": None}).to_json() == {}


def test_a_later_description_merges_tensors_and_replaces_the_rest() -> None:
    later = RunInfo.from_json({"tensors": {"b/weight": {}}, "recipe": {"name": "mxfp8"}, "status": "running"})
    merged = RunInfo.from_json(FULL).merged(later)
    assert set(merged.tensors) == {"a/input", "b/weight"}
    assert merged.recipe == {"name": "mxfp8"}
    assert (merged.status, merged.name, merged.vocab_size) == ("running", "llama", 100)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "run.name"),
        ({"name": "a\nb"}, "run.name"),
        ({"baseline": "../x"}, "run.baseline"),
        ({"vocab_size": 0}, "run.vocab_size"),
        ({"vocab_size": "12"}, "run.vocab_size"),
        ({"recipe": "fp8"}, "run.recipe"),
        ({"tensors": {"a": 3}}, "run.tensors['a']"),
        ({"tensors": {"a": {"format": "fp9"}}}, "run.tensors['a'].format"),
        ({"tensors": {"a": {"call_order": -1}}}, "run.tensors['a'].call_order"),
        ({"status": "sleeping"}, "run.status"),
        ({"reason": 4}, "run.reason"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ProtocolError) as error:
        RunInfo.from_json({**FULL, **change})
    assert error.value.field == field


def test_a_description_must_be_an_object() -> None:
    with pytest.raises(ProtocolError):
        RunInfo.from_json([1])


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "a b", "x" * 129, "\u00e4", None, 3])
def test_run_ids_that_cannot_stand_in_an_address_are_refused(run_id: object) -> None:
    with pytest.raises(ProtocolError):
        check_run_id(run_id)


def test_the_last_slash_splits_layer_and_role() -> None:
    assert split_tensor("layers.0.mlp.fc1/input") == ("layers.0.mlp.fc1", "input")
    assert split_tensor("odd/name/weight") == ("odd/name", "weight")
    assert split_tensor("norm") == ("norm", "")

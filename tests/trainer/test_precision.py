"""Layer-wise precision as it is written."""

from __future__ import annotations

import pytest

from floatscope_trainer.precision import PrecisionMap, PrecisionMapError, linear_names, parse_precision_map

LAYERS = linear_names(4)


def test_names_are_in_call_order() -> None:
    assert linear_names(2)[3:6] == ("blocks.0.mlp.fc2", "blocks.1.attn.qkv", "blocks.1.attn.proj")


def test_map_of_the_documentation() -> None:
    read = parse_precision_map("embedding=bf16,first=1,last=1", layers=LAYERS)
    assert read.embedding == "bf16"
    assert read.head == "fp32"
    of = [read.of(f"blocks.{i}.mlp.fc1", default="fp8", depth=4) for i in range(4)]
    assert of == ["bf16", "fp8", "fp8", "bf16"]


def test_a_named_layer_goes_before_first_and_last() -> None:
    read = parse_precision_map("first=2, blocks.*.mlp.fc2=fp8 ,blocks.3.*=fp32", layers=LAYERS)
    assert read.of("blocks.0.mlp.fc2", default="fp8", depth=4) == "fp8"
    assert read.of("blocks.0.mlp.fc1", default="fp8", depth=4) == "bf16"
    assert read.of("blocks.3.mlp.fc2", default="fp8", depth=4) == "fp8"  # the first match wins
    assert read.of("blocks.3.attn.qkv", default="fp8", depth=4) == "fp32"


def test_nothing_is_a_map_too() -> None:
    assert parse_precision_map("", layers=LAYERS) == PrecisionMap()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first", "expected key=value"),
        ("first=two", "a number of blocks from 0 to 4"),
        ("last=5", "a number of blocks from 0 to 4"),
        ("embedding=fp8", "fp32 or bf16"),
        ("head=int8", "expected one of fp32, bf16, fp16, fp8"),
        ("blocks.9.*=bf16", "no layer is called so"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(PrecisionMapError, match=message) as error:
        parse_precision_map(f"head=bf16,{text}", layers=LAYERS)
    assert text in str(error.value)

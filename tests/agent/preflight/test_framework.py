"""What accelerate, torchao and transformers do to layers without a word."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from floatscope.model_shapes.gemm import Gemm
from floatscope.model_shapes.reading import from_fields, read_model
from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.framework_checks import framework_checks
from floatscope.preflight.framework_conversion import left_by_accelerate
from floatscope.preflight.table_reading import read_table
from tests.agent.preflight.machines import gpu

DELAYED = "fp8_delayed_scaling"
TE = {"transformer-engine": "2.20.2", "accelerate": "1.15.0"}


def checks(wanted: Wanted, versions: dict[str, str] | None = None, **facts: Any) -> dict[str, Check]:
    found = framework_checks(Facts(versions=versions or {}, **facts), wanted)
    return {one.name: one for one in found}


def converted_as_accelerate_does(model: nn.Module) -> None:
    """The loop of accelerate's convert_model (1.15.0), with a stand-in for te.Linear."""
    for name, module in model.named_children():
        if isinstance(module, nn.Linear):
            if any(side % 16 for side in module.weight.shape):
                return
            setattr(model, name, nn.Identity())
        else:
            converted_as_accelerate_does(module)


def built(sizes: dict[str, tuple[int, int]]) -> nn.Module:
    """Modules of these dotted names with Linear(k, n) at the ends."""
    root = nn.Module()
    for name, (k, n) in sizes.items():
        *path, last = name.split(".")
        at = root
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, nn.Module())
            at = getattr(at, part)
        at.add_module(last, nn.Linear(k, n, device="meta"))
    return root


@pytest.mark.parametrize(
    "sizes",
    [
        {"a": (32, 32), "odd": (31, 32), "c": (32, 32), "sub.inner": (32, 32)},
        {"block.a": (32, 32), "block.odd": (32, 31), "block.c": (32, 32), "block2.a": (32, 32)},
        {"block.mlp.gate": (32, 60), "block.mlp.experts.up": (32, 32), "block.attn.q": (32, 32)},
        {"a": (32, 32), "b": (16, 48)},
    ],
)
def test_the_forecast_is_what_the_loop_does(sizes: dict[str, tuple[int, int]]) -> None:
    model = built({f"model.{name}": size for name, size in sizes.items()})
    converted_as_accelerate_does(model)
    really = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    gemms = [Gemm(f"model.{name}", "mlp", 1, 1, k, n, 4096) for name, (k, n) in sizes.items()]
    assert set(left_by_accelerate(gemms, Wanted(library="accelerate", recipe=DELAYED))) == really
    assert torch.nn is nn


def odd_model() -> Any:
    fields = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 1001, "vocab_size": 1024}  # fmt: skip
    return from_fields(fields, source="config.json", name="odd")


def test_layers_left_behind_are_named_with_the_one_that_stops() -> None:
    own = Wanted(recipe=DELAYED, library="accelerate", model=odd_model())
    found = checks(own, TE)["framework.accelerate.conversion"]
    assert found.status == "warn"
    assert "9 of 15" in found.read
    assert "stops converting this module at model.layers.*.mlp.gate_proj" in found.read
    assert "te.Linear" in found.do


def test_a_model_that_fits_is_converted_whole() -> None:
    own = Wanted(recipe=DELAYED, library="accelerate", model=read_model("llama-3-8b"))
    found = checks(own, TE)
    assert found["framework.accelerate.conversion"].status == "pass"
    assert "225 of 225" in found["framework.accelerate.conversion"].read
    assert found["framework.accelerate.backend"].status == "pass"


def test_with_torchao_the_first_and_last_stay() -> None:
    own = Wanted(recipe="ao_rowwise", library="accelerate", model=read_model("llama-3-8b"))
    found = checks(own, {"torchao": "0.18.0"})["framework.accelerate.conversion"]
    assert "224 of 225" in found.read
    assert "first and the last" in found.read


def test_without_a_model_the_conversion_is_unknown() -> None:
    found = checks(Wanted(recipe=DELAYED, library="accelerate"), TE)
    assert found["framework.accelerate.conversion"].status == "unknown"


@pytest.mark.parametrize(
    ("recipe", "versions", "status"),
    [
        (DELAYED, {}, "fail"),
        (DELAYED, {"torchao": "0.18.0"}, "fail"),
        (DELAYED, TE, "pass"),
        ("ao_rowwise", {"torchao": "0.18.0"}, "pass"),
    ],
)
def test_accelerates_own_test_of_fp8_is_not_believed(
    recipe: str, versions: dict[str, str], status: str
) -> None:
    found = checks(Wanted(recipe=recipe, library="accelerate"), versions)["framework.accelerate.backend"]
    assert found.status == status
    assert "is_fp8_available" in found.why


@pytest.mark.parametrize(("version", "status"), [("0.5.0", "fail"), ("0.6.1", "pass"), ("main", "unknown")])
def test_accelerate_needs_a_torchao_that_is_not_too_old(version: str, status: str) -> None:
    found = checks(Wanted(recipe="ao_rowwise", library="accelerate"), {"torchao": version})
    assert found["framework.accelerate.torchao"].status == status


@pytest.mark.parametrize("recipe", ["fp8_current_scaling", "fp8_block_scaling", "nvfp4"])
def test_recipes_that_accelerate_does_not_make(recipe: str) -> None:
    found = checks(Wanted(recipe=recipe, library="accelerate"), TE)["framework.accelerate.recipe"]
    assert found.status == "fail"


def test_whether_torchao_is_compiled_is_unknown_and_impossible_without_triton() -> None:
    own = Wanted(recipe="ao_tensorwise", library="torchao", model=read_model("llama-3-8b"))
    found = checks(own, {"torchao": "0.18.0"})
    assert found["framework.torchao.compile"].status == "unknown"
    assert "lm_head" in found["framework.torchao.head"].do
    found = checks(own, {"torchao": "0.18.0"}, gpus=(gpu(),))
    assert found["framework.torchao.compile"].status == "fail"
    found = checks(own, {"torchao": "0.18.0", "triton": "3.5.0"}, gpus=(gpu(),))
    assert found["framework.torchao.compile"].status == "unknown"


def test_transformers_quantization_is_not_training() -> None:
    found = checks(Wanted(recipe=DELAYED), {"transformers": "5.24.0"})["framework.transformers.fp8"]
    assert found.status == "not_applicable"
    assert "do not make the GEMMs of training FP8" in found.why


def test_16_bit_asks_nothing_of_frameworks() -> None:
    assert checks(Wanted(recipe="bf16", library="accelerate"), TE) == {}


def test_every_text_has_a_source() -> None:
    table = read_table("frameworks")
    assert table["source"]
    for section in ("accelerate", "torchao", "transformers"):
        assert any(key.endswith("source") and value for key, value in table[section].items())

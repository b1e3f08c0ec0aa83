"""Agreement on scales over ranks, defaults nobody chose, sums that come out short."""

from __future__ import annotations

from typing import Any

import pytest

from floatscope.model_shapes.reading import read_model
from floatscope.model_shapes.shape import Parallelism
from floatscope.preflight.check import Check
from floatscope.preflight.distribution_checks import distribution_checks
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.table_reading import read_table
from floatscope.protocol.names import RECIPES
from tests.agent.preflight.machines import gpu

DELAYED = "fp8_delayed_scaling"
LLAMA = read_model("llama-3-8b")


def checks(
    facts: Facts, recipe: str = DELAYED, library: str = "transformer_engine", **own: Any
) -> dict[str, Check]:
    found = distribution_checks(facts, Wanted(recipe=recipe, library=library, **own))
    return {one.name: one for one in found}


@pytest.mark.parametrize(
    ("library", "cut", "status"),
    [
        ("transformer_engine", Parallelism(tensor=2, sequence=True), "warn"),
        ("transformer_engine", Parallelism(data=8), "warn"),
        ("megatron", Parallelism(data=8), "pass"),
        ("megatron", Parallelism(tensor=2, sequence=True), "warn"),
    ],
)
def test_ranks_must_agree_on_amaxes(library: str, cut: Parallelism, status: str) -> None:
    found = checks(Facts(), library=library, parallelism=cut)["distribution.amax_group"]
    assert found.status == status
    assert bool(found.do) == (status == "warn")
    assert "reduce_amax" in found.read


def test_one_rank_and_recipes_without_history_need_no_reduction() -> None:
    assert "distribution.amax_group" not in checks(Facts())
    assert "distribution.amax_group" not in checks(Facts(), "mxfp8", parallelism=Parallelism(data=8))


@pytest.mark.parametrize(
    ("library", "said", "status"),
    [("transformer_engine", "1024, max", "pass"), ("megatron", "1, most_recent", "warn"),
     ("accelerate", "1024, max", "pass"), ("", "1024, max", "pass")],
)  # fmt: skip
def test_the_history_that_defaults_come_out_as(library: str, said: str, status: str) -> None:
    found = checks(Facts(), library=library)["distribution.delayed_defaults"]
    assert (found.status, said in found.read) == (status, True)
    assert "distribution.delayed_defaults" not in checks(Facts(), "mxfp8", library)


def test_long_sums_on_hopper() -> None:
    name = "distribution.fast_accumulation"
    hopper = Facts(gpus=(gpu(),))
    assert "down_proj" in checks(hopper, model=LLAMA)[name].read
    assert checks(hopper, model=LLAMA)[name].status == "warn"
    assert "not known" in checks(Facts(), model=LLAMA)[name].read
    assert checks(hopper, model=read_model("gpt2"))[name].status == "pass"
    assert name not in checks(Facts(gpus=(gpu("NVIDIA B200", (10, 0)),)), model=LLAMA)
    assert name not in checks(hopper, "fp8_block_scaling", model=LLAMA)
    assert name not in checks(hopper, model=LLAMA, parallelism=Parallelism(tensor=3))


@pytest.mark.parametrize("recipe", ["", "bf16", "fp32", "fp16_amp"])
def test_without_an_fp8_recipe_there_is_nothing(recipe: str) -> None:
    assert checks(Facts(gpus=(gpu(),)), recipe, model=LLAMA, parallelism=Parallelism(data=8)) == {}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("library", ["", "torch", "torchao", "megatron", "accelerate", "transformer_engine"])
def test_whatever_is_wanted_has_a_source(recipe: str, library: str) -> None:
    own = {"model": LLAMA, "parallelism": Parallelism(tensor=2, data=4, sequence=True)}
    for one in checks(Facts(gpus=(gpu(),)), recipe, library, **own).values():
        assert one.source
        assert one.why
        assert bool(one.do) or one.status == "pass"
    assert read_table("distribution")["source"]

"""What must hold for any set-up: monotonicity, finite numbers, clear refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.hardware.gpu_lookup import gpu_models
from floatscope.hardware.gpus import GpuModel
from floatscope.model_shapes.reading import read_model
from floatscope.model_shapes.shape import ModelConfigError, ModelShape, Parallelism
from floatscope_diagnostics.plan.document import document
from floatscope_diagnostics.plan.memory import memory
from floatscope_diagnostics.plan.planning import Wish, make_plan
from floatscope_diagnostics.plan.rates import rates_of
from floatscope_diagnostics.plan.recipes import Recipe, recipe_table
from floatscope_diagnostics.plan.report import report
from floatscope_diagnostics.plan.setup import PlanError, Setup, with_rest
from floatscope_diagnostics.plan.step_time import step_time
from floatscope_diagnostics.reports.terminal import Style

MODELS = [read_model(name) for name in ("llama-3-8b", "gpt-3-175b", "mixtral-8x7b", "deepseek-v3", "gpt2")]
GPUS = gpu_models()
POWERS = st.sampled_from((1, 2, 4, 8))


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Set-ups whose GPUs divide; whether the model allows them is for the plan to say."""
    cut = Parallelism(draw(POWERS), draw(POWERS), draw(POWERS), draw(POWERS), 1, draw(st.booleans()))
    gpus = cut.tensor * cut.pipeline * cut.context * draw(st.sampled_from((1, 2, 8, 32)))
    return Setup(
        gpus=gpus,
        parallelism=with_rest(gpus, cut),
        micro_batch=draw(st.integers(1, 16)),
        sequence=draw(st.sampled_from((64, 1024, 8192))),
        accumulate=draw(st.integers(1, 16)),
        sharding=draw(st.sampled_from(("zero0", "zero1", "zero2", "zero3", "fsdp"))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        attention=draw(st.sampled_from(("flash", "eager"))),
        optimizer=draw(st.sampled_from(("fp32", "bf16-moments", "8bit", "remainders"))),
        gradients=draw(st.sampled_from(("fp32", "bf16"))),
        logits=draw(st.sampled_from(("full", "fused", "chunked"))),
        primary_fp8=draw(st.booleans()),
        fp8_all_gather=draw(st.booleans()),
        fp8_head=draw(st.booleans()),
        compiled=draw(st.booleans()),
    )


models = st.sampled_from(MODELS)
gpus = st.sampled_from(GPUS)
recipes = st.sampled_from((None, *recipe_table().recipes))


@settings(max_examples=40, deadline=None)
@given(models, gpus, setups())
def test_a_plan_is_finite_or_a_clear_refusal(model: ModelShape, gpu: GpuModel, setup: Setup) -> None:
    try:
        plan = make_plan(model, gpu, setup, rates_of(gpu), Wish(price=1.0, tokens=1e12))
    except (PlanError, ModelConfigError):
        return
    json.dumps(document(plan), allow_nan=False)
    assert max(map(len, report(plan, Style()).splitlines())) <= 110
    for one in plan.plans:
        assert one.memory.estimate > 0
        assert math.isfinite(one.step_s.value)
        assert one.speedup.low <= one.speedup.value <= one.speedup.high


@settings(max_examples=50, deadline=None)
@given(models, gpus, setups(), recipes)
def test_more_gpus_never_need_more_memory_each(
    model: ModelShape, gpu: GpuModel, setup: Setup, recipe: Recipe | None
) -> None:
    more = replace(setup, gpus=2 * setup.gpus, parallelism=with_rest(2 * setup.gpus, setup.parallelism))
    here = memory(model, gpu, setup, recipe).estimate
    there = memory(model, gpu, more, recipe).estimate
    assert there <= here * (1 + 1e-12)


@settings(max_examples=50, deadline=None)
@given(models, gpus, setups(), recipes)
def test_a_larger_micro_batch_never_needs_less(
    model: ModelShape, gpu: GpuModel, setup: Setup, recipe: Recipe | None
) -> None:
    larger = replace(setup, micro_batch=setup.micro_batch + 1)
    here = memory(model, gpu, setup, recipe)
    there = memory(model, gpu, larger, recipe)
    for part in ("activations", "working set", "logits"):
        assert there.part(part) >= here.part(part) or here.stage != there.stage
    assert there.estimate >= here.estimate


@settings(max_examples=40, deadline=None)
@given(models, gpus, setups(), recipes)
def test_recomputing_more_never_keeps_more(
    model: ModelShape, gpu: GpuModel, setup: Setup, recipe: Recipe | None
) -> None:
    kept = [
        memory(model, gpu, replace(setup, recompute=kind, compiled=True), recipe) for kind in ("none", "full")
    ]
    if kept[0].stage == kept[1].stage:
        assert kept[1].part("activations") <= kept[0].part("activations")


@settings(max_examples=40, deadline=None)
@given(models, setups(), st.integers(1, 8))
def test_a_longer_step_is_never_faster(model: ModelShape, setup: Setup, more: int) -> None:
    gpu = GPUS[2]
    rates = rates_of(gpu)
    setup = replace(setup, parallelism=with_rest(setup.gpus, Parallelism()))
    here = step_time(model, gpu, setup, rates, None)
    longer = replace(setup, accumulate=setup.accumulate + more)
    there = step_time(model, gpu, longer, rates, None)
    assert there.seconds > here.seconds
    assert there.tokens_per_s_per_gpu >= here.tokens_per_s_per_gpu * (1 - 1e-9)

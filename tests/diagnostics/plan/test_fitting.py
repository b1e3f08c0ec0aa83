"""Which shapes a recipe takes: the plan and preflight say the same."""

from __future__ import annotations

import pytest

from floatscope.hardware.gpu_lookup import find_gpu
from floatscope.model_shapes.gemm import Gemm
from floatscope.model_shapes.reading import from_fields
from floatscope.model_shapes.shape import Parallelism
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.shape_layers import layer_rows
from floatscope_diagnostics.plan.fitting import fits
from floatscope_diagnostics.plan.gemms import linear_times
from floatscope_diagnostics.plan.recipes import recipe_table
from tests.diagnostics.plan.setups import setup_of

ODD = {
    "model_type": "llama",
    "hidden_size": 1040,
    "num_hidden_layers": 2,
    "num_attention_heads": 13,
    "num_key_value_heads": 13,
    "intermediate_size": 2744,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("gpu", "recipe", "sizes", "takes"),
    [  # K, N, T by the rules of the libraries
        ("H100", "fp8_current_scaling", (4096, 4096, 4096), True),
        ("H100", "fp8_current_scaling", (4096, 4104, 4096), False),
        ("H100", "fp8_current_scaling", (4096, 4096, 4104), False),  # TN only: wgrad contracts over tokens
        ("B200", "fp8_current_scaling", (4096, 4096, 4104), True),
        ("H100", "fp8_block_scaling", (7168, 576, 4096), True),  # not divisible by 128, and still FP8
        ("B200", "mxfp8", (7168, 576, 4096), True),
        ("B200", "mxfp8", (7168, 560, 4096), False),
        ("H100", "ao_rowwise", (4096, 4096, 4104), False),
        ("MI300X", "ao_tensorwise", (4096, 4096, 4096), True),
    ],
)
def test_sizes(gpu: str, recipe: str, sizes: tuple[int, int, int], takes: bool) -> None:
    k, n, tokens = sizes
    library = next(one.library for one in recipe_table().recipes if one.key == recipe)
    gemm = Gemm("x", "mlp", 1, 1, k, n, tokens)
    assert fits(gemm, find_gpu(gpu), recipe, library, Parallelism()) is takes


@pytest.mark.parametrize("name", ["H100", "B200", "L40S"])
def test_what_stays_in_16_bit_is_what_preflight_says(name: str) -> None:
    gpu, shape = find_gpu(name), from_fields(ODD, source="f", name="odd")
    facts = Facts(gpus=(GpuFacts(0, gpu.name, gpu.capability, arch=gpu.arch),))
    for recipe in recipe_table().recipes:
        if recipe.why_not(gpu):
            continue
        wanted = Wanted(recipe.key, recipe.library, shape, micro_batch=1, sequence=1024)
        rows = {str(row["name"]): bool(row["in_fp8"]) for row in layer_rows(facts, wanted)}
        for one in linear_times(shape, gpu, setup_of(1, sequence=1024), recipe):
            if one.kind != "head":
                assert one.converted == rows[one.gemm.name], (recipe.key, one.gemm.name)

"""The roofline that preflight, plan and advisor share, against numbers computed by hand."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from floatscope.hardware.gpu_lookup import find_gpu
from floatscope.hardware.roofline import bf16_seconds, casts_of, low_seconds, roofline, speedup
from floatscope.protocol.names import RECIPES

H100 = find_gpu("H100")


@pytest.mark.parametrize(
    ("recipe", "k", "n", "bf16_us", "low_us", "gain"),
    [  # T = 8192 on an H100, three digits, by a calculator
        ("ao_tensorwise", 4096, 4096, 1069.0, 724.4, 1.381),
        ("ao_tensorwise", 14336, 4096, 3741.4, 2332.1, 1.483),
        ("fp8_delayed_scaling", 4096, 1024, 267.2, 201.4, 1.261),
        ("ao_rowwise", 4096, 1024, 267.2, 284.9, 0.938),
        ("ao_rowwise", 4096, 14336, 3741.4, 2481.1, 1.406),
    ],
)
def test_one_linear(recipe: str, k: int, n: int, bf16_us: float, low_us: float, gain: float) -> None:
    casts = casts_of(recipe)
    assert casts is not None
    assert bf16_seconds(8192, k, n, H100) * 1e6 == pytest.approx(bf16_us, abs=0.06)
    assert low_seconds(8192, k, n, H100, casts) * 1e6 == pytest.approx(low_us, abs=0.06)
    assert speedup(8192, k, n, H100, casts) == pytest.approx(gain, abs=0.0006)


def test_a_fused_norm_saves_one_read_of_the_input_where_the_recipe_fuses() -> None:
    for recipe, saved in (("fp8_delayed_scaling", 2 * 8192 * 4096), ("ao_tensorwise", 0)):
        casts = casts_of(recipe)
        assert casts is not None
        plain, fused = (
            low_seconds(8192, 4096, 4096, H100, casts, after_norm=after) for after in (False, True)
        )
        assert plain - fused == pytest.approx(saved / (3.35e12 * 0.92))


def test_a_format_that_a_gpu_lacks_is_refused_and_an_unknown_recipe_has_no_cost() -> None:
    nvfp4 = casts_of("nvfp4")
    assert nvfp4 is not None
    with pytest.raises(ValueError, match="H100 SXM has no fp4 products"):
        low_seconds(8192, 4096, 4096, H100, nvfp4)
    assert casts_of("custom") is None


def test_every_recipe_of_the_table_is_the_protocols_and_has_a_source() -> None:
    assert set(roofline().recipes) <= set(RECIPES)
    assert all(one.source for one in roofline().recipes.values())
    raw = json.loads(files("floatscope.hardware").joinpath("roofline.json").read_text("utf-8"))
    assert raw["source"]
    assert raw["gain_factor_source"]

"""Every fact, in the order of the page. A new one is a file of `measured/` and a line here."""

from __future__ import annotations

from types import ModuleType

from floatscope_trainer.facts.fact import Fact
from floatscope_trainer.facts.measured import (
    accumulation_in_fp8,
    adam_second_moment,
    amax_and_nan,
    codes_per_binade,
    cost_rule,
    e5m2_subnormals,
    fp8_as_dtype,
    gemm_error,
    gpu_utilization,
    gradient_range,
    int8_outliers,
    loss_blindness,
    margin,
    memory,
    mx_scale_rounding,
    overflow_shows,
    scale_direction,
    sqnr_outlier,
    token_id_nan,
    wrong_scale_loss,
)

MODULES: tuple[ModuleType, ...] = (
    e5m2_subnormals,
    codes_per_binade,
    gradient_range,
    scale_direction,
    margin,
    overflow_shows,
    amax_and_nan,
    token_id_nan,
    wrong_scale_loss,
    loss_blindness,
    sqnr_outlier,
    gpu_utilization,
    adam_second_moment,
    accumulation_in_fp8,
    gemm_error,
    mx_scale_rounding,
    int8_outliers,
    memory,
    cost_rule,
    fp8_as_dtype,
)


def fact_of(module: ModuleType) -> Fact:
    """The FACT of a file of `measured/`."""
    fact: Fact = module.FACT
    return fact


def find(name: str) -> ModuleType | None:
    """The file of a fact; underscores and letter case do not matter. None if there is none."""
    wanted = name.strip().lower().replace("_", "-")
    return next((module for module in MODULES if fact_of(module).name == wanted), None)

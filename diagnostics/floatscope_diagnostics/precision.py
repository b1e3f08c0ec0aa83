"""Which precision a run has, so that advice fits it."""

from __future__ import annotations

from floatscope.protocol.formats import FORMATS
from floatscope_diagnostics.rule import Remedy, RunFacts

_FP8_RECIPES = ("fp8", "mxfp8", "nvfp4", "ao_")


def runs_fp8(run: RunFacts) -> bool:
    """Whether a tensor of the run has a format with a scale, its recipe is one, or scales are logged."""
    scaled = any(f in FORMATS and FORMATS[f].is_scaled for f in run.formats.values())
    named = run.recipe_name.startswith(_FP8_RECIPES)
    return scaled or named or any(stat == "scale" for _, stat in run.stats)


def fitting(run: RunFacts, fp8: Remedy, plain: Remedy) -> Remedy:
    """The remedy for the run's precision: FP8 settings are no use to a BF16 or FP16 run."""
    return fp8 if runs_fp8(run) else plain

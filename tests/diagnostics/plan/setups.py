"""Set-ups that the tests of the plan share."""

from __future__ import annotations

from typing import Any

from floatscope.model_shapes.shape import Parallelism
from floatscope_diagnostics.plan.recipes import Recipe, recipe_table
from floatscope_diagnostics.plan.setup import Setup, with_rest


def setup_of(gpus: int = 1, cut: Parallelism | None = None, **words: Any) -> Setup:
    """A set-up of so many GPUs; data parallelism is what is left."""
    return Setup(gpus=gpus, parallelism=with_rest(gpus, cut or Parallelism()), **words)


def recipe(key: str) -> Recipe:
    """A recipe of the table by its key."""
    return next(one for one in recipe_table().recipes if one.key == key)

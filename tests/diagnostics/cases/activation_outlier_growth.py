from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130
WEIGHT = "blocks.0.mlp.fc2/weight"


def one_channel(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        tensors[WEIGHT]["amax"] *= 1.2 ** (step - FAULT)


def all_grow(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    for name, stats in tensors.items():
        if name.endswith("weight"):
            stats["amax"] *= 1.001 ** (step - 100)


GROWING = Run(before=one_channel, steps=60)
TRAINING = Run(before=all_grow, steps=150)


def learns(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """One layer's input grows twelve times over 400 steps and keeps its precision."""
    tensors["blocks.1.mlp.fc2/input"]["amax"] *= 12.0 ** min((step - 100) / 400.0, 1.0)


LEARNING = Run(before=learns, recipe="fp8_current_scaling", steps=500)


CASES = [
    Case("one weight grows by a fifth a step", GROWING.info(), GROWING.rows(),
         (Want("activation_outlier_growth", (FAULT, FAULT + 8), None, WEIGHT),)),
    Case("all weights grow slowly: training", TRAINING.info(), TRAINING.rows()),
    Case("one layer grows over hundreds of steps while it learns", LEARNING.info(), LEARNING.rows()),
]  # fmt: skip

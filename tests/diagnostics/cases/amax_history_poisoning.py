from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130
TARGET = "blocks.0.mlp.fc2/input"
WEIGHT = "blocks.1.attn.qkv/weight"
GRADIENT = "blocks.1.attn.qkv/grad_output"


def outlier(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        tensors[TARGET]["rms"] = tensors[TARGET]["amax"] / 4.0
        tensors[TARGET]["amax"] *= 1e5


def gradient_outlier(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        tensors[GRADIENT]["rms"] = tensors[GRADIENT]["amax"] / 4.0
        tensors[GRADIENT]["amax"] *= 1e9


def mild(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        tensors[TARGET]["amax"] *= 2.0


POISON = Run(before=outlier, steps=70)
GRAD = Run(before=gradient_outlier, steps=70)
MILD = Run(before=mild)


def weight_outlier(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        tensors[WEIGHT]["rms"] = tensors[WEIGHT]["amax"] / 4.0
        tensors[WEIGHT]["amax"] *= 1e5


SHORT = Run(before=weight_outlier, algo="most_recent", history=1, steps=70)


CASES = [
    Case(
        "one outlier of 1e5 flushes the tensor for the whole history",
        POISON.info(),
        POISON.rows(),
        (Want("amax_history_poisoning", (FAULT, FAULT), None, TARGET),),
    ),
    Case(
        "one outlier of 1e9 in a gradient",
        GRAD.info(),
        GRAD.rows(),
        (Want("amax_history_poisoning", (FAULT, FAULT), None, GRADIENT),),
    ),
    Case("twice the amax once is nothing", MILD.info(), MILD.rows()),
    Case(
        "one outlier of 1e5 in a weight, remembered for one step",
        SHORT.info(),
        SHORT.rows(),
        (Want("amax_history_poisoning", (FAULT, FAULT), None, WEIGHT),),
    ),
]

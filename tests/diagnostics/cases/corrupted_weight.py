from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors, all_of

FAULT = 130
WEIGHT = "blocks.1.attn.qkv/weight"


def bit_flip(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """One element is 1e30 from here on; the others keep their size."""
    if step >= FAULT:
        tensors[WEIGHT]["rms"] = 0.025
        tensors[WEIGHT]["amax"] = 1e30


def rate_step(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """All weights grow a little faster from here on."""
    if step >= FAULT:
        for stats in all_of(tensors, "/weight"):
            stats["amax"] *= 1.02 ** min(step - FAULT, 10)


FLIP = Run(before=bit_flip)


def heavy_flip(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The same in a weight that matters: the loss leaps in the same step."""
    bit_flip(step, tensors, scalars)
    if step >= FAULT:
        scalars["loss"] += 1.8


HEAVY = Run(before=bit_flip, after=heavy_flip)


CASES = [
    Case(
        "one element leaps to 1e30",
        FLIP.info(),
        FLIP.rows(),
        (Want("undetermined", (FAULT, FAULT), None, WEIGHT),),
    ),
    Case("weights that grow", Run(before=rate_step).info(), Run(before=rate_step).rows()),
    Case(
        "and the loss leaps with it",
        HEAVY.info(),
        HEAVY.rows(),
        (Want("undetermined", (FAULT, FAULT), None, WEIGHT),),
    ),
]

from __future__ import annotations

import numpy as np

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 140


def truncating(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        for stats in tensors.values():
            if "sqnr_db" in stats:
                stats["sqnr_db"] -= 5.8


def one_layer(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """One odd batch lowers the SQNR of the gradients for a step."""
    if step == FAULT:
        for name, stats in tensors.items():
            if name.endswith("grad_output"):
                stats["sqnr_db"] -= 8.0


class Gap:
    """Loss against ref_loss on the same batches: equal up to noise, then a gap that opens within 40 steps."""

    def __init__(self, offset: float) -> None:
        self.offset = offset
        self.rng = np.random.default_rng(5)

    def __call__(self, step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        gap = self.rng.normal(0.0, 0.001) + self.offset * min(max(step - FAULT, 0) / 40, 1.0)
        scalars["ref_loss"] = scalars["loss"] - gap


DRIFT = Run(after=truncating, steps=80)
ODD = Run(after=one_layer, steps=80)
GAP = Run(after=Gap(0.1), steps=190)
SMALL = Run(after=Gap(0.01), steps=120)
NONE = Run(after=Gap(0.0), steps=120)

CASES = [
    Case(
        "all casts truncate from here",
        DRIFT.info(),
        DRIFT.rows(),
        (Want("quantization_drift", (FAULT, FAULT)),),
    ),
    Case("0.01 nats above the baseline is a note", SMALL.info(), SMALL.rows()),
    Case(
        "0.1 nats above the baseline",
        GAP.info(),
        GAP.rows(),
        (Want("quantization_drift", (FAULT, FAULT + 24)),),
    ),
    Case("one odd batch", ODD.info(), ODD.rows()),
    Case("a baseline that agrees", NONE.info(), NONE.rows()),
]

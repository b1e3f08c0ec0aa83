from __future__ import annotations

import math

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors, all_of

FAULT = 130


def equal_logits(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["loss"] = math.log(1000.0)
        scalars["grad_norm"] = 0.0
        scalars["zero_grad_pct"] = 100.0
        for stats in all_of(tensors, "/grad_output"):
            stats["amax"] = 0.0


def near(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["loss"] = math.log(1000.0) + 0.001 * (step % 5)


DEAD = Run(before=equal_logits)

CASES = [
    Case("loss = ln(vocabulary), gradient 0", DEAD.info(), DEAD.rows(),
         (Want("dead_logits", (FAULT, FAULT)),)),
    Case("a run that begins near ln(vocabulary)", Run(after=near).info(), Run(after=near).rows()),
]  # fmt: skip

from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def sum_loses(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["zero_grad_pct"] = 71.0
        scalars["grad_norm"] *= 0.6


CASES = [
    Case("weight gradients vanish in the sum", Run(after=sum_loses).info(), Run(after=sum_loses).rows(),
         (Want("accumulation_precision", (FAULT, FAULT)),)),
    Case("healthy", Run(seed=11).info(), Run(seed=11).rows()),
]  # fmt: skip

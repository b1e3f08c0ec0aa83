from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def sum_loses(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["zero_grad_pct"] = 71.0
        scalars["grad_norm"] *= 0.6


def a_fifth_stays_zero(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["zero_grad_pct"] += 16.0


def rare_rows(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Batches that use few rows of the embedding, now and then."""
    if step % 5 == 0:
        scalars["zero_grad_pct"] += 16.0


CASES = [
    Case("weight gradients vanish in the sum", Run(after=sum_loses).info(), Run(after=sum_loses).rows(),
         (Want("accumulation_precision", (FAULT, FAULT)),)),
    Case("healthy", Run(seed=11).info(), Run(seed=11).rows()),
    Case("a fifth of them, at every step", Run(after=a_fifth_stays_zero).info(),
         Run(after=a_fifth_stays_zero).rows(), (Want("accumulation_precision", (FAULT, FAULT)),)),
    Case("now and then is the data", Run(after=rare_rows).info(), Run(after=rare_rows).rows()),
]  # fmt: skip

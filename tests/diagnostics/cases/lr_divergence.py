from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def rate_jumps(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["lr"] *= 20.0
        scalars["update_norm"] *= 20.0
        scalars["param_norm"] *= 1.02 ** (step - FAULT + 1)
        scalars["loss"] += min(0.5 * (step - FAULT), 1.5)


def warm_restart(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A schedule that triples the rate and a model that bears it."""
    if step >= FAULT:
        scalars["lr"] *= 3.0
        scalars["update_norm"] *= 3.0


def climb(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["loss"] = 2.0 + 0.02 * (step % 3)
    if step >= FAULT:
        scalars["loss"] += 0.15 * (step - FAULT)


CASES = [
    Case("rate x20", Run(after=rate_jumps).info(), Run(after=rate_jumps).rows(),
         (Want("lr_divergence", (FAULT, FAULT)),)),
    Case("a warm restart", Run(after=warm_restart).info(), Run(after=warm_restart).rows()),
]  # fmt: skip

from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def stale_masters(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["param_norm"] = 35.0
    if step == FAULT:
        scalars["resumed"] = 1.0
        scalars["update_norm"] = 37.0
    if step > FAULT:
        scalars["loss"] += 2.0


def clean_resume(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        scalars["resumed"] = 1.0


CASES = [
    Case("the first update after a resume replaces the weights", Run(after=stale_masters).info(),
         Run(after=stale_masters).rows(), (Want("master_weight_desync", (FAULT, FAULT)),)),
    Case("a clean resume", Run(after=clean_resume).info(), Run(after=clean_resume).rows()),
]  # fmt: skip

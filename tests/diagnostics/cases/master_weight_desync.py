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


def norm_before_update(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """As above, with the parameter norm taken before the update of the same step."""
    stale_masters(step, tensors, scalars)
    scalars["param_norm"] = 43.0 if step <= FAULT else 35.0


CASES = [
    Case("the first update after a resume replaces the weights", Run(after=stale_masters).info(),
         Run(after=stale_masters).rows(), (Want("master_weight_desync", (FAULT, FAULT)),)),
    Case("a clean resume", Run(after=clean_resume).info(), Run(after=clean_resume).rows()),
    Case("the parameter norm shows it one step later", Run(after=norm_before_update).info(),
         Run(after=norm_before_update).rows(), (Want("master_weight_desync", (FAULT, FAULT)),)),
]  # fmt: skip

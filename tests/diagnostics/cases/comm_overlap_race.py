from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130
WEIGHT = "blocks.0.mlp.fc2/weight"


def weight_first(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The weight itself is NaN at FAULT; the forward of that step is, too, from there on."""
    if step < FAULT:
        return
    scalars["loss"] = scalars["grad_norm"] = float("nan")
    tensors[WEIGHT]["nan_count"] = 8.0
    for name, stats in tensors.items():
        if name.startswith("blocks.1") or name.endswith("grad_output"):
            stats["nan_count"] = 3.0


TWO = Run(after=weight_first, extra_run={"ranks": 2})
CASES = [
    Case(
        "a parameter is NaN first",
        TWO.info(),
        TWO.rows(),
        (Want("comm_overlap_race", (FAULT, FAULT), None, WEIGHT),),
    ),
    Case("healthy", Run(seed=13).info(), Run(seed=13).rows()),
]

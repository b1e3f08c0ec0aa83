from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Tensors, fp16_run

TARGET = "blocks.1.mlp.fc2/input"


def climbs(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """An activation climbs to the limit of FP16 within 40 steps and passes it: Inf, then NaN behind it."""
    tensors[TARGET]["amax"] = 20000.0 + 1200.0 * step
    if tensors[TARGET]["amax"] > 65504.0:
        tensors[TARGET]["amax"] = float("inf")
        tensors[TARGET]["inf_count"] = 3.0
        scalars["loss"] = float("nan")


def large(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    tensors[TARGET]["amax"] = 30000.0 + 100.0 * (step % 9)


INFO, ROWS = fp16_run(change=climbs)
LARGE_INFO, LARGE = fp16_run(change=large)

CASES = [
    Case("an input passes 65,504", INFO, ROWS, (Want("activation_overflow", (534, 538), None, TARGET),)),
    Case("half of the range is enough room", LARGE_INFO, LARGE),
]

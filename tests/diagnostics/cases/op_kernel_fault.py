from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130
WEIGHT = "blocks.1.mlp.fc2/weight"
BEHIND = "blocks.1.attn.qkv/input"


def bad_wgrad(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """One weight gradient is NaN; clipping by the global norm spreads it to every update, the next step is
    lost."""
    if step < FAULT:
        return
    scalars["grad_norm"] = scalars["update_norm"] = float("nan")
    for name, stats in tensors.items():
        if name.endswith("weight"):
            stats["update_ratio"] = float("nan")
        if step > FAULT:
            stats["nan_count"] = 5.0
    tensors[WEIGHT]["grad_norm"] = float("nan")
    if step > FAULT:
        scalars["loss"] = float("nan")


def bad_forward(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["loss"] = scalars["grad_norm"] = float("nan")
        tensors[BEHIND]["nan_count"] = 5.0


WGRAD = Run(after=bad_wgrad)

CASES = [
    Case("one weight gradient is NaN with a clean forward", WGRAD.info(), WGRAD.rows(),
         (Want("op_kernel_fault", (FAULT, FAULT), None, WEIGHT),)),
    Case("NaN begins inside the network", Run(after=bad_forward).info(), Run(after=bad_forward).rows(),
         (Want("op_kernel_fault", (FAULT, FAULT), None, BEHIND),)),
    Case("healthy", Run(seed=12).info(), Run(seed=12).rows()),
]  # fmt: skip

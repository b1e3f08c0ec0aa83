from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors, all_of, fp16_run

FAULT = 530


def tiny_loss_scale(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= 30:
        scalars["zero_grad_pct"] = 45.0
        for stats in all_of(tensors, "/grad_output"):
            stats["underflow_pct"] = 97.0


def always_much(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A healthy run may lose a third of its gradients at every step."""
    for stats in all_of(tensors, "/grad_output"):
        stats["underflow_pct"] = 30.0 + step % 5


def all_zero(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Every gradient of a linear layer from the first step on: nothing ever changes."""
    scalars["zero_grad_pct"] = 97.0


def machine(te: str, capability: tuple[int, int]) -> Run:
    """An NVFP4 run whose gradients are zero, on a machine that its preflight describes."""
    preflight = {
        "schema": "floatscope.preflight/1",
        "decision": "warn",
        "checks": [],
        "versions": {"transformer-engine": te},
        "gpus": [{"name": "a GPU", "capability": list(capability), "memory_bytes": None}],
    }
    return Run(recipe="nvfp4", after=all_zero, extra_run={"preflight": preflight})


DEFECT, FIXED, DATA_CENTRE = (
    machine("2.18.0", (12, 0)),
    machine("2.20.2", (12, 0)),
    machine("2.18.0", (10, 0)),
)
UNTOLD = Run(recipe="nvfp4", after=all_zero)
CURRENT = Run(recipe="fp8_current_scaling")
INFO, ROWS = fp16_run(change=tiny_loss_scale)
MUCH_INFO, MUCH = fp16_run(change=always_much)

CASES = [
    Case("gradients of all layers flush", INFO, ROWS,
         (Want("gradient_underflow", (FAULT, FAULT), None, "blocks.1.mlp.fc2/grad_output"),)),
    Case("a third lost at every step is this run's normal", MUCH_INFO, MUCH),
    Case("zero gradients where preflight knows the defect", DEFECT.info(), DEFECT.rows(),
         (Want("gradient_underflow", (100, 100)),)),
    Case("the same with a version that has the fix", FIXED.info(), FIXED.rows()),
    Case("the same on a GPU that never had the defect", DATA_CENTRE.info(), DATA_CENTRE.rows()),
    Case("the same without a preflight", UNTOLD.info(), UNTOLD.rows()),
    Case("current scaling", CURRENT.info(), CURRENT.rows()),
]  # fmt: skip

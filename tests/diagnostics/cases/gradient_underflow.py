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


CURRENT = Run(recipe="fp8_current_scaling")
INFO, ROWS = fp16_run(change=tiny_loss_scale)
MUCH_INFO, MUCH = fp16_run(change=always_much)

CASES = [
    Case("gradients of all layers flush", INFO, ROWS,
         (Want("gradient_underflow", (FAULT, FAULT), None, "blocks.1.mlp.fc2/grad_output"),)),
    Case("a third lost at every step is this run's normal", MUCH_INFO, MUCH),
    Case("current scaling", CURRENT.info(), CURRENT.rows()),
]  # fmt: skip

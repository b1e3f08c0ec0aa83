from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def other_labels(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step % 4 == 0:
        scalars["eval_loss"] = 2.6 + 0.002 * (step % 3)
    if step >= FAULT:
        scalars["loss"] += 1.2


def slow_fall(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["loss"] -= 0.004 * (step - 100)


CASES = [
    Case("the loss steps up and the held-out loss does not", Run(after=other_labels).info(),
         Run(after=other_labels).rows(), (Want("data_shift", (FAULT, FAULT + 1)),)),
    Case("a loss that falls", Run(after=slow_fall, steps=120).info(), Run(after=slow_fall, steps=120).rows()),
]  # fmt: skip

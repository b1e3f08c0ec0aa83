from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 140


def memorises(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step % 2 == 0:
        scalars["eval_loss"] = 2.5 + max(0, step - FAULT) * 0.03 + 0.003 * (step % 3)
    scalars["loss"] -= max(0, step - FAULT) * 0.04


def both_fall(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["loss"] -= 0.003 * (step - 100)
    if step % 2 == 0:
        scalars["eval_loss"] = scalars["loss"] + 0.02 * (step % 4)


def noisy_held_out(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The training loss falls; the held-out loss lies 0.15 nats above its lowest for a while."""
    scalars["loss"] -= 0.006 * (step - 100)
    if step % 4 == 0:
        scalars["eval_loss"] = 2.5 - 0.002 * (step - 100) + (0.15 if 150 < step < 180 else 0.0)


CASES = [
    Case("training loss falls, held-out loss rises", Run(after=memorises, steps=90).info(),
         Run(after=memorises, steps=90).rows(), (Want("overfitting", (FAULT - 2, FAULT + 6)),)),
    Case("both fall", Run(after=both_fall, steps=90).info(), Run(after=both_fall, steps=90).rows()),
    Case("a small held-out batch wanders", Run(after=noisy_held_out, steps=120).info(),
         Run(after=noisy_held_out, steps=120).rows()),
]  # fmt: skip

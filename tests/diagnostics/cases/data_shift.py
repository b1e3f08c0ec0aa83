from __future__ import annotations

import numpy as np

from tests.diagnostics.case import Case, Want
from tests.diagnostics.curve_rows import BARE, falling, rows
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def other_labels(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step % 4 == 0:
        scalars["eval_loss"] = 2.6 + 0.002 * (step % 3)
    if step >= FAULT:
        scalars["loss"] += 1.2


def slow_fall(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["loss"] -= 0.004 * (step - 100)


def other_tokens(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A new vocabulary: the loss leaps in one step, updates and held-out loss follow as the model learns
    it."""
    if step % 10 == 9:
        scalars["eval_loss"] = 2.6 + (0.0 if step < FAULT else min(0.04 * (step - FAULT), 2.0))
    if step >= FAULT:
        scalars["loss"] += 1.5 + 3.0 * 0.93 ** (step - FAULT)
        scalars["grad_norm"] *= 5.0
    if step > FAULT:
        scalars["update_norm"] *= 2.6


def hard_batches(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Three hard batches within six steps, without a held-out loss; in between the loss is as before."""
    if step in (FAULT, FAULT + 3, FAULT + 5):
        scalars["loss"] += 2.0


HARD = Run(after=hard_batches)
TOKENS = Run(after=other_tokens, steps=80)


RAISED = 1.0 + 0.5 * (np.arange(400) >= 250)
CASES = [
    Case("the loss steps up and the held-out loss does not", Run(after=other_labels).info(),
         Run(after=other_labels).rows(), (Want("data_shift", (FAULT, FAULT + 1)),)),
    Case("a loss that falls", Run(after=slow_fall, steps=120).info(), Run(after=slow_fall, steps=120).rows()),
    Case("the loss leaps and everything else follows", TOKENS.info(), TOKENS.rows(),
         (Want("data_shift", (FAULT, FAULT)),)),
    Case("hard batches, not a shift", HARD.info(), HARD.rows()),
    Case("scalars only: up by a half for good", BARE, rows(falling() * RAISED),
         (Want("undetermined", (250, 250)),)),
]  # fmt: skip

from __future__ import annotations

import numpy as np

from tests.diagnostics.case import Case, Want
from tests.diagnostics.curve_rows import BARE, falling, rows
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def garbled(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step in (FAULT, FAULT + 1):
        scalars["loss"] += 4.0
        scalars["grad_norm"] *= 20.0


def hard(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        scalars["loss"] += 0.35
        scalars["grad_norm"] *= 6.0


def very_hard(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Sound data can be this hard."""
    if step == FAULT:
        scalars["loss"] += 2.4
        scalars["grad_norm"] *= 9.0


def one_sequence(*, spike: float) -> Run:
    """Batches of one sequence: the loss scatters by 0.4 nats and has long tails."""

    def after(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        scalars["loss"] += 0.6 * ((step * 7919) % 13 - 6) / 6 + (spike if step == FAULT else 0.0)

    return Run(after=after)


HARD_SEQUENCE, GARBLED_SEQUENCE = one_sequence(spike=3.6), one_sequence(spike=8.0)
HUMP = 1.0 + 0.8 * ((np.arange(400) >= 200) & (np.arange(400) < 212))
CASES = [
    Case("two garbled batches", Run(after=garbled).info(), Run(after=garbled).rows(),
         (Want("bad_batch", (FAULT, FAULT)),)),
    Case("one hard batch, clipped", Run(after=hard).info(), Run(after=hard).rows()),
    Case("one very hard batch is a note", Run(after=very_hard).info(), Run(after=very_hard).rows()),
    Case("a hard batch of one sequence is a note", HARD_SEQUENCE.info(), HARD_SEQUENCE.rows()),
    Case("a garbled batch of one sequence", GARBLED_SEQUENCE.info(), GARBLED_SEQUENCE.rows(),
         (Want("bad_batch", (FAULT, FAULT)),)),
    Case("scalars only: a hump that comes back", BARE, rows(falling() * HUMP),
         (Want("undetermined", (200, 200)),)),
]  # fmt: skip

from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def rate_jumps(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["lr"] *= 20.0
        scalars["update_norm"] *= 20.0
        scalars["param_norm"] *= 1.02 ** (step - FAULT + 1)
        scalars["loss"] += min(0.5 * (step - FAULT), 1.5)


def warm_restart(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A schedule that triples the rate and a model that bears it."""
    if step >= FAULT:
        scalars["lr"] *= 3.0
        scalars["update_norm"] *= 3.0


def restart_that_is_borne(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A cosine schedule restarts; twelve steps later the gradients are a little larger for a while, as at
    any other time, and the loss does not move."""
    if step < FAULT:
        scalars["lr"] *= 0.02
        scalars["update_norm"] *= 0.02
    if FAULT + 10 <= step < FAULT + 18:
        scalars["grad_norm"] = 2.2


def climb(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["loss"] = 2.0 + 0.02 * (step % 3)
    if step >= FAULT:
        scalars["loss"] += 0.15 * (step - FAULT)


CASES = [
    Case("rate x20", Run(after=rate_jumps).info(), Run(after=rate_jumps).rows(),
         (Want("lr_divergence", (FAULT, FAULT)),)),
    Case("the loss turns and climbs at full rate", Run(after=climb, steps=80).info(),
         Run(after=climb, steps=80).rows(), (Want("lr_divergence", (FAULT - 8, FAULT + 8)),)),
    Case("a cosine restart that the model bears", Run(after=restart_that_is_borne).info(),
         Run(after=restart_that_is_borne).rows()),
    Case("a warm restart", Run(after=warm_restart).info(), Run(after=warm_restart).rows()),
]  # fmt: skip

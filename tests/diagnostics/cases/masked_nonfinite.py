from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130
TARGET = "blocks.1.attn.qkv/input"


def hidden(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        tensors[TARGET]["nan_count"] = 4.0


def zero_loss(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["loss"] = 0.0
        scalars["grad_norm"] = float("nan")


def no_loss(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The logger leaves a NaN out."""
    if step >= FAULT:
        del scalars["loss"]


def root_of_two(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Every gradient that was NaN has become a constant."""
    if step >= FAULT:
        scalars["grad_norm"] = 1.4142135


def clipped(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The norm behind the clipping is 1 wherever it was larger."""
    scalars["grad_norm"] = min(scalars["grad_norm"] * (1.0 if step < FAULT else 3.0), 1.0)


def every_fifth(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The loss is logged now and then only."""
    if step % 5:
        del scalars["loss"]


CASES = [
    Case("NaN in a tensor and a finite loss", Run(after=hidden).info(), Run(after=hidden).rows(),
         (Want("masked_nonfinite", (FAULT, FAULT), None, TARGET),)),
    Case("the logger prints 0.0 for NaN", Run(after=zero_loss).info(), Run(after=zero_loss).rows(),
         (Want("masked_nonfinite", (FAULT, FAULT)),)),
    Case("the loss is left out", Run(after=no_loss).info(), Run(after=no_loss).rows(),
         (Want("masked_nonfinite", (FAULT, FAULT)),)),
    Case("the gradient norm is the root of 2 at every step", Run(after=root_of_two).info(),
         Run(after=root_of_two).rows(), (Want("masked_nonfinite", (FAULT, FAULT)),)),
    Case("a clipped norm repeats itself", Run(after=clipped).info(), Run(after=clipped).rows()),
    Case("a loss in every fifth step", Run(after=every_fifth).info(), Run(after=every_fifth).rows()),
    Case("healthy", Run(seed=14).info(), Run(seed=14).rows()),
]  # fmt: skip

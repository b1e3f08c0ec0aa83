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


CASES = [
    Case("NaN in a tensor and a finite loss", Run(after=hidden).info(), Run(after=hidden).rows(),
         (Want("masked_nonfinite", (FAULT, FAULT), None, TARGET),)),
    Case("the logger prints 0.0 for NaN", Run(after=zero_loss).info(), Run(after=zero_loss).rows(),
         (Want("masked_nonfinite", (FAULT, FAULT)),)),
    Case("healthy", Run(seed=14).info(), Run(seed=14).rows()),
]  # fmt: skip

from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130
TARGET = "blocks.0.attn.qkv/grad_output"


def spreads(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        tensors[TARGET]["underflow_pct"] = min(1.5 * (step - FAULT), 60.0)


def wanders(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    tensors[TARGET]["underflow_pct"] = 4.0 + 3.0 * (step % 2)


WEIGHT = "blocks.0.attn.qkv/weight"


def weights_grow(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        tensors[WEIGHT]["amax"] *= 1.05 ** (step - FAULT)


GROW = Run(before=weights_grow, steps=80)

CASES = [
    Case("the gradient of one attention layer spreads", Run(after=spreads).info(), Run(after=spreads).rows(),
         (Want("logit_growth", (FAULT, FAULT + 14), None, TARGET),)),
    Case("underflow that wanders", Run(after=wanders).info(), Run(after=wanders).rows()),
    Case("one layer's query-key weights grow by a twentieth a step", GROW.info(), GROW.rows(),
         (Want("logit_growth", (FAULT, FAULT + 16), None, WEIGHT),)),
]  # fmt: skip

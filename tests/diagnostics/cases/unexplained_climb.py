from __future__ import annotations

from typing import Any

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130
BARE = {"name": "bare"}


def climb(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["loss"] = 2.0 + 0.02 * (step % 3)
    if step >= FAULT:
        scalars["loss"] += 0.06 * (step - FAULT)


def fall(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["loss"] = 2.0 + 0.02 * (step % 3) - 0.004 * (step - 100)


def spike(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        scalars["loss"] += 5.0


def bare(run: Run) -> list[dict[str, Any]]:
    """Loss and gradient norm only."""
    return [{k: row[k] for k in ("step", "loss", "grad_norm")} for row in run.rows()]


CASES = [
    Case("loss and gradient norm only", BARE, bare(Run(after=climb, steps=80)),
         (Want("undetermined", (FAULT - 8, FAULT + 8)),)),
    Case("one batch that stands out is a note", BARE, bare(Run(after=spike))),
    Case("a loss that falls", BARE, bare(Run(after=fall, steps=80))),
]  # fmt: skip

from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors, all_of

FAULT = 130


def rounding_away(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        for stats in all_of(tensors, "/weight"):
            stats["unchanged_pct"] = 62.0


def a_little(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    for stats in all_of(tensors, "/weight"):
        stats["unchanged_pct"] = 0.5 + 0.2 * (step % 3)


def end_of_a_decay(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Where the rate has become tiny, some values of one weight no longer move."""
    if step >= FAULT:
        tensors["blocks.0.attn.qkv/weight"]["unchanged_pct"] = 12.0


CASES = [
    Case("most weights keep their value", Run(after=rounding_away).info(), Run(after=rounding_away).rows(),
         (Want("update_stagnation", (FAULT, FAULT)),)),
    Case("a few values of one weight", Run(after=end_of_a_decay).info(), Run(after=end_of_a_decay).rows()),
    Case("half a percent is normal", Run(after=a_little).info(), Run(after=a_little).rows()),
]  # fmt: skip

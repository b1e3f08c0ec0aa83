from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.curve_rows import BARE, falling, rows
from tests.diagnostics.synthetic import Run, Tensors, all_of

FAULT = 130


def rate_zero(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["lr"] = scalars["update_norm"] = 0.0
        for stats in all_of(tensors, "/weight"):
            stats["update_ratio"], stats["unchanged_pct"] = 0.0, 100.0


def ends_at_zero(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == 159:
        scalars["lr"] = 0.0


def runs_out(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["lr"] = 1e-3 * 0.85 ** (step - 100) if step < FAULT else 0.0  # before it 1 % of its peak


CASES = [
    Case(
        "the rate is 0",
        Run(after=rate_zero).info(),
        Run(after=rate_zero).rows(),
        (Want("plateau", (FAULT, FAULT)),),
    ),
    Case("a schedule whose last step is 0", Run(after=ends_at_zero).info(), Run(after=ends_at_zero).rows()),
    Case("a schedule that has run out", Run(after=runs_out).info(), Run(after=runs_out).rows()),
    Case(
        "scalars only: nothing is ever learned",
        BARE,
        rows(falling(start=7.6, end=7.6), lr=3e-4),
        (Want("plateau", (0, 0)),),
    ),
    Case("scalars only: it has converged", BARE, rows(falling(start=7.6, end=1.0))),
]

from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def throttled(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["gpu_throttle"] = 0.0
    if step >= FAULT:
        scalars["step_time_s"] *= 4.0
        scalars["gpu_throttle"] = 64.0


def busy_machine(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if FAULT <= step < FAULT + 6:
        scalars["step_time_s"] *= 2.0


CASES = [
    Case(
        "the card throttles",
        Run(after=throttled).info(),
        Run(after=throttled).rows(),
        (Want("stall", (FAULT, FAULT)),),
    ),
    Case(
        "a shared machine is slow for a while", Run(after=busy_machine).info(), Run(after=busy_machine).rows()
    ),
]

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


def five_times(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["step_time_s"] *= 5.0


def three_times(*, spread: float) -> Run:
    """Steps that scatter by a factor of ``1 + spread`` either way, then take three times as long for good."""

    def after(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        scalars["step_time_s"] *= (1.0 + spread) ** ((step * 7919 % 13 - 6) / 6) * (
            3.0 if step >= FAULT else 1.0
        )

    return Run(after=after)


def one_wait(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["data_time_s"] = 0.004
    if step == FAULT:
        scalars["data_time_s"], scalars["step_time_s"] = 120.0, 120.5


def checkpoints(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step % 20 == 0:
        scalars["step_time_s"] *= 3.4


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
    Case(
        "five times as long for good",
        Run(after=five_times).info(),
        Run(after=five_times).rows(),
        (Want("stall", (FAULT, FAULT), "slow_rank"),),
    ),
    Case(
        "three times as long for good, on a machine whose steps are even",
        three_times(spread=0.02).info(),
        three_times(spread=0.02).rows(),
        (Want("stall", (FAULT, FAULT), "slow_rank"),),
    ),
    Case(
        "three times as long, on a machine that is shared",
        three_times(spread=0.5).info(),
        three_times(spread=0.5).rows(),
    ),
    Case(
        "the loader waits two minutes once",
        Run(after=one_wait).info(),
        Run(after=one_wait).rows(),
        (Want("stall", (FAULT, FAULT), "data_loader"),),
    ),
    Case("checkpoints", Run(after=checkpoints).info(), Run(after=checkpoints).rows()),
]

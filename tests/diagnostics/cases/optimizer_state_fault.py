from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors, all_of

FAULT = 130


def second_moment_lost(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["update_norm"] *= 60.0
        scalars["param_norm"] *= 1.05 ** (step - FAULT + 1)
        for stats in all_of(tensors, "/weight"):
            stats["update_ratio"] *= 60.0
        if step > FAULT:
            scalars["loss"] += 3.0


def epsilon(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        scalars["update_norm"] /= 16.0
        for stats in all_of(tensors, "/weight"):
            stats["update_ratio"] /= 16.0


def decay(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The rate decays and the updates with it."""
    share = 0.97 ** (step - 100)
    scalars["lr"] *= share
    scalars["update_norm"] *= share
    for stats in all_of(tensors, "/weight"):
        stats["update_ratio"] *= share


def unlogged_restart(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A schedule whose rate restarts ten times higher, in a log without it."""
    del scalars["lr"]
    if step >= FAULT:
        scalars["update_norm"] *= 10.0
        for stats in all_of(tensors, "/weight"):
            stats["update_ratio"] *= 10.0


RESTART = Run(after=unlogged_restart)
LONG = Run(after=second_moment_lost)


def warm_up(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Adam's updates do not follow the rate through a warm-up."""
    scalars["lr"] *= min((step + 1) / 40.0, 1.0)
    for stats in all_of(tensors, "/weight"):
        stats["update_ratio"] *= 1.0 + step / 200.0


WARM = Run(after=warm_up, first_step=0, steps=90)


CASES = [
    Case("updates 60 times too long", LONG.info(), LONG.rows(),
         (Want("optimizer_state_fault", (FAULT, FAULT)),)),
    Case("updates 16 times too short", Run(after=epsilon).info(), Run(after=epsilon).rows(),
         (Want("optimizer_state_fault", (FAULT, FAULT)),)),
    Case("a decaying rate", Run(after=decay, steps=120).info(), Run(after=decay, steps=120).rows()),
    Case("a restart of a schedule that is not logged", RESTART.info(), RESTART.rows()),
    Case("warm-up", WARM.info(), WARM.rows()),
]  # fmt: skip

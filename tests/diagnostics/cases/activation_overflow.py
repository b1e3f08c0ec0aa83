from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Tensors, fp16_run

TARGET = "blocks.1.mlp.fc2/input"


def climbs(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """An activation climbs to the limit of FP16 within 40 steps and passes it: Inf, then NaN behind it."""
    tensors[TARGET]["amax"] = 20000.0 + 1200.0 * step
    if tensors[TARGET]["amax"] > 65504.0:
        tensors[TARGET]["amax"] = float("inf")
        tensors[TARGET]["inf_count"] = 3.0
        scalars["loss"] = float("nan")


def large(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    tensors[TARGET]["amax"] = 30000.0 + 100.0 * (step % 9)


def leaps(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Four times as large at every step; gradients overflow on the way and the loss scale falls before the
    forward does."""
    tensors[TARGET]["amax"] = min(4.0 * 4.0 ** max(step - 30, 0), 1e9)
    scalars["loss_scale"] = 65536.0 / 2.0 ** max(min(step - 34, 12), 0)
    if step >= 35:
        scalars["update_norm"], scalars["grad_norm"] = 0.0, float("inf")
    if step >= 38:
        scalars["loss"] = scalars["grad_norm"] = float("nan")
        tensors["blocks.1.mlp.fc2/weight"]["grad_norm"] = float("nan")


INFO, ROWS = fp16_run(change=climbs)
LEAP_INFO, LEAP = fp16_run(change=leaps)
LARGE_INFO, LARGE = fp16_run(change=large)

CASES = [
    Case("an input passes 65,504", INFO, ROWS, (Want("activation_overflow", (534, 538), None, TARGET),)),
    Case(
        "it leaps there and takes the loss scale with it",
        LEAP_INFO,
        LEAP,
        (Want("activation_overflow", (530, 532), None, TARGET),),
    ),
    Case("half of the range is enough room", LARGE_INFO, LARGE),
]

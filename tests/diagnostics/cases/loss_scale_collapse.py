from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Tensors, fp16_run


def halves(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= 30:
        scalars["loss_scale"] = 65536.0 / 2.0 ** (step - 29)


def search(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """From 2^32 down to 2^17, then steady, with one halving and one growth."""
    scalars["loss_scale"] = 2.0 ** max(32 - step, 17)
    if step >= 40:
        scalars["loss_scale"] = 2.0**16 if step < 50 else 2.0**17


INFO, ROWS = fp16_run(change=halves)
SEARCH_INFO, SEARCH = fp16_run(change=search)

CASES = [
    Case("the scale halves at every step", INFO, ROWS, (Want("loss_scale_collapse", (530, 530)),)),
    Case("the search at the start is normal", SEARCH_INFO, SEARCH),
]

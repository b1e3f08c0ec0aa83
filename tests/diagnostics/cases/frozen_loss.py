from __future__ import annotations

import numpy as np

from tests.diagnostics.case import Case, Want
from tests.diagnostics.curve_rows import BARE, falling, rows

LOSS = falling()


def norm_too(t: int, row: dict[str, float]) -> None:
    row["grad_norm"] = 0.8123 if t >= 340 else 0.8 + 0.001 * (t % 7)


def repeats(loss: np.ndarray, since: int) -> np.ndarray:
    return np.where(np.arange(len(loss)) >= since, loss[since], loss)


CASES = [
    Case("the loss repeats its digits", BARE, rows(repeats(LOSS, 340)), (Want("undetermined", (340, 340)),)),
    Case(
        "loss and gradient norm repeat theirs",
        BARE,
        rows(repeats(LOSS, 340), norm_too),
        (Want("undetermined", (340, 340)),),
    ),
    Case("two printed digits repeat by chance", BARE, rows(np.round(falling(noise=0.002), 1))),
    Case("a loss that falls", BARE, rows(LOSS)),
]

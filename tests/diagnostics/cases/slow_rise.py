from __future__ import annotations

import numpy as np

from tests.diagnostics.case import Case, Want
from tests.diagnostics.curve_rows import BARE, falling, rows

LOSS = falling()
CREEPS = LOSS + np.clip(np.arange(400) - 200, 0, None) * 0.004


def held_out_falls(t: int, row: dict[str, float]) -> None:
    if t % 20 == 19:
        row["eval_loss"] = 3.0 - 0.001 * t


CASES = [
    Case("the loss creeps up over half of the log", BARE, rows(CREEPS), (Want("undetermined", (190, 240)),)),
    Case("harder data: the held-out loss goes on falling", BARE, rows(CREEPS, held_out_falls)),
    Case("a loss that falls", BARE, rows(LOSS)),
]

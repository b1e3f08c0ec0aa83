from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.curve_rows import BARE, falling, rows

LOSS = falling(200)
FIRST = rows(LOSS[:150])


CASES = [
    Case(
        "the loss is far higher after a resume",
        BARE,
        [*FIRST, *rows(LOSS[100:] + 2.5, first=100)],
        (Want("undetermined", (100, 100)),),
    ),
    Case("a resume that goes on where it was", BARE, [*FIRST, *rows(LOSS[100:], first=100)]),
]

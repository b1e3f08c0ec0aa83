from __future__ import annotations

from tests.diagnostics.case import Case, Want

FAULT = 30
ROWS = [
    {"step": s, "loss": 2.0 + 0.05 * (s % 5) if s < FAULT else float("nan"), "grad_norm": 1.0}
    for s in range(60)
]
FINE = [{"step": s, "loss": 2.0 + 0.05 * (s % 5), "grad_norm": 1.0} for s in range(60)]

CASES = [
    Case(
        "only the loss is logged and it turns NaN",
        {"name": "scalars"},
        ROWS,
        (Want("undetermined", (FAULT, FAULT)),),
    ),
    Case("only the loss is logged and it is fine", {"name": "scalars"}, FINE),
]

from __future__ import annotations

from typing import Any

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run

FAULT = 130


def two_ranks(*, apart: bool) -> list[dict[str, Any]]:
    """The same run on two ranks; from FAULT on the weights of one layer differ."""
    rows = []
    for row in Run(extra_run={"ranks": 2}).rows():
        for rank in (0, 1):
            tensors = {name: dict(stats) for name, stats in row["tensors"].items()}
            if apart and rank == 1 and row["step"] >= FAULT:
                grown = 1.0 + 0.01 * (row["step"] - FAULT + 1)
                tensors["blocks.1.attn.qkv/weight"]["update_ratio"] *= grown
            rows.append({**row, "rank": rank, "tensors": tensors})
    return rows


INFO = Run(extra_run={"ranks": 2}).info()
CASES = [
    Case("weights part on one rank", INFO, two_ranks(apart=True),
         (Want("rank_divergence", (FAULT, FAULT), None, "blocks.1.attn.qkv/weight"),)),
    Case("ranks agree", INFO, two_ranks(apart=False)),
]  # fmt: skip

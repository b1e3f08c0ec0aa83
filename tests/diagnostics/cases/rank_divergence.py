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


def own_gradients(*, noisy: bool) -> list[dict[str, Any]]:
    """Each rank's gradient norm before the reduction: alike up to the batches, then rank 1 is out of line."""
    rows = []
    for row in two_ranks(apart=False):
        wave = 1.0 + 0.3 * ((row["step"] * 7 + 3 * row["rank"]) % 5)
        far = noisy and row["rank"] == 1 and row["step"] >= FAULT
        rows.append({**row, "local_grad_norm": wave * (40.0 if far else 1.0)})
    return rows


INFO = Run(extra_run={"ranks": 2}).info()
CASES = [
    Case("weights part on one rank", INFO, two_ranks(apart=True),
         (Want("rank_divergence", (FAULT, FAULT), None, "blocks.1.attn.qkv/weight"),)),
    Case("ranks agree", INFO, two_ranks(apart=False)),
    Case("one rank's gradient is out of line before the reduction", INFO, own_gradients(noisy=True),
         (Want("rank_divergence", (FAULT, FAULT)),)),
    Case("ranks see different batches", INFO, own_gradients(noisy=False)),
]  # fmt: skip

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def hashes(
    wrong: Callable[[int, int], float] = lambda rank, step: 0.0,
    *,
    ranks: int = 4,
    every: int = 10,
    name: str = "param_hash",
    place: Callable[[int], Mapping[str, float]] = lambda rank: {"dp_rank": float(rank)},
    missing: Callable[[int, int], bool] = lambda rank, step: False,
) -> list[dict[str, Any]]:
    """Ranks that log a hash every few steps, the same for all but for what ``wrong`` adds."""
    rows = []
    for row in Run(steps=100, extra_run={"ranks": ranks}).rows():
        step = int(row["step"])
        for rank in range(ranks):
            found = {**row, "rank": rank, **place(rank)}
            if step % every == 0 and not missing(rank, step):
                found[name] = float((step * 7919 + 2**52) % 2**53) + wrong(rank, step)
            rows.append(found)
    return rows


def late(rank: int, step: int) -> bool:
    """Rank 3 has stopped sending hashes for a while."""
    return rank == 3 and 120 <= step <= 160


def stage(rank: int) -> dict[str, float]:
    return {"dp_rank": float(rank // 2), "tp_rank": float(rank % 2)}


def one_leaves(rank: int, step: int) -> float:
    return float(rank == 2 and step >= 150)


INFO_4 = Run(extra_run={"ranks": 4}).info()
INFO = Run(extra_run={"ranks": 2}).info()
CASES = [
    Case("weights part on one rank", INFO, two_ranks(apart=True),
         (Want("rank_divergence", (FAULT, FAULT), None, "blocks.1.attn.qkv/weight"),)),
    Case("ranks agree", INFO, two_ranks(apart=False)),
    Case("one rank's gradient is out of line before the reduction", INFO, own_gradients(noisy=True),
         (Want("rank_divergence", (FAULT, FAULT)),)),
    Case("ranks see different batches", INFO, own_gradients(noisy=False)),
    Case("hashes agree", INFO_4, hashes()),
    Case("one rank's hash leaves the others", INFO_4, hashes(one_leaves),
         (Want("rank_divergence", (141, 150)),)),
    Case("one of two hashes leaves the other", INFO, hashes(lambda r, s: float(r and s >= 150), ranks=2),
         (Want("rank_divergence", (141, 150)),)),
    Case("without coordinates a hash that was equal counts", INFO_4, hashes(one_leaves, place=lambda r: {}),
         (Want("rank_divergence", (141, 150)),)),
    Case("tensor-parallel ranks hold other weights", INFO_4,
         hashes(lambda r, s: 5.0 * (r % 2), place=stage)),
    Case("one of two tensor-parallel pairs parts", INFO_4,
         hashes(lambda r, s: 5.0 * (r % 2) + (r == 3 and s >= 150), place=stage),
         (Want("rank_divergence", (141, 150)),)),
    Case("split weights without coordinates never were equal", INFO_4,
         hashes(lambda r, s: float(r), place=lambda r: {})),
    Case("two groups that nobody tells apart each stay equal", INFO_4,
         hashes(lambda r, s: float(r // 2), place=lambda r: {})),
    Case("data-parallel ranks that never held the same", INFO_4, hashes(lambda r, s: float(r == 1)),
         (Want("rank_divergence", (100, 110)),)),
    Case("a rank sends no hashes for a while", INFO_4, hashes(missing=late)),
    Case("a rank comes back changed", INFO_4,
         hashes(lambda r, s: float(r == 3 and s > 130), missing=late),
         (Want("rank_divergence", (161, 170)),)),
    Case("no rank but one sends hashes", INFO_4, hashes(missing=lambda r, s: r > 0)),
    Case("a hash that differs once and is equal again", INFO_4,
         hashes(lambda r, s: float(r == 1 and s == 150)), (Want("rank_divergence", (141, 150)),)),
    Case("the scales of one rank leave the others", INFO_4, hashes(one_leaves, name="scale_hash"),
         (Want("scale_state_fault", (141, 150), "reduction_group"),)),
    Case("scales that are never shared", INFO_4,
         hashes(lambda r, s: float(r), name="scale_hash")),
]  # fmt: skip

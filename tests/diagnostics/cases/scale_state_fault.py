from __future__ import annotations

from typing import Any

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import LIMITS, Run, Tensors

FAULT = 130
TARGET = "blocks.1.attn.qkv/input"


def frozen(step: int, name: str) -> bool:
    return step >= FAULT and name == TARGET


def rising(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        tensors[TARGET]["amax"] *= 1.3


def falling_then_rising(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The scale that stands still is too low first, and too high from FAULT + 20 on."""
    if step >= FAULT:
        tensors[TARGET]["amax"] *= 0.5 if step < FAULT + 20 else 6.0


def nan_scale(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        tensors[TARGET]["scale"] = float("inf")


def idle(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        tensors[TARGET]["amax"] = 0.0
    if step == FAULT + 1:
        tensors[TARGET]["scale"] = float("inf")


def lost(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """History lost at a resume: all scales exactly 1 for a step."""
    if step == FAULT:
        scalars["resumed"] = 1.0
        for name, stats in tensors.items():
            if not name.startswith("tok_emb"):
                stats["scale"] = 1.0


class Group:
    """Scale of two row-parallel layers from a part of the tensor only."""

    def __call__(self, step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        if step >= FAULT:
            for name in ("blocks.0.mlp.fc2/input", "blocks.1.mlp.fc2/input"):
                tensors[name]["scale"] *= 2.2
                tensors[name]["overflow_pct"] = 3.0


def reduced(*, wrong: bool) -> list[dict[str, Any]]:
    """Two ranks of which rank 1 has the smaller amaxes and the same, reduced scale; it is too low from FAULT
    on."""
    rows = []
    for row in Run(extra_run={"ranks": 2}).rows():
        for rank in (0, 1):
            tensors = {name: dict(stats) for name, stats in row["tensors"].items()}
            for name, stats in tensors.items():
                if rank == 1 and not name.endswith("weight"):
                    stats["amax"] *= 0.6
                if wrong and name == TARGET and row["step"] >= FAULT:
                    stats["scale"] *= 0.8
            rows.append({**row, "rank": rank, "tensors": tensors})
    return rows


class Twice:
    """The amax history advances twice a step, so that it reaches back half as far."""

    def __init__(self, length: int) -> None:
        self.half = length // 2
        self.amaxes: dict[str, list[float]] = {}

    def __call__(self, step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        for name, stats in tensors.items():
            if name.startswith("tok_emb"):
                continue
            seen = self.amaxes.setdefault(name, [])
            if step >= FAULT:
                stats["scale"] = LIMITS["e5m2" if name.endswith("grad_output") else "e4m3"][0] / max(seen)
            self.amaxes[name] = [*seen, stats["amax"]][-self.half :]


def stale_copy(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The quantised copy of one weight is not refreshed: its error grows with every update."""
    if step >= FAULT:
        tensors["blocks.0.mlp.fc2/weight"]["sqnr_db"] -= min(0.5 * (step - FAULT), 12.0)


def from_scratch(*, stride: int, vocab: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All scales 1 at the first step, which is not 0 or 1: numbered in tokens, or on from another run."""
    run = Run(steps=40, first_step=0)
    rows = [{**row, "step": (row["step"] + 1) * stride} for row in run.rows()]
    for stats in rows[0]["tensors"].values():
        if "scale" in stats:
            stats["scale"] = 1.0
    info = run.info()
    if vocab:
        rows[0]["loss"] = 6.92  # ln 1000 is 6.91
        rows = [{**row, "step": 10**6 + row["step"]} for row in rows]
    else:
        del info["vocab_size"]
    return info, rows


def larger_from_140(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= 140:
        for name in tensors:
            if name.endswith("/input"):
                tensors[name]["amax"] *= 1.3


def gone_back() -> list[dict[str, Any]]:
    """Two ranks that resume from 20 steps before, on other batches: amaxes and scales differ from those
    seen."""
    rows = []
    for part in (Run(steps=50, before=larger_from_140), Run(steps=50, first_step=130, seed=8)):
        rows += [{**row, "rank": rank} for row in part.rows() for rank in (0, 1)]
    return rows


SCRATCH, TOKENS = from_scratch(stride=1, vocab=True), from_scratch(stride=4096, vocab=False)
TWO = Run(extra_run={"ranks": 2}).info()
FROZEN = Run(freeze=frozen, before=rising)
BOTH_SIDES = Run(freeze=frozen, before=falling_then_rising)
INF = Run(before=nan_scale)
IDLE = Run(before=idle)
LOST = Run(before=lost, steps=31)
TWICE = Run(before=Twice(8))
COPY = Run(after=stale_copy)
GROUP = Run(after=Group())
STEADY = Run(steps=100)

CASES = [
    Case("a history that advances twice a step", TWICE.info(), TWICE.rows(),
         (Want("scale_state_fault", (FAULT, FAULT + 4), "recompute"),)),
    Case("a quantised weight that is not refreshed", COPY.info(), COPY.rows(),
         (Want("scale_state_fault", (FAULT, FAULT + 8), "stale_fp8_copy", "blocks.0.mlp.fc2/weight"),)),
    Case("a scale that stands still while amax rises", FROZEN.info(), FROZEN.rows(),
         (Want("scale_state_fault", (FAULT, FAULT + 2), "frozen", TARGET),)),
    Case("a scale that stands still is too low, then too high", BOTH_SIDES.info(), BOTH_SIDES.rows(),
         (Want("scale_state_fault", (FAULT, FAULT + 9), "frozen", TARGET),)),
    Case("an infinite scale for one step", INF.info(), INF.rows(),
         (Want("scale_state_fault", (FAULT, FAULT), "nonfinite_scale", TARGET),)),
    Case("amax 0 once, then an infinite scale", IDLE.info(), IDLE.rows(),
         (Want("scale_state_fault", (FAULT, FAULT), "degenerate_amax", TARGET),)),
    Case("all scales 1 after a resume", LOST.info(), LOST.rows(),
         (Want("scale_state_fault", (FAULT, FAULT), "lost_at_resume"),)),
    Case("amax of a part of the tensor only", GROUP.info(), GROUP.rows(),
         (Want("scale_state_fault", (FAULT, FAULT), "reduction_group", "blocks.0.mlp.fc2/input"),)),
    Case("too low for the amaxes of all ranks", TWO, reduced(wrong=True),
         (Want("scale_state_fault", (FAULT, FAULT), None, TARGET),)),
    Case("the scale of the larger rank's amax", TWO, reduced(wrong=False)),
    Case("a run from scratch that is numbered on from another", *SCRATCH),
    Case("a run from scratch that counts tokens", *TOKENS),
    Case("two ranks that go back to a checkpoint", TWO, gone_back()),
    Case("a healthy run follows its recipe exactly", STEADY.info(), STEADY.rows()),
]  # fmt: skip

"""What the made-up runs show in the pictures: range ruler, how NaN spread, ranks over time."""

from __future__ import annotations

import math
from typing import Any

from floatscope_dashboards.pictures_view import (
    BadGroup,
    FirstBad,
    PathView,
    PicturesView,
    RanksView,
    RulerView,
    TensorAt,
)
from tests.dashboards.sample import LAST, ONSET, ORIGIN

RANKS = 8


def ruler_at(step: int, *, pinned: str | None = None) -> RulerView:
    """The faulty run: the origin clips from the onset on, the others have room."""
    clips = max(0.0, (step - ONSET) / 25)
    counts = tuple(100 if -6 <= at - 40 < 4 else 0 for at in range(64))
    names = [
        ORIGIN,
        *(f"blocks.{layer}.mlp.fc1/weight" for layer in range(5)),
        "blocks.2.attn.qkv/grad_output",
    ]
    if pinned is not None and pinned not in names:
        names.append(pinned)
    tensors = tuple(
        TensorAt(
            name=name,
            format="e5m2" if "grad" in name else "e4m3",
            amax=12.0,
            scale=16.0 * (2**clips if name == ORIGIN else 1),
            overflow_pct=min(50.0, clips * 3) if name == ORIGIN else 0.0,
            underflow_pct=0.0,
            counts=counts,
            sampled=step,
            sampled_scale=16.0 * (2**clips if name == ORIGIN else 1),
        )
        for name in names
    )
    return RulerView(step, step, tensors, 144, 144)


def nan_path() -> PathView:
    """Three steps of NaN from 352 on, seen by rank 3 first."""
    tensors = tuple(
        FirstBad(352, f"blocks.{layer}.attn.qkv/{role}", "values", nan=7.0, order=layer * 4)
        for role in ("input", "grad_output")
        for layer in range(9, 12)
    )
    groups = (BadGroup(352, "grad_output", "values", 48), BadGroup(352, "input", "values", 12))
    counts = (("grad_output", 48), ("input", 48), ("weight", 48))
    return PathView(352, tensors, groups, (("loss", 352, "NaN"),), counts, rank=3, ranks=8, looked_at=8)


def pictures(step: int = ONSET) -> PicturesView:
    """All of them."""
    return PicturesView(step, ruler_at(step), nan_path(), RanksView(("gpu_util_pct", "step_time_s"), RANKS))


def rankmap(name: str, low: int, high: int, columns: int) -> dict[str, Any]:
    """The answer of /rankmap: rank 5 is slowed down for some steps, one cell is NaN."""
    last = min(high, LAST)
    width = max(1, math.ceil((last - low + 1) / columns))
    starts = list(range(low, last + 1, width))
    usual, slow = (96.0, 30.0) if name == "gpu_util_pct" else (0.4, 0.9)
    values: list[list[float | None]] = [
        [slow if rank == 5 and 200 <= start < 240 else usual for start in starts] for rank in range(RANKS)
    ]
    values[2][0] = None
    return {
        "run_id": "k3f9q2",
        "name": name,
        "worst": "low" if name == "gpu_util_pct" else "high",
        "ranks": [[rank] for rank in range(RANKS)],
        "from": starts,
        "to": [min(start + width - 1, last) for start in starts],
        "values": values,
        "nan": [[2, 0, 1]],
        "inf": [],
        "throttled": [[5, at, 0x40] for at, start in enumerate(starts) if 200 <= start < 240],
    }

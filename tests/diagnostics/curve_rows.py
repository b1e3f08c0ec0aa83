"""Rows of runs that log only scalars, for the cases of rules that judge whole curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

BARE = {"name": "scalars"}
Float64 = NDArray[np.float64]


def falling(
    steps: int = 400, *, start: float = 8.0, end: float = 2.5, noise: float = 0.03, seed: int = 1
) -> Float64:
    """A loss that falls as a power of the step towards ``end``, with white noise; shape (steps,)."""
    t = np.arange(steps)
    return (
        end + (start - end) * (1 + t / 8.0) ** -0.7 + noise * np.random.default_rng(seed).normal(size=steps)
    )


def rows(
    loss: Float64,
    change: Callable[[int, dict[str, float]], None] | None = None,
    *,
    every: int = 1,
    first: int = 0,
    **scalars: float,
) -> list[dict[str, Any]]:
    """One row a value. change: edits a row by its index.  every: steps from one row to the next."""
    out: list[dict[str, Any]] = []
    for t, value in enumerate(loss.tolist()):
        row: dict[str, Any] = {"step": first + t * every, "loss": value, **scalars}
        if change is not None:
            change(t, row)
        out.append(row)
    return out

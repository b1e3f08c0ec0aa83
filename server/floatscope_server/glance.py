"""The few numbers of a batch that lists, key figures and messages show, so that none of them has to unpack
blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from floatscope.protocol.batch import Batch
from floatscope_server.derived import derive

LAST_SCALARS = ("loss", "grad_norm", "lr", "step_time_s")
"""Scalars of which the batch's last value is kept."""

WORST_STATS = {"overflow_pct": np.fmax, "underflow_pct": np.fmax, "headroom_log2": np.fmin}
"""Statistics of which the worst finite value over all tensors and steps of the batch is kept."""


def glance(batch: Batch, tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """name -> number. ``nonfinite``: values that were NaN or infinite in the batch's tensors, if that was
    counted.
    """
    out: dict[str, float] = {}
    for name in LAST_SCALARS:
        values, present = batch.scalar(name)
        if present.any():
            out[name] = float(values[present][-1])
    for name, worst in WORST_STATS.items():
        stat, has_stat = derive(batch, name, tensors)
        found = stat[has_stat & np.isfinite(stat)]
        if found.size:
            out[name] = float(worst.reduce(found))
    counts = [batch.stat(name) for name in ("nan_count", "inf_count")]
    found_counts = [values[present & np.isfinite(values)] for values, present in counts if present.any()]
    if found_counts:
        out["nonfinite"] = float(sum(c.sum() for c in found_counts))
    return out

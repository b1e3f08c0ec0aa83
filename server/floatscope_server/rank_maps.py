"""Which scalars are compared between ranks, and which end of a cell is the worst."""

from __future__ import annotations

from collections.abc import Mapping

WORST: Mapping[str, str] = {
    "gpu_util_pct": "low",
    "step_time_s": "high",
    "gpu_temp_c": "high",
    "gpu_power_w": "high",
    "gpu_mem_gib": "high",
    "data_time_s": "high",
}
NAMES = tuple(WORST)
THROTTLE = "gpu_throttle"

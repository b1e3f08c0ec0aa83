"""A small FP8 run with one fault, as the JSON a trainer would send: the scale of one tensor stands still
while its values grow 16 times. Delayed scaling by Transformer Engine's rule, so every other scale is exactly
right."""

from __future__ import annotations

import math
import random
from typing import Any

from tests.dashboards.sample import HOSTILE

HISTORY = 16
FAULT_STEP = 90
STEPS = 130
E4M3_MAX, E5M2_MAX = 448.0, 57344.0
LAYERS = (
    "blocks.0.fc1",
    "blocks.0.fc2",
    "blocks.1.fc1",
    "blocks.1.fc2",
    f"blocks.2.{HOSTILE.replace('/', '|')}",
)
FAULTY = "blocks.1.fc2/input"
USUAL_AMAX = {"input": 3.0, "weight": 0.4, "grad_output": 1e-3}
ROLES = {"input": E4M3_MAX, "weight": E4M3_MAX, "grad_output": E5M2_MAX}


def description() -> dict[str, Any]:
    """The run object, with a name and a project that are markup."""
    tensors = {
        f"{layer}/{role}": {"format": "e5m2" if role == "grad_output" else "e4m3", "call_order": order}
        for order, layer in enumerate(LAYERS)
        for role in ROLES
    }
    recipe = {
        "name": "fp8_delayed_scaling",
        "amax_history_len": HISTORY,
        "amax_compute_algo": "max",
        "margin": 0,
        "fp8_format": "HYBRID",
    }
    return {"name": HOSTILE, "project": HOSTILE, "recipe": recipe, "tensors": tensors, "vocab_size": 4096}


def steps(*, faulty: bool = True) -> list[dict[str, Any]]:
    """Rows 0 to STEPS - 1, with the fault or without."""
    noise = random.Random(11)
    history: dict[str, list[float]] = {}
    scale: dict[str, float] = {}
    rows = []
    for step in range(STEPS):
        tensors = {}
        for layer in LAYERS:
            for role, largest in ROLES.items():
                name = f"{layer}/{role}"
                amax = USUAL_AMAX[role] * math.exp(noise.gauss(0, 0.04))
                clipped = 0.0
                if faulty and name == FAULTY and step >= FAULT_STEP:
                    amax *= 16.0
                    clipped = 38.0 + noise.gauss(0, 0.5)
                used = scale.get(name, 1.0)
                tensors[name] = {
                    "amax": amax,
                    "scale": used,
                    "rms": amax / 4,
                    "overflow_pct": clipped,
                    "underflow_pct": 0.01,
                    "nan_count": 0,
                    "inf_count": 0,
                }
                if faulty and name == FAULTY and step >= FAULT_STEP:
                    continue
                kept = [*history.get(name, []), amax][-HISTORY:]
                history[name] = kept
                scale[name] = largest / max(kept)
        rows.append(
            {
                "step": step,
                "time": 1_764_000_000.0 + step,
                "loss": 3.0 + 2.0 * math.exp(-step / 30) + noise.gauss(0, 0.02),
                "grad_norm": 0.9 + noise.gauss(0, 0.05),
                "lr": 3e-4,
                "tensors": tensors,
            }
        )
    return rows

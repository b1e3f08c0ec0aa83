"""Runs with chosen statistics, as batches and as log files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from floatscope.protocol.batch import Batch
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo

PARTS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
LAYERS = tuple(f"blocks.{b}.{part}" for b in range(3) for part in PARTS)
FORMATS = {"input": "e4m3", "weight": "e4m3", "grad_output": "e5m2"}
HEALTHY = {"e4m3": 31.5, "e5m2": 25.6}
MODEL = {"layers": 3, "width": 96, "hidden": 256}

Change = Mapping[str, float]


def gaussian_counts(scale: float = 1.0, n: int = 20_000) -> list[int]:
    """A histogram of Gaussian values."""
    values = np.abs(np.random.default_rng(0).normal(0.0, scale, n))
    bins = np.clip(np.frexp(values)[1] - 1 + 40, 0, 63)
    return [int(c) for c in np.bincount(bins, minlength=64)]


def run_info(*, recipe: str = "fp8_current_scaling", **config: Any) -> RunInfo:
    tensors = {
        f"{layer}/{role}": {"call_order": k, "format": fmt}
        for k, layer in enumerate(LAYERS)
        for role, fmt in FORMATS.items()
    }
    given = {"model": MODEL, "precision": {"backend": "emulated", "precision_map": ""}, **config}
    return RunInfo(name="made", recipe={"name": recipe}, tensors=tensors, config=given)


def rows(
    changes: Mapping[str, Change] | None = None,
    *,
    steps: Sequence[int] = range(0, 300, 10),
    since: int = 0,
    until: int = 10**9,
    histograms: bool = True,
    loss: float = 2.0,
) -> list[dict[str, Any]]:
    """Rows of a log. changes: statistics of single tensors, from ``since`` until before ``until``."""
    counts = gaussian_counts()
    amax = 4.0
    out = []
    for step in steps:
        tensors: dict[str, Any] = {}
        for layer in LAYERS:
            for role, fmt in FORMATS.items():
                stats: dict[str, Any] = {
                    "amax": amax,
                    "scale": (448.0 if fmt == "e4m3" else 57344.0) / amax,
                    "overflow_pct": 0.0,
                    "underflow_pct": 0.01,
                    "sqnr_db": HEALTHY[fmt],
                }
                if changes and since <= step < until:
                    stats |= changes.get(f"{layer}/{role}", {})
                if histograms and step % 100 == 0:
                    stats["hist_log2"] = counts
                tensors[f"{layer}/{role}"] = stats
        out.append({"step": step, "loss": loss, "tokens": 256, "passes": 1, "tensors": tensors})
    return out


def batches(given: Sequence[Mapping[str, Any]]) -> list[Batch]:
    return [batch_from_rows(list(given), strict=False)]


def write_log(path: Path, given: Sequence[Mapping[str, Any]], info: RunInfo) -> Path:
    lines = [json.dumps({"run": info.to_json()}), *(json.dumps(row) for row in given)]
    path.write_text("\n".join(lines) + "\n")
    return path

"""A small made-up FP8 run with Transformer Engine's delayed scaling, written plainly as the reference for
tests.

Four linears behind an embedding; every tensor has Gaussian elements, so clipping and underflow follow from
amax and scale. Faults
are put in by functions that change one step's tensors before or after the scale is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LAYERS = ("blocks.0.attn.qkv", "blocks.0.mlp.fc2", "blocks.1.attn.qkv", "blocks.1.mlp.fc2")
BASE_AMAX = {"input": 4.0, "weight": 0.1, "grad_output": 1e-3}
SPREAD = {
    "input": 0.12,
    "weight": 0.002,
    "grad_output": 0.4,
}  # standard deviation of ln amax from step to step
LIMITS = {"e4m3": (448.0, 2.0**-9), "e5m2": (57344.0, 2.0**-16)}
CREST = 4.0  # amax over rms

Tensors = dict[str, dict[str, float]]
Change = Callable[[int, Tensors, dict[str, float]], None]


@dataclass
class History:
    """Delayed scaling of one tensor as in ``delayed_scaling.cu``: max over the history, 0 / Inf / NaN keep
    the scale."""

    fmax: float
    length: int
    margin: float = 0.0
    algo: str = "max"
    scale: float = 1.0
    amaxes: list[float] = field(default_factory=list)

    def update(self, amax: float) -> None:
        if amax == 0.0:
            return
        self.amaxes = [*self.amaxes, amax][-self.length :]
        finite = [a for a in self.amaxes if not math.isnan(a)]
        top = self.amaxes[-1] if self.algo == "most_recent" else max(finite, default=0.0)
        if math.isfinite(top) and top > 0.0:
            self.scale = min(self.fmax / 2.0**self.margin / top, float(np.finfo(np.float32).max))


@dataclass
class Run:
    """steps: how many.  before: changes the amaxes of a step before the cast.  after: changes the logged
    statistics.
    freeze: whether a tensor's scale update is skipped at a step."""

    steps: int = 60
    first_step: int = 100
    history: int = 8
    margin: float = 0.0
    algo: str = "max"
    recipe: str = "fp8_delayed_scaling"
    seed: int = 7
    before: Change | None = None
    after: Change | None = None
    freeze: Callable[[int, str], bool] | None = None
    extra_run: Mapping[str, Any] = field(default_factory=dict)

    def info(self) -> dict[str, Any]:
        tensors = {"tok_emb/output": {"format": "bf16", "call_order": 0}}
        for k, layer in enumerate(LAYERS, start=1):
            for role in BASE_AMAX:
                tensors[f"{layer}/{role}"] = {"format": _format(role), "call_order": k}
        recipe = {
            "name": self.recipe,
            "amax_history_len": self.history,
            "amax_compute_algo": self.algo,
            "margin": self.margin,
            "fp8_format": "HYBRID",
        }
        return {
            "name": "synthetic",
            "recipe": recipe,
            "tensors": tensors,
            "vocab_size": 1000,
            "ranks": 1,
            **self.extra_run,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The log's step objects."""
        rng = np.random.default_rng(self.seed)
        names = [f"{layer}/{role}" for layer in LAYERS for role in BASE_AMAX]
        states = {
            n: History(LIMITS[_format(n.rpartition("/")[2])][0], self.history, self.margin, self.algo)
            for n in names
        }
        for _ in range(2 * self.history):  # the run was forked from a settled one
            for n in names:
                states[n].update(_amax(n, rng))
        out = []
        for step in range(self.first_step, self.first_step + self.steps):
            scalars = _scalars(rng)
            tensors: Tensors = {n: {"amax": _amax(n, rng), "nan_count": 0.0, "inf_count": 0.0} for n in names}
            tensors["tok_emb/output"] = {"amax": 0.3, "nan_count": 0.0, "inf_count": 0.0}
            if self.before is not None:
                self.before(step, tensors, scalars)
            for n in names:
                used = states[n].scale
                if self.recipe == "fp8_current_scaling":
                    used = states[n].fmax / tensors[n]["amax"] if tensors[n]["amax"] > 0 else 1.0
                _judge(n, tensors[n], tensors[n].pop("scale", used))
                if self.freeze is None or not self.freeze(step, n):
                    states[n].update(tensors[n]["amax"])
            if self.after is not None:
                self.after(step, tensors, scalars)
            out.append({"step": step, **scalars, "tensors": tensors})
        return out


def _format(role: str) -> str:
    return "e5m2" if role == "grad_output" else "e4m3"


def _amax(name: str, rng: np.random.Generator) -> float:
    role = name.rpartition("/")[2]
    return float(BASE_AMAX[role] * math.exp(rng.normal(0.0, SPREAD[role])))


def _scalars(rng: np.random.Generator) -> dict[str, float]:
    return {
        "loss": float(2.5 + rng.normal(0.0, 0.1)),
        "grad_norm": float(math.exp(rng.normal(0.0, 0.2))),
        "lr": 1e-3,
        "update_norm": float(0.4 * math.exp(rng.normal(0.0, 0.03))),
        "param_norm": 43.0,
        "zero_grad_pct": float(1.0 + abs(rng.normal(0.0, 0.05))),
        "label_tokens": 256.0,
        "step_time_s": float(0.5 * math.exp(rng.normal(0.0, 0.02))),
    }


def _judge(name: str, stats: dict[str, float], scale: float) -> None:
    """Fills the statistics that follow from amax and scale for Gaussian elements."""
    role = name.rpartition("/")[2]
    fmax, tiny = LIMITS[_format(role)]
    amax = stats["amax"]
    rms = stats.get("rms", amax / CREST if math.isfinite(amax) else BASE_AMAX[role] / CREST)
    stats["rms"] = rms
    stats["scale"] = scale
    above = fmax / (scale * rms) if scale * rms > 0 else math.inf
    overflow = math.erfc(above / math.sqrt(2.0)) if math.isfinite(above) else 0.0
    below = tiny / 2 / (scale * rms) if scale * rms > 0 else math.inf
    underflow = math.erf(below / math.sqrt(2.0)) if math.isfinite(below) else 1.0
    stats["overflow_pct"] = 100.0 * overflow
    stats["underflow_pct"] = 100.0 * underflow
    best = 25.6 if role == "grad_output" else 31.5
    stats["sqnr_db"] = best - 29.0 * min(1.0, 5 * overflow + underflow)
    if role == "weight":
        stats.update(update_ratio=0.01, grad_norm=0.3, unchanged_pct=0.0)


def all_of(tensors: Tensors, ending: str) -> list[dict[str, float]]:
    """Statistics of every tensor whose name ends so."""
    return [stats for name, stats in tensors.items() if name.endswith(ending)]


def fp16_run(
    steps: int = 60, *, change: Change | None = None, seed: int = 3
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An FP16 run with dynamic loss scaling: no tensor scale."""
    rng = np.random.default_rng(seed)
    names = [f"{layer}/{role}" for layer in LAYERS for role in BASE_AMAX]
    info = {
        "name": "fp16",
        "recipe": {"name": "fp16_amp"},
        "ranks": 1,
        "tensors": {n: {"format": "fp16", "call_order": LAYERS.index(n.rpartition("/")[0])} for n in names},
    }
    rows = []
    for step in range(steps):
        scalars = {**_scalars(rng), "loss_scale": 65536.0, "skipped_steps": 0.0}
        tensors: Tensors = {}
        for n in names:
            tensors[n] = {"amax": _amax(n, rng), "nan_count": 0.0, "inf_count": 0.0, "underflow_pct": 0.5}
        if change is not None:
            change(step, tensors, scalars)
        rows.append({"step": 500 + step, **scalars, "tensors": tensors})
    return info, rows

from __future__ import annotations

import math

import numpy as np

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 140


def truncating(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        for stats in tensors.values():
            if "sqnr_db" in stats:
                stats["sqnr_db"] -= 5.8


def inputs_truncating(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        for name, stats in tensors.items():
            if name.endswith("/input"):
                stats["sqnr_db"] -= 5.8


def one_layer(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """One odd batch lowers the SQNR of the gradients for a step."""
    if step == FAULT:
        for name, stats in tensors.items():
            if name.endswith("grad_output"):
                stats["sqnr_db"] -= 8.0


class Gap:
    """Loss against ref_loss on the same batches: equal up to noise, then a gap that opens within 40 steps.

    per_step: what it widens by after that.  noise: nats; chaotic healthy pairs have 0.03 and wander slowly.
    """

    def __init__(
        self, offset: float, *, per_step: float = 0.0, noise: float = 0.001, wander: float = 0.0
    ) -> None:
        self.offset, self.per_step, self.noise, self.wander = offset, per_step, noise, wander
        self.rng = np.random.default_rng(5)

    def __call__(self, step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        late = max(step - FAULT, 0)
        gap = self.rng.normal(0.0, self.noise) + self.offset * min(late / 40, 1.0) + self.per_step * late
        gap += self.wander * math.sin(step / 120)
        scalars["ref_loss"] = scalars["loss"] - gap


def unscaled(name: str) -> dict[str, object]:
    """What describes a run without FP8, in which every tensor has the format ``name``."""
    tensors = {t: {**facts, "format": name} for t, facts in GAP.info()["tensors"].items()}
    return {**GAP.info(), "recipe": {"name": name}, "tensors": tensors}


def without_casts(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The rows of a run that logs only what a tensor holds, nothing of a cast."""
    kept = ("amax", "rms", "nan_count", "inf_count", "grad_norm")
    out = []
    for row in rows:
        tensors = row.get("tensors", {})
        assert isinstance(tensors, dict)
        less = {t: {k: v for k, v in stats.items() if k in kept} for t, stats in tensors.items()}
        out.append({**row, "tensors": less})
    return out


DRIFT = Run(after=truncating, steps=80)
ODD = Run(after=one_layer, steps=80)
GAP = Run(after=Gap(0.1), steps=190)
SLOPE = Run(after=Gap(0.05, per_step=0.0008), steps=260)
SMALL = Run(after=Gap(0.01), steps=120)
NONE = Run(after=Gap(0.0), steps=120)
CHAOTIC = Run(after=Gap(0.0, noise=0.03, wander=0.03), steps=800)

CASES = [
    Case(
        "casts of inputs truncate",
        Run(after=inputs_truncating).info(),
        Run(after=inputs_truncating).rows(),
        (Want("quantization_drift", (FAULT, FAULT)),),
    ),
    Case(
        "all casts truncate from here",
        DRIFT.info(),
        DRIFT.rows(),
        (Want("quantization_drift", (FAULT, FAULT)),),
    ),
    Case("0.01 nats above the baseline is inside what healthy pairs do", SMALL.info(), SMALL.rows()),
    Case(
        "0.1 nats above the baseline",
        GAP.info(),
        GAP.rows(),
        (Want("quantization_drift", (FAULT, FAULT + 24)),),
    ),
    Case(
        "a gap that widens where nothing of the weights is logged may be the state",
        SLOPE.info(),
        without_casts(SLOPE.rows()),
        (Want("undetermined", (FAULT, FAULT + 24)),),
    ),
    Case(
        "a gap that widens while updates and weights are as before",
        SLOPE.info(),
        SLOPE.rows(),
        (Want("quantization_drift", (FAULT, FAULT + 24)),),
    ),
    Case(
        "0.1 nats above the baseline in BF16",
        unscaled("bf16"),
        without_casts(GAP.rows()),
        (Want("quantization_drift", (FAULT, FAULT + 24)),),
    ),
    Case("an FP32 run rounds nothing", unscaled("fp32"), without_casts(GAP.rows())),
    Case("one odd batch", ODD.info(), ODD.rows()),
    Case("a baseline that agrees", NONE.info(), NONE.rows()),
    Case("two runs that part by chance", CHAOTIC.info(), CHAOTIC.rows()),
]

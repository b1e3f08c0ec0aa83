"""Twelve logs that checkers of training logs are compared on; rebuilt from their published description."""

from __future__ import annotations

import numpy as np

from benchmarks.curves.curve import Float64, SyntheticCurve, cosine, norms

ROWS = 1000


def _sound(rng: np.random.Generator, noise: float = 0.03) -> Float64:
    t = np.arange(ROWS)
    return 2.2 + 8.0 * (1 + t / 12.0) ** -0.6 + rng.normal(size=ROWS) * noise


def twelve(seed: int = 0) -> list[SyntheticCurve]:
    """The logs, with loss, gradient norm and learning rate each."""
    rng = np.random.default_rng(seed)
    t = np.arange(ROWS)
    out: list[SyntheticCurve] = []

    def log(kind: str, loss: Float64, want: tuple[str, ...] = (), onset: int | None = None) -> None:
        out.append(
            SyntheticCurve(
                kind, {"loss": loss, "lr": cosine(ROWS), "grad_norm": norms(loss, rng)}, want, onset
            )
        )

    log("healthy", _sound(rng))
    log("nan_step1", np.where(t >= 1, np.nan, _sound(rng)), ("nonfinite",), 1)
    log("inf_step5", np.where(t >= 5, np.inf, _sound(rng)), ("nonfinite",), 5)
    blown = _sound(rng)
    blown[3:11] = blown[3] * np.geomspace(1.5, 1e5, 8)
    blown[11:] = 1e6 * (1 + rng.normal(size=ROWS - 11) * 0.05)
    log("blowup_3_10", blown, ("divergence", "spike_not_recovered"), 3)
    log("jump_237", _sound(rng) + np.where(t >= 237, 2.5, 0.0), ("spike_not_recovered", "divergence"), 237)
    turned = np.where(t >= 100, np.median(_sound(rng)[90:100]), _sound(rng)) + rng.normal(size=ROWS) * 0.03
    slope = np.clip(t - 100, 0, None) / 900
    log("drift_100", turned + 0.6 * slope, ("drift_up", "divergence"), 100)
    log("drift_strong", turned + 3.0 * slope, ("drift_up", "divergence"), 100)
    log("drift_subtle", turned + 0.2 * slope, ("drift_up", "divergence"), 100)
    log("spike_benign", _sound(rng) + np.where((t >= 500) & (t < 505), 2.0, 0.0), ("spike_recovered",), 500)
    stuck = np.where(t >= 200, 7.0, 10.8 - 3.8 * t / 200) + rng.normal(size=ROWS) * 0.03
    log("plateau", stuck, ("plateau",), 200)
    bump = 1.5 * np.exp(-0.5 * ((t - 40) / 12.0) ** 2)
    log("warmup_bump", _sound(rng) + bump)
    log("healthy_noisy", _sound(rng, noise=0.25))
    return out

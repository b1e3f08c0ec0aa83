"""Curves with a fault: every symptom, with varied size, onset, length and noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.curves.curve import Float64, SyntheticCurve, ar, cosine, norms, power_law, sparse

Rng = np.random.Generator


def _base(rng: Rng, *, least: int = 60, most: int = 4000) -> tuple[int, Float64]:
    """Rows, and a sound curve with noise of one of several kinds."""
    n = int(np.exp(rng.uniform(np.log(least), np.log(most))))
    unit = float(rng.choice([1.0, 1.0, 1.0, 0.05, 40.0]))
    loss = power_law(n, rng, start=rng.uniform(4, 11), end=rng.uniform(1.5, 3.5)) * unit
    noise = rng.normal(size=n) if rng.random() < 0.6 else ar(n, rng, rho=0.8, sd=1.0)
    return n, loss * (1 + noise * rng.uniform(0.003, 0.03))


def _onset(rng: Rng, n: int, *, first: float = 0.2, last: float = 0.85) -> int:
    return int(n * rng.uniform(first, last))


def _with(loss: Float64, rng: Rng) -> dict[str, Float64]:
    """The loss alone, or with what loggers mostly add."""
    if rng.random() < 0.3:
        return {"loss": loss}
    return {"loss": loss, "lr": cosine(len(loss)), "grad_norm": norms(loss, rng)}


def nan_for_good(rng: Rng) -> SyntheticCurve:
    n, loss = _base(rng, least=4)
    at = int(rng.choice([0, 1, 2, _onset(rng, n)]))
    loss[at:] = rng.choice([np.nan, np.inf])
    return SyntheticCurve("nan_for_good", _with(loss, rng), ("nonfinite",), min(at, n - 1))


def zero_for_nan(rng: Rng) -> SyntheticCurve:
    """A logger that filters NaN prints 0."""
    n, loss = _base(rng, least=12)
    at = min(_onset(rng, n), n - 4)
    norm = norms(loss, rng)
    loss[at:] = 0.0
    columns = {"loss": loss, "lr": cosine(n)}
    if rng.random() < 0.7:
        norm[at:] = rng.choice([np.nan, 0.0])
        columns["grad_norm"] = norm
    return SyntheticCurve("zero_for_nan", columns, ("nonfinite", "frozen_loss"), at)


def left_out(rng: Rng) -> SyntheticCurve:
    """A logger that leaves NaN out."""
    n, loss = _base(rng, least=12)
    at = min(_onset(rng, n), n - 5)
    columns = {"loss": loss, "lr": cosine(n), "grad_norm": norms(loss, rng)}
    return SyntheticCurve(
        "left_out", columns, ("nonfinite", "frozen_loss"), at, missing={"loss": np.arange(n) >= at}
    )


def other_scalar(rng: Rng) -> SyntheticCurve:
    """One of several losses is NaN from a step on."""
    n, loss = _base(rng, least=20)
    at = min(_onset(rng, n), n - 4)
    box = loss * 0.3
    box[at:] = np.nan
    return SyntheticCurve("other_scalar", {"loss": loss, "box_loss": box}, ("nonfinite",), at)


def frozen(rng: Rng) -> SyntheticCurve:
    n, loss = _base(rng)
    at = min(_onset(rng, n), n - 20)
    loss[at:] = loss[at]
    columns = {"loss": loss}
    if rng.random() < 0.6:
        norm = norms(loss, rng)
        norm[at:] = norm[at]
        columns["grad_norm"] = norm
    return SyntheticCurve("frozen", columns, ("frozen_loss",), at)


def spike(rng: Rng) -> SyntheticCurve:
    n, loss = _base(rng)
    at, length = _onset(rng, n, last=0.75), max(5, int(n * rng.uniform(0.01, 0.1)))
    t = np.arange(n) - at
    height = rng.uniform(0.5, 3)
    fading = 1 - t / length if rng.random() < 0.5 else np.ones(n)
    shape = np.where((t >= 0) & (t < length), fading, 0.0)
    return SyntheticCurve("spike", _with(loss * (1 + height * shape), rng), ("spike_recovered",), at)


def step_up(rng: Rng) -> SyntheticCurve:
    n, loss = _base(rng)
    at = _onset(rng, n)
    loss = np.where(np.arange(n) >= at, loss * (1 + rng.uniform(0.4, 0.9)), loss)
    return SyntheticCurve("step_up", _with(loss, rng), ("spike_not_recovered", "divergence"), at)


def leap(rng: Rng) -> SyntheticCurve:
    n, loss = _base(rng, least=12)
    at = _onset(rng, n)
    loss = np.where(np.arange(n) >= at, loss.max() * rng.uniform(0.9, 3), loss) * (
        1 + rng.normal(size=n) * 0.01
    )
    return SyntheticCurve("leap", _with(loss, rng), ("divergence", "spike_not_recovered"), at)


def climb(rng: Rng) -> SyntheticCurve:
    """Exponential or linear growth to 2 to 20 times the best level."""
    n, loss = _base(rng, least=30)
    at = _onset(rng, n, last=0.8)
    t = np.clip((np.arange(n) - at) / (n - at), 0, None)
    top = rng.uniform(1.0, 19.0)
    grown = np.expm1(t * np.log1p(top)) if rng.random() < 0.5 else t * top
    return SyntheticCurve("climb", _with(loss * (1 + grown), rng), ("divergence", "drift_up"), at)


def hump(rng: Rng) -> SyntheticCurve:
    """Diverges, comes back by a part and stays far up."""
    n, loss = _base(rng, least=60)
    at = _onset(rng, n, last=0.6)
    t = np.clip((np.arange(n) - at) / (n - at), 0, None)
    bump = rng.uniform(1, 3) * np.minimum(t / 0.15, 1.0) * (1 - 0.45 * np.clip((t - 0.3) / 0.7, 0, 1))
    return SyntheticCurve("hump", _with(loss * (1 + bump), rng), ("divergence", "spike_not_recovered"), at)


def drift(rng: Rng) -> SyntheticCurve:
    n, loss = _base(rng, least=150)
    at = _onset(rng, n, first=0.25, last=0.6)
    t = np.clip((np.arange(n) - at) / (n - at), 0, None)
    loss = np.where(np.arange(n) >= at, np.median(loss[max(0, at - n // 20) : at + 1]), loss) * (
        1 + rng.normal(size=n) * rng.uniform(0.003, 0.015)
    )
    return SyntheticCurve(
        "drift", _with(loss * (1 + rng.uniform(0.07, 0.35) * t), rng), ("drift_up", "divergence"), at
    )


def never_learns(rng: Rng) -> SyntheticCurve:
    n = int(rng.integers(80, 1500))
    level = float(rng.choice([np.log(2), np.log(10), 7.6, 6.9, 10.8]))
    loss = level * (1 + rng.normal(size=n) * rng.uniform(0.002, 0.02))
    return SyntheticCurve("never_learns", {"loss": loss, "lr": np.full(n, 3e-4)}, ("plateau",), 0)


def stuck(rng: Rng) -> SyntheticCurve:
    n = int(rng.integers(150, 2000))
    at = int(n * rng.uniform(0.05, 0.3))
    start, level = 10.8, rng.uniform(6.8, 8)
    t = np.arange(n)
    loss = np.where(t < at, start + (level - start) * t / at, level) * (1 + rng.normal(size=n) * 0.01)
    return SyntheticCurve("stuck", {"loss": loss, "lr": np.full(n, 3e-4)}, ("plateau",), at)


def overfits(rng: Rng) -> SyntheticCurve:
    n = int(rng.integers(60, 1500))
    t = np.arange(n) / n
    best = rng.uniform(0.2, 0.6)
    train = 2.5 * np.exp(-3 * t) * (1 + rng.normal(size=n) * 0.03)
    held = (
        2.6
        * np.exp(-1.5 * np.minimum(t, best))
        * (1 + rng.uniform(0.12, 0.6) * np.clip(t - best, 0, None) / (1 - best))
    )
    held *= 1 + rng.normal(size=n) * 0.004
    every = max(1, n // int(rng.integers(8, 40)))
    return SyntheticCurve(
        "overfits", {"loss": train, "eval_loss": held}, ("overfit",), int(best * n),
        missing={"eval_loss": sparse(held, every)},
    )  # fmt: skip


def scale_collapse(rng: Rng) -> SyntheticCurve:
    n, loss = _base(rng, least=40)
    at = _onset(rng, n, last=0.7)
    t = np.arange(n)
    pace = max(1, (n - at) // int(rng.integers(18, 40)))
    scale = np.where(t < at, 65536.0, 65536.0 * 0.5 ** (1.0 + (t - at) // pace))
    columns = {"loss": loss, "loss_scale": np.maximum(scale, 1e-30), "lr": cosine(n)}
    return SyntheticCurve("scale_collapse", columns, ("loss_scale_collapse",), at)


def rate_jump(rng: Rng) -> SyntheticCurve:
    n, loss = _base(rng, least=100)
    at = _onset(rng, n, last=0.7)
    rate = cosine(n)
    rate[at:] *= rng.uniform(20, 60)
    t = np.clip(np.arange(n) - at, 0, None)
    loss = loss * (1 + rng.uniform(0.8, 3) * (1 - np.exp(-t / 4.0)))
    return SyntheticCurve("rate_jump", {"loss": loss, "lr": rate}, ("divergence", "spike_not_recovered"), at)


KINDS: Mapping[str, Callable[[Rng], SyntheticCurve]] = {
    f.__name__: f
    for f in (
        nan_for_good, zero_for_nan, left_out, other_scalar, frozen, spike, step_up, leap, climb, hump, drift,
        never_learns, stuck, overfits, scale_collapse, rate_jump,
    )
}  # fmt: skip

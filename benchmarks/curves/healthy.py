"""Healthy curves of many kinds: none of them may raise an alarm."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.curves.curve import SyntheticCurve, ar, cosine, norms, power_law, sparse

Rng = np.random.Generator


def _rows(rng: Rng, *, least: int = 60, most: int = 4000) -> int:
    return int(np.exp(rng.uniform(np.log(least), np.log(most))))


def scaling_law(rng: Rng) -> SyntheticCurve:
    n = _rows(rng)
    loss = power_law(n, rng, start=rng.uniform(6, 11), end=rng.uniform(1.5, 3.5))
    loss *= 1 + rng.normal(size=n) * rng.uniform(0.002, 0.02)
    return SyntheticCurve("scaling_law", {"loss": loss, "lr": cosine(n), "grad_norm": norms(loss, rng)})


def gpt_like(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=300, most=20000)
    mean = power_law(n, rng, start=10.9, end=rng.uniform(2.6, 3.2))
    loss = mean + ar(n, rng, rho=0.5, sd=rng.uniform(0.02, 0.08))
    held = mean + 0.02 + rng.normal(size=n) * 0.004
    every = max(n // 40, 2)
    columns = {"loss": loss, "eval_loss": held, "lr": cosine(n), "grad_norm": norms(loss, rng)}
    return SyntheticCurve("gpt_like", columns, missing={"eval_loss": sparse(held, every)})


def noisy_small_batch(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=40)
    loss = power_law(n, rng, start=rng.uniform(1.5, 6), end=rng.uniform(0.6, 2))
    return SyntheticCurve(
        "noisy_small_batch", {"loss": loss * np.exp(rng.normal(size=n) * rng.uniform(0.1, 0.35))}
    )


def ar_noise(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=200)
    loss = power_law(n, rng, start=rng.uniform(4, 10), end=rng.uniform(2, 3.5))
    loss *= 1 + ar(n, rng, rho=rng.uniform(0.8, 0.985), sd=rng.uniform(0.005, 0.03))
    return SyntheticCurve("ar_noise", {"loss": loss, "lr": cosine(n)})


def heavy_tails(rng: Rng) -> SyntheticCurve:
    n = _rows(rng)
    loss = power_law(n, rng, start=rng.uniform(4, 10), end=rng.uniform(1, 3.5))
    loss *= 1 + np.clip(rng.standard_t(3, size=n) * 0.02, -0.5, 5)
    hit = rng.random(n) < 0.003
    loss = np.where(hit, loss * rng.uniform(1.3, 4, size=n), loss)
    return SyntheticCurve("heavy_tails", {"loss": loss, "grad_norm": norms(loss, rng)})


def epoch_stairs(rng: Rng) -> SyntheticCurve:
    n, epochs = _rows(rng, least=120), int(rng.integers(3, 8))
    t = np.arange(n) * epochs / n
    loss = power_law(n, rng, start=rng.uniform(2, 6), end=rng.uniform(0.8, 2)) * 0.9 ** np.floor(t)
    loss *= 1 + rng.uniform(0.0, 0.05) * (t % 1.0) + rng.normal(size=n) * rng.uniform(0.01, 0.06)
    return SyntheticCurve("epoch_stairs", {"loss": loss, "lr": cosine(n, peak=2e-5)})


def warmup_bump(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=150)
    loss = power_law(n, rng, start=rng.uniform(3, 10), end=rng.uniform(1.5, 3))
    at, width = rng.uniform(0.02, 0.06) * n, rng.uniform(0.008, 0.02) * n + 1
    loss *= 1 + rng.uniform(0.1, 0.5) * np.exp(-0.5 * ((np.arange(n) - at) / width) ** 2)
    loss *= 1 + rng.normal(size=n) * 0.01
    return SyntheticCurve("warmup_bump", {"loss": loss, "lr": cosine(n, warmup=0.08)})


def rate_drops(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=150)
    steps = np.searchsorted([0.4, 0.7, 0.9], np.arange(n) / n)
    loss = power_law(n, rng, start=rng.uniform(2, 7), end=rng.uniform(0.5, 2)) * 0.7**steps
    loss *= 1 + rng.normal(size=n) * rng.uniform(0.01, 0.08)
    return SyntheticCurve("rate_drops", {"loss": loss, "lr": np.float64(0.1) ** (1 + steps)})


def domain_switch(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=150)
    loss = power_law(n, rng, start=rng.uniform(6, 10), end=rng.uniform(2, 3))
    at = int(n * rng.uniform(0.3, 0.8))
    after = np.clip(np.arange(n) - at, 0, None)
    loss *= 1 + np.where(np.arange(n) >= at, rng.uniform(0.03, 0.2) * np.exp(-after / (0.2 * n)), 0.0)
    loss *= 1 + rng.normal(size=n) * 0.01
    return SyntheticCurve("domain_switch", {"loss": loss, "lr": cosine(n)})


def cyclic_rate(rng: Rng) -> SyntheticCurve:
    n, cycles = _rows(rng, least=150), int(rng.integers(2, 6))
    phase = (np.arange(n) * cycles / n) % 1.0
    rate = 1e-3 * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * phase)))
    loss = power_law(n, rng, start=rng.uniform(2, 8), end=rng.uniform(1, 2.5))
    loss *= 1 + rng.uniform(0.08, 0.35) * rate / 1e-3 + rng.normal(size=n) * 0.015
    return SyntheticCurve("cyclic_rate", {"loss": loss, "lr": rate})


def fine_tuning(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=15, most=600)
    end = rng.uniform(0.4, 1.6)
    loss = power_law(n, rng, start=end * rng.uniform(1.1, 1.6), end=end)
    loss *= 1 + rng.normal(size=n) * rng.uniform(0.03, 0.15)
    return SyntheticCurve("fine_tuning", {"loss": loss, "lr": cosine(n, peak=2e-5)}, every=10)


def tiny(rng: Rng) -> SyntheticCurve:
    n = int(rng.integers(4, 13))
    loss = np.linspace(1, rng.uniform(0.5, 0.9), n) * rng.uniform(0.3, 6) * (1 + rng.normal(size=n) * 0.04)
    return SyntheticCurve("tiny", {"loss": loss}, every=int(rng.choice([1, 10, 500])))


def reinforcement(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=100)
    critic = np.exp(np.linspace(0, rng.uniform(1, 3.5), n) + ar(n, rng, rho=0.9, sd=0.5))
    columns = {"train/critic_loss": critic, "reward": np.linspace(0, 500, n) + rng.normal(size=n) * 50}
    return SyntheticCurve("reinforcement", columns)


def likelihood(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=100)
    loss = power_law(n, rng, start=rng.uniform(1, 3), end=-rng.uniform(1, 5)) + rng.normal(size=n) * 0.05
    return SyntheticCurve("likelihood", {"loss": loss})


def regression(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=100)
    loss = np.exp(np.linspace(0, -rng.uniform(4, 9), n) + ar(n, rng, rho=0.7, sd=rng.uniform(0.1, 0.35)))
    return SyntheticCurve("regression", {"loss": loss, "lr": cosine(n, peak=1e-3)})


def large_sums(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=100)
    loss = power_law(n, rng, start=rng.uniform(300, 900), end=rng.uniform(50, 150))
    return SyntheticCurve("large_sums", {"loss": loss * (1 + rng.normal(size=n) * 0.05)})


def window(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=30, most=1000)
    loss = rng.uniform(1.8, 3.2) * (1 - 0.01 * np.arange(n) / n) + rng.normal(size=n) * 0.03
    return SyntheticCurve("window", {"loss": loss, "grad_norm": norms(loss, rng)}, first=80_000, every=10)


def half_precision(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=200)
    loss = power_law(n, rng, start=9, end=rng.uniform(2.5, 3.5)) + rng.normal(size=n) * 0.04
    scale, good, scales = 2.0**16, 0, []
    norm = norms(loss, rng)
    for t in range(n):
        if t > 5 and rng.random() < 0.004 * scale / 65536:
            scale, good, norm[t] = scale / 2, 0, np.inf
        good += 1
        if good == 200:
            scale, good = scale * 2, 0
        scales.append(scale)
    columns = {"loss": loss, "grad_norm": norm, "loss_scale": np.array(scales), "lr": cosine(n)}
    return SyntheticCurve("half_precision", columns)


def by_heart(rng: Rng) -> SyntheticCurve:
    """Converges to almost nothing, as on a small data set with few printed digits."""
    n = _rows(rng, least=100, most=1500)
    loss = np.exp(np.linspace(1.2, np.log(2e-4), n)) * np.exp(rng.normal(size=n) * 0.3)
    return SyntheticCurve("by_heart", {"loss": np.round(loss, 4), "grad_norm": norms(loss, rng) * loss})


def held_out_wanders(rng: Rng) -> SyntheticCurve:
    n = _rows(rng, least=200, most=2000)
    mean = power_law(n, rng, start=4, end=rng.uniform(1.5, 2.5))
    held = mean * (1.05 + rng.normal(size=n) * 0.01)
    columns = {"loss": mean * (1 + rng.normal(size=n) * 0.03), "eval_loss": held}
    return SyntheticCurve("held_out_wanders", columns, missing={"eval_loss": sparse(held, n // 15)})


KINDS: Mapping[str, Callable[[Rng], SyntheticCurve]] = {
    f.__name__: f
    for f in (
        scaling_law, gpt_like, noisy_small_batch, ar_noise, heavy_tails, epoch_stairs, warmup_bump,
        rate_drops, domain_switch, cyclic_rate, fine_tuning, tiny, reinforcement, likelihood, regression,
        large_sums, window, half_precision, by_heart, held_out_wanders,
    )
}  # fmt: skip

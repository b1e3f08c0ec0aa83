"""Data and casts that several facts share: fixed seeds, float32, on the CPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from floatscope_trainer.emulated.casts import cast_, fp8_max

SEED = 20251


def gaussian(*shape: int, seed: int = SEED) -> Tensor:
    """Values of N(0, 1)."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def uniform(*shape: int, seed: int = SEED) -> Tensor:
    """Values of U(0, 1)."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def lognormal(count: int, *, median: float, sigma: float, seed: int = SEED) -> Tensor:
    """Magnitudes exp(N(ln median, sigma)), as gradients often are."""
    return torch.exp(gaussian(count, seed=seed) * sigma + math.log(median))


def tensor_scale(values: Tensor, fmt: str) -> Tensor:
    """The multiplying scale of one scale per tensor: maximum of the format / amax."""
    return fp8_max(fmt) / values.abs().amax()


def through(values: Tensor, fmt: str, scale: Tensor | float = 1.0) -> Tensor:
    """What is left of the values after a saturating cast with this multiplying scale."""
    return cast_(values * scale, fmt=fmt) / scale


def underflow_pct(values: Tensor, left: Tensor) -> float:
    """Share of the values other than 0 that became 0, in percent."""
    alive = values != 0
    return 100.0 * float(((left == 0) & alive).sum()) / float(alive.sum())


def overflow_pct(values: Tensor, fmt: str, scale: Tensor | float) -> float:
    """Share of the values beyond the format's maximum after scaling, in percent."""
    return 100.0 * float(((values * scale).abs() > fp8_max(fmt)).to(torch.float64).mean())


def sqnr_db(values: Tensor, left: Tensor) -> float:
    """Signal to quantisation noise ratio, 10 log10(sum x^2 / sum (x - q)^2), in dB; inf without an error."""
    noise = float((values.double() - left.double()).square().sum())
    return math.inf if noise == 0 else 10 * math.log10(float(values.double().square().sum()) / noise)


def relative_error(product: Tensor, exact: Tensor) -> float:
    """Frobenius norm of the difference over that of the exact product."""
    return float((product.double() - exact.double()).norm() / exact.double().norm())

"""How noisy a series of differences is: its autocorrelation, effective sample size and block length.

All from one series, without a model of the runs. Sources: Politis and White 2004 with the correction of
Patton, Politis and White 2009 (block length of the circular bootstrap, flat-top lag window); Kendall 1954
(bias of an estimated autocorrelation); Abramowitz and Stegun 26.7.5 (quantile of Student's t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

SIGNIFICANT = 2.0  # times sqrt(log10(n) / n): an autocorrelation above it is not chance (Politis and White)
MIN_QUIET_LAGS = 5  # lags in a row below it that end the search
SHARE_OF_SERIES = 0.2  # a block is at most this share of the series: five blocks at least
MAX_PHI = 0.98


@dataclass(frozen=True)
class Noise:
    """A series around its mean.

    n: values.  sd: standard deviation.  phi: lag-1 autocorrelation, bias corrected, in [0, 0.98].
    long_run_sd: standard deviation of the mean times sqrt(n).  n_eff: independent values that would tell as
    much.  block: length of a bootstrap block, in values.
    """

    n: int
    sd: float
    phi: float
    long_run_sd: float
    n_eff: float
    block: int


def noise_of(values: Float64) -> Noise:
    """The noise of ``values`` [n], n at least 1, all finite."""
    n = len(values)
    largest = float(np.abs(values).max(initial=0.0))
    centred = (
        values - (values / largest).mean() * largest if largest > 0.0 else values
    )  # 1e308 may not be summed
    scale = float(np.abs(centred).max(initial=0.0))
    if scale == 0.0 or n < 3:
        spread = (
            scale * math.sqrt(float(((centred / scale) ** 2).sum()) / (n - 1)) if scale and n > 1 else 0.0
        )
        return Noise(n, spread, 0.0, spread, float(n), 1)
    unit = centred / scale  # 1e308 squared is infinite
    variance = float(unit @ unit) / n
    if variance == 0.0:
        return Noise(n, 0.0, 0.0, 0.0, float(n), 1)
    lags = _lags(n)
    rho = np.array([float(unit[: n - k] @ unit[k:]) / n / variance for k in range(1, lags + 1)])
    phi = min(max(float(rho[0]) + (1.0 + 3.0 * max(float(rho[0]), 0.0)) / n, 0.0), MAX_PHI)
    if float(rho[0]) <= SIGNIFICANT * math.sqrt(math.log10(n) / n):
        phi = max(float(rho[0]), 0.0)
    window = _flat_top(rho, n)
    spectrum = 1.0 + 2.0 * float((window * rho[: len(window)]).sum())
    model = (1.0 + phi) / (1.0 - phi)  # of an AR(1), which a short series estimates better
    inflation = max(spectrum, model, 1.0)
    sd = scale * math.sqrt(variance * n / (n - 1))
    return Noise(
        n=n,
        sd=sd,
        phi=phi,
        long_run_sd=sd * math.sqrt(inflation),
        n_eff=max(n / inflation, 1.0),
        block=_block(rho, window, spectrum, n, phi),
    )


def _lags(n: int) -> int:
    """How many autocorrelations are looked at."""
    return max(min(math.ceil(math.sqrt(n)) + max(MIN_QUIET_LAGS, math.ceil(math.log10(n))), n - 2), 1)


def _flat_top(rho: Float64, n: int) -> Float64:
    """Weights of the autocorrelations [<= lags]: 1 up to the last that is no chance, 0 at twice that lag."""
    limit = SIGNIFICANT * math.sqrt(math.log10(n) / n)
    quiet = max(MIN_QUIET_LAGS, math.ceil(math.sqrt(math.log10(n))))
    loud = np.abs(rho) > limit
    last = 0
    for k in range(len(rho)):
        if not loud[k : k + quiet].any():
            break
        if loud[k]:
            last = k + 1
    width = min(2 * last, len(rho))
    if width == 0:
        return np.zeros(0)
    share = np.arange(1, width + 1) / width
    return np.where(share <= 0.5, 1.0, 2.0 * (1.0 - share))


def _block(rho: Float64, window: Float64, spectrum: float, n: int, phi: float) -> int:
    """Block length of the circular bootstrap: (2 G^2 / D)^(1/3) n^(1/3) with D = 4/3 g(0)^2."""
    longest = max(int(SHARE_OF_SERIES * n), 1)
    if len(window) == 0 or spectrum <= 0.0:
        return 1
    k = np.arange(1, len(window) + 1)
    curvature = 2.0 * float((window * k * rho[: len(window)]).sum())
    best = (2.0 * curvature**2 / (4.0 / 3.0 * spectrum**2)) ** (1.0 / 3.0) * n ** (1.0 / 3.0)
    model = (2.0 * phi / (1.0 - phi * phi)) ** (2.0 / 3.0) * 1.14 * n ** (1.0 / 3.0)
    return int(min(max(math.ceil(max(best, model)), 1), longest))


def normal_quantile(p: float) -> float:
    """The p-quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(p)


def student_quantile(p: float, df: float) -> float:
    """The p-quantile of Student's t, within 1 % of the true value from 3 degrees of freedom on.

    Expansion in 1 / df; below 3 degrees the exact values of 1 and 2 are used.
    """
    if df < 1.5:
        return math.tan(math.pi * (p - 0.5))
    if df < 2.5:
        return (2.0 * p - 1.0) / math.sqrt(2.0 * p * (1.0 - p))
    z = normal_quantile(p)
    terms = (
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
        (79.0 * z**9 + 776.0 * z**7 + 1482.0 * z**5 - 1920.0 * z**3 - 945.0 * z) / 92160.0,
    )
    return z + sum(term / df ** (k + 1) for k, term in enumerate(terms))

"""The gap of the run to its baseline over the last part of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.bootstrap import mean_band
from floatscope_diagnostics.compare.noise import student_quantile

LAST_SHARE = 0.25
FEWEST = 20
CONFIDENCE = 0.95
MARGIN_NATS = 0.02
"""Two healthy runs end up to so far apart by chance (default margin of ``floatscope compare``)."""


@dataclass(frozen=True)
class Gap:
    """Mean of loss - reference's over the last quarter of the common steps, with its 95 % interval, nats.

    chance_nats: how far a run and its reference lie apart by chance in 95 % of cases, from twins of the
    reference; None where there are none to tell.
    """

    nats: float
    low_nats: float
    high_nats: float
    steps: tuple[int, int]
    chance_nats: float | None = None

    @property
    def is_real(self) -> bool:
        """Whether the run is worse than its reference beyond what healthy runs differ by."""
        return self.low_nats > 0 and self.nats > self.least_nats

    @property
    def least_nats(self) -> float:
        """What a gap must exceed to be one."""
        return max(MARGIN_NATS, self.chance_nats or 0.0)


def gap_of(step: NDArray[np.int64], gap_nats: NDArray[np.float64]) -> Gap | None:
    """From paired differences, NaN where one of the losses is not finite. None for fewer than 20 of them."""
    good = np.isfinite(gap_nats)
    step, gap_nats = step[good], gap_nats[good]
    if len(step) < FEWEST:
        return None
    count = max(FEWEST, int(LAST_SHARE * len(step)))
    band = mean_band(np.asarray(gap_nats[-count:], np.float64), confidence=CONFIDENCE)
    return Gap(band.mean, band.low, band.high, (int(step[-count]), int(step[-1])))


def gap_to_twins(gaps: Sequence[Gap]) -> Gap:
    """The gap to the mean of several references that differ by chance only. What they differ by is what the
    run differs from their mean by without any fault (Student's t of their spread, for one more run).
    """
    if len(gaps) == 1:
        return gaps[0]
    nats = np.array([gap.nats for gap in gaps])
    t = student_quantile(0.5 + 0.5 * CONFIDENCE, len(gaps) - 1.0)
    return Gap(
        float(nats.mean()),
        float(np.mean([gap.low_nats for gap in gaps])),
        float(np.mean([gap.high_nats for gap in gaps])),
        gaps[0].steps,
        float(t * nats.std(ddof=1) * math.sqrt(1.0 + 1.0 / len(gaps))),
    )

"""The gap of the run to its baseline over the last part of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.bootstrap import mean_band

LAST_SHARE = 0.25
FEWEST = 20
CONFIDENCE = 0.95
MARGIN_NATS = 0.02
"""Two healthy runs end up to so far apart by chance (default margin of ``floatscope compare``)."""


@dataclass(frozen=True)
class Gap:
    """Mean of loss - reference's over the last quarter of the common steps, with its 95 % interval, nats."""

    nats: float
    low_nats: float
    high_nats: float
    steps: tuple[int, int]

    @property
    def is_real(self) -> bool:
        """Whether the run is worse than its reference beyond what healthy runs differ by."""
        return self.low_nats > 0 and self.nats > MARGIN_NATS


def gap_of(step: NDArray[np.int64], gap_nats: NDArray[np.float64]) -> Gap | None:
    """From paired differences, NaN where one of the losses is not finite. None for fewer than 20 of them."""
    good = np.isfinite(gap_nats)
    step, gap_nats = step[good], gap_nats[good]
    if len(step) < FEWEST:
        return None
    count = max(FEWEST, int(LAST_SHARE * len(step)))
    band = mean_band(np.asarray(gap_nats[-count:], np.float64), confidence=CONFIDENCE)
    return Gap(band.mean, band.low, band.high, (int(step[-count]), int(step[-1])))

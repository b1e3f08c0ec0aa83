"""How finely a log prints a statistic, learned from its values.

Loggers print so many significant digits, or so many decimals; ``round(x, 4)`` leaves one digit of a gradient
whose amax is 0.0003. An invariant must not take the rounding for a violation. Values that all fit a coarse
grid, of at most MOST_DECIMALS decimals or MOST_DIGITS digits, were rounded to it; one value between the
grid's points shows that they were not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# From the coarsest a logger prints to the finest that can matter beside the tolerance of 0.35 %.
LEAST_DECIMALS, MOST_DECIMALS = 2, 6
LEAST_DIGITS, MOST_DIGITS = 3, 4
FLOAT32_SHARE = 1.2e-7  # statistics are float32: the printed decimal, or next to it
SAMPLE_VALUES = 64  # of one row


class PrintedDigits:
    """What the values of one statistic, of all tensors, need.

    decimals, digits: at least so many; one above the largest constant means that they are not rounded.
    """

    def __init__(self) -> None:
        self.decimals = LEAST_DECIMALS
        self.digits = LEAST_DIGITS

    @property
    def hides_small(self) -> bool:
        """Whether a printed 0 may be a small number."""
        return self.decimals <= MOST_DECIMALS

    def learn(self, values: Float64) -> None:
        """Takes one row (S,)."""
        if self.decimals > MOST_DECIMALS and self.digits > MOST_DIGITS:
            return
        values = values[np.isfinite(values) & (values > 0)][:SAMPLE_VALUES]
        while self.decimals <= MOST_DECIMALS and not _fits(values, 10.0**-self.decimals):
            self.decimals += 1
        while self.digits <= MOST_DIGITS and not _fits(values, _last_digit(values, self.digits)):
            self.digits += 1

    def step(self, values: Float64) -> Float64:
        """Distance (S,) of the printed numbers around each value; 0 where they are not rounded."""
        size = np.zeros(len(values))
        if self.decimals <= MOST_DECIMALS:
            size = np.full(len(values), 10.0**-self.decimals)
        if self.digits <= MOST_DIGITS:
            size = np.maximum(size, _last_digit(values, self.digits))
        return size

    def state(self) -> dict[str, int]:
        return {"decimals": self.decimals, "digits": self.digits}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> PrintedDigits:
        out = cls()
        out.decimals, out.digits = int(state["decimals"]), int(state["digits"])
        return out


def _fits(values: Float64, size: Float64 | float) -> bool:
    steps = values / size
    return bool((np.abs(steps - np.round(steps)) <= 1e-9 + FLOAT32_SHARE * steps).all())


def _last_digit(values: Float64, digits: int) -> Float64:
    """Size (S,) of the last of so many significant digits; 0 for a value that has none."""
    with np.errstate(all="ignore"):
        size: Float64 = 10.0 ** (np.floor(np.log10(values)) - (digits - 1))
    return np.where(np.isfinite(size), size, 0.0)
